#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# The core on every filesystem that a store may lie on, and what is refused, with a clear line.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/core.inc"
need_root

on_disk()	# NAME FS SIZE MOUNT_OPTIONS
{
	command -v "mkfs.$2" >/dev/null || { note "no mkfs.$2: $1 was not tried"; return; }
	make_disk "$1" "$2" "$3"
	umount "$TMP/$1"
	mount -o "loop,$4" "$TMP/$1.img" "$TMP/$1" || { note "$1 cannot be mounted here: not tried"; return; }
	core "$1" "$TMP/$1/store"
	umount "$TMP/$1" || die "$1: something still uses the store's filesystem"
	unset "LIB_DISK[$1]"
	rm "$TMP/$1.img"
}

on_disk ext2 ext2 96M noatime	# no journal, no fallocate
on_disk ext4-ordered ext4 96M data=ordered
on_disk ext4-journal ext4 96M data=journal
on_disk ext4-noxattr ext4 96M nouser_xattr
on_disk xfs xfs 320M noatime
on_disk btrfs btrfs 256M noatime

# data=writeback: served as any other, or refused in one line that names the mode.
if make_disk writeback ext4 96M && umount "$TMP/writeback" &&
	mount -o loop,data=writeback "$TMP/writeback.img" "$TMP/writeback"; then
	mkdir "$TMP/writeback/store"
	if try_mount "$TMP/writeback/store" "$core_mnt" staging=64M 2>"$TMP/err"; then
		stop_mount "$core_mnt"
		core ext4-writeback "$TMP/writeback/store"
	else
		has writeback "$TMP/err" || die "refused without naming data=writeback: $(cat "$TMP/err")"
		unset "LIB_STORE[$core_mnt]"
	fi
	umount "$TMP/writeback"
fi

mkdir "$TMP/memory"
mount -t tmpfs -o size=96M none "$TMP/memory" && LIB_DISK[memory]=1 && core tmpfs "$TMP/memory/store"

mkdir -p "$TMP"/lower "$TMP"/upper "$TMP"/work "$TMP"/overlay
if mount -t overlay overlay -o "lowerdir=$TMP/lower,upperdir=$TMP/upper,workdir=$TMP/work" "$TMP/overlay"; then
	LIB_DISK[overlay]=1
	core overlayfs "$TMP/overlay/store"
else
	note "overlayfs cannot be mounted here: not tried"
fi

# FUSE filesystems. unionfs has no xattrs, and behind O_DIRECT no aligned buffers.
on_fuse()	# PROGRAM SOURCE
{
	command -v "$1" >/dev/null || { note "no $1: a store on it was not tried"; return; }
	mkdir -p "$TMP/$1" "$TMP/behind-$1"
	"$1" "$2" "$TMP/$1" || { note "$1 cannot be mounted here: not tried"; return; }
	LIB_DISK[$1]=1
	core "$1" "$TMP/$1/store"
}
on_fuse bindfs "$TMP/behind-bindfs"
on_fuse mergerfs "$TMP/behind-mergerfs"
on_fuse unionfs "$TMP/behind-unionfs=RW"

# A store that cannot be written: with ro it is shown, without it is refused, and nothing is made there.
make_disk readonly ext4 64M
mkdir "$TMP/readonly/store"
echo old >"$TMP/readonly/store/f"
mount -o remount,ro "$TMP/readonly"
if try_mount "$TMP/readonly/store" "$core_mnt" staging=64M 2>"$TMP/err"; then
	die "a store that is read-only was mounted for writing"
fi
has -i 'read-only' "$TMP/err" || die "the refusal does not say that the store is read-only: $(cat "$TMP/err")"
start_mount "$TMP/readonly/store" "$core_mnt" ro
[ "$(cat "$core_mnt/f")" = old ] || die "ro does not show the store"
stop_mount "$core_mnt"
