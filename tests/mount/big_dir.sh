#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# Large directories. BIG_DIR=100000 makes as many through the mount, too.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

n=${BIG_DIR:-20000}
[ "$MODE ${TEST_ONE_OF:-1}" = 'fast 1' ] || n=${BIG_DIR:-5000}
found=100000
store=$TMP/store mnt=$TMP/mnt

# One that stands in the store when the mount comes: 100,000 names.
mkdir -p "$store/found"
helper files make "$store/found" $found 0 || die "cannot make $found files"
start_mount "$store" "$mnt"
helper files list "$mnt/found" $found || die "list"
[ "$(find "$mnt/found" -type f | wc -l)" = $found ] || die "find"
[ "$(ls -1f "$mnt/found" | wc -l)" = $((found + 2)) ] || die "ls -f"

# One that is made here.
mkdir "$mnt/made"
helper files make "$mnt/made" "$n" 10 || die "make"
helper files check "$mnt/made" "$n" 10 || die "check, staged"
wait_durable "$mnt/made" 150
helper files check "$store/made" "$n" 10 || die "check in the store"
helper files check "$mnt/made" "$n" 10 || die "check, durable"
mv "$mnt/made" "$mnt/moved"
helper files list "$mnt/moved" "$n" || die "list, moved"
end_mount "$mnt"
helper files list "$store/moved" "$n" || die "list, moved, in the store"

start_mount "$store" "$mnt"
helper files check "$mnt/moved" "$n" 10 || die "check, mounted again"
helper files remove "$mnt/moved" "$n" || die "remove"
rmdir "$mnt/moved" || die "rmdir"
wait_durable "$mnt" 150
[ ! -e "$store/moved" ] || die "still in the store"
end_mount "$mnt"
