#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# -o guard: after an unclean end the bare mountpoint takes no file, from root either; the next mount works, and
# after a clean end the directory is as it was.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool chattr lsattr
store=$TMP/store mnt=$TMP/mnt
mkdir "$mnt"
chattr +i "$mnt" 2>/dev/null || skip "no immutable directories in $TMP"
chattr -i "$mnt"
on_exit 'chattr -i "$mnt" 2>/dev/null'
is_guarded() { lsattr -d "$1" | has '^[^ ]*i'; }

start_mount "$store" "$mnt" guard
echo kept >"$mnt/f"
kill_mount "$mnt"
is_mounted "$mnt" && die "still mounted"
cp "$0" "$mnt/wrong" 2>/dev/null && die "a file was written into the bare mountpoint"
mkdir "$mnt/wrong" 2>/dev/null && die "a directory was made in the bare mountpoint"

start_mount "$store" "$mnt" guard
[ "$(cat "$mnt/f")" = kept ] || die "f after the next start"
kill -KILL "$(worker_pid "$mnt")"
echo more >"$mnt/g" || die "write after a worker's death"
stop_mount "$mnt"
[ "$(cat "$store/g")" = more ] || die "g in the store"
is_guarded "$mnt" && die "guarded after a clean end"
rmdir "$mnt" || die "rmdir after a clean end"

# a mount that does not come about leaves nothing behind; without the option nothing is done
mkdir "$mnt"
try_mount "$store" "$mnt" guard,no_such_option=1 2>/dev/null && die "mounted with an unknown option"
is_guarded "$mnt" && die "guarded, and not mounted"
start_mount "$store" "$mnt"
kill_mount "$mnt"
is_guarded "$mnt" && die "guarded without being asked"
exit 0
