#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# set: rest
# waits: yes
# A store that two hosts serve takes no more writes (ext4, errors=remount-ro), and neither of them writes anything: both
# find it, though what they ask for every 5 seconds only reads. Their heartbeat, every 10 seconds, is what fails.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool unshare findmnt
make_disk disk ext4 400M
mkdir "$TMP/disk/store"
mount -o remount,errors=remount-ro "$TMP/disk" || skip "no errors=remount-ro here"
trigger=/sys/fs/ext4/$(basename "$(findmnt -n -o SOURCE "$TMP/disk")")/trigger_fs_error
[ -w "$trigger" ] || skip "this ext4 has no trigger_fs_error"

for host in node-a node-b; do
	mkdir -p "$TMP/$host" "$TMP/staging-$host"
	# shellcheck disable=SC2016
	unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$BUILD/cairnfs" "$TMP/disk/store" "$TMP/$host" -o \
		"staging=64M,pool=0,staging_dir=$TMP/staging-$host" </dev/null || die "host $host does not mount"
	LIB_STORE[$TMP/$host]=$TMP/disk/store
	LIB_KEEPER[$TMP/$host]=$(keeper_pid "$TMP/$host")
	LIB_STAGING[$(status_field "$TMP/$host" staging.dir)]=1
done
beats() { [ "$(stat -c %Y "$TMP/disk/store/.cairn/$1/alive")" -gt "$2" ]; }
for host in node-a node-b; do
	began=$(stat -c %Y "$TMP/disk/store/.cairn/$host/alive")
	retry 30 beats "$host" "$began" || die "$host has no heartbeat"
done

echo "cairnfs test" >"$trigger"
gone() { [ "$(status_field "$TMP/$1" store_gone.error)" = "Read-only file system" ]; }
for host in node-a node-b; do
	retry 40 gone "$host" || die "$host did not find it: $(status_field "$TMP/$host" store_gone)"
done
