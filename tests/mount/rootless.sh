#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# Where /run/cairnfs cannot be made (root with a read-only /run, root of a user namespace), staging is in /dev/shm, or
# in $XDG_RUNTIME_DIR where that is not one; a notice says so; and what everything left when it was killed is found
# again there, whatever else can be used by then.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool setpriv unshare

# As who, in namespaces of its own: a /dev/fuse that is everybody's, and a /run that takes nothing.
if [ -z "${CAIRN_ROOTLESS:-}" ]; then
	chmod 755 "$TMP"
	mknod -m 666 "$TMP/fuse" c 10 229 || skip "cannot make a device node"
	mkdir "$TMP/root" && install -d -o 65534 -g 65534 "$TMP/user"
	in_namespace()	# AS command...
	{
		local as=$1
		shift
		# shellcheck disable=SC2016	# the other shell's
		CAIRN_ROOTLESS=$as TMP=$TMP/$as unshare -m "$LIB_TOP/tests/lib/own_mounts" bash -c 'mount --bind "$1/fuse" /dev/fuse &&
			mount -t tmpfs -o ro none /run && shift && exec "$@"' - "$TMP" "$@"
	}
	in_namespace root bash "$0" || exit
	user=(setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urm)
	if in_namespace user "${user[@]}" test -w /dev/fuse -a -x "$BUILD/cairnfs" 2>/dev/null; then
		in_namespace user "${user[@]}" bash "$0" || exit
	else
		note "a user namespace's root: not tried, none is to be had here"
	fi
	exit 0
fi
as=$CAIRN_ROOTLESS s=$TMP/store m=$TMP/mnt
on_exit 'rm -rf "/dev/shm/cairnfs-$(cat "$TMP/store/.cairn/id")"'

# Bytes that only staging has, when everything is killed.
left_behind()	# NAME
{
	exec 7>"$m/$1"
	echo "$1" >&7 && sync "$m/$1" || die "$as: write and fsync"
	kill_mount "$m"
	exec 7>&-
	[ ! -e "$s/$1" ] || die "$as: the store has $1 already"
}

place_is()	# WHAT DIRECTORY
{
	local at
	at=$(status_field "$m" staging.dir)
	[ "$at" = "$2/cairnfs-$(cat "$s/.cairn/id")" ] || die "$as, $1: staging is in $at"
	status_field "$m" notices | has "staging is in $at" || die "$as, $1: not said: $(status_field "$m" notices)"
}

opts=staging=64M,fsync=staged
unset XDG_RUNTIME_DIR
start_mount "$s" "$m" $opts
place_is "without \$XDG_RUNTIME_DIR" /dev/shm
left_behind one

# The other place can be used as well now: staging stays where it is.
mkdir "$TMP/xdg" && mount -t tmpfs none "$TMP/xdg" || die "mount"
export XDG_RUNTIME_DIR=$TMP/xdg
start_mount "$s" "$m" $opts
place_is "found again" /dev/shm
[ "$(cat "$m/one")" = one ] || die "$as: what was staged in /dev/shm is lost"
stop_mount "$m"
[ "$(cat "$s/one")" = one ] || die "$as: what was staged in /dev/shm did not reach the store"
[ ! -e "/dev/shm/cairnfs-$(cat "$s/.cairn/id")" ] || die "$as: staging stays in /dev/shm after a clean end"

# /dev/shm is no tmpfs.
mkdir "$TMP/shm" && mount --bind "$TMP/shm" /dev/shm || die "mount"
start_mount "$s" "$m" $opts
place_is "/dev/shm cannot be used" "$TMP/xdg"
left_behind two
umount /dev/shm
start_mount "$s" "$m" $opts
place_is "found again in \$XDG_RUNTIME_DIR" "$TMP/xdg"
[ -z "$(find /dev/shm -maxdepth 1 -name "cairnfs-$(cat "$s/.cairn/id")")" ] || die "$as: two stagings for one store"
[ "$(cat "$m/two")" = two ] || die "$as: what was staged in \$XDG_RUNTIME_DIR is lost"
stop_mount "$m"
[ "$(cat "$s/two")" = two ] || die "$as: what was staged in \$XDG_RUNTIME_DIR did not reach the store"

# None can be used: refused, and nothing is left of the tries.
mount --bind "$TMP/shm" /dev/shm
unset XDG_RUNTIME_DIR
try_mount "$s" "$m" $opts 2>"$TMP/err" && die "$as: mounted without a place for staging"
has -- '-o staging_dir=DIR\|cannot make staging' "$TMP/err" || die "$as: it says: $(cat "$TMP/err")"
[ -z "$(ls -A /dev/shm)" ] || die "$as: left behind: $(ls -A /dev/shm)"
umount /dev/shm
umount "$TMP/xdg"
