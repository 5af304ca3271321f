#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 300
# set: rest
#
# One file is written over again and again, on a store with room for about three versions: xfs and
# btrfs free the blocks of what was removed a while after the removal.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"
need_root

# round FS DISK STAGING MIB TIMES REFUSED: so many versions may be refused (write(2) said ENOSPC)
round()
{
	refused=0 disk=$TMP/$1 store=$TMP/$1/store mnt=$TMP/mnt-$1
	make_disk "$1" "$1" "$2"
	start_mount "$store" "$mnt" "staging=$3"
	for i in $(seq "$5"); do
		rc=0
		helper careless "$mnt/model.bin" $(($4 << 20)) "$i" >"$TMP/said" || rc=$?
		[ $rc = 0 ] && continue
		note "$1: version $i: $(cat "$TMP/said")"
		refused=$((refused + 1))
		[ $refused -le "$6" ] || die "$1: $refused versions were refused"
		within 120 "$BUILD/cairn" wait -q "$mnt" || true
		helper careless "$mnt/model.bin" $(($4 << 20)) "$i" >"$TMP/said" ||
			die "$1: version $i, with all durable: $(cat "$TMP/said")"
	done
	within 120 "$BUILD/cairn" wait -q "$mnt" || die "$1: wait"
	cmp <(head -c $(($4 << 20)) /dev/zero | tr '\0' "\\$(printf %03o "$5")") "$store/model.bin" ||
		die "$1: the last version"
	end_mount "$mnt"
	umount "$disk"
}
round ext4 256M 96M 60 12 0
round xfs 512M 160M 120 12 1
round btrfs 512M 160M 100 12 2	# its statfs(2) counts dirty pages as free
