#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# cairn verify on a store without xattrs or O_DIRECT: checksums beside the files, and it says so.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

need_root
mkdir "$s"
mount -t ramfs none "$s" || skip "no ramfs here"
on_exit 'umount -l "$s" 2>/dev/null'
setfattr -n user.probe -v 1 "$s" 2>/dev/null && skip "ramfs has xattrs here"
start_mount "$s" "$m"
mkdir "$m/d"
head -c 5000000 /dev/urandom >"$m/d/a"
echo b >"$m/b"
expect 0 "$cairn" wait "$m"
expect 0 "$cairn" verify "$m"
says out '^2 ok, 0 mismatched, 0 unreadable, 0 unverifiable'
says out 'could not be read past the page cache'
printf X | dd of="$s/d/a" bs=1 seek=4999999 conv=notrunc status=none
printf Y | dd of="$s/d/a" bs=1 seek=4999998 conv=notrunc status=none	# one of them was another byte
expect 1 "$cairn" verify "$m"
says out "^mismatch *$m/d/a"
expect 0 "$cairn" umount "$m"
expect 1 "$cairn" verify "$s"
says out "^mismatch *$s/d/a"
says out '^1 ok, 1 mismatched'
