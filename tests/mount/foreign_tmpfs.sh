#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# Staging in a tmpfs that is not ours, as in a container without --shm-size: smaller than staging=, and others fill it.
# Every file is taken and reaches the store; a notice says how much staging there is.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare

# A /dev/shm of 64 MiB, and a /run that takes nothing.
if [ -z "${CAIRN_INSIDE:-}" ]; then
	# shellcheck disable=SC2016	# the other shell's
	CAIRN_INSIDE=1 TMP=$TMP unshare -m "$LIB_TOP/tests/lib/own_mounts" bash -c 'mount -t tmpfs -o size=64M none /dev/shm &&
		mount -t tmpfs -o ro none /run && exec "$@"' - bash "$0"
	exit
fi
s=$TMP/store m=$TMP/mnt
head -c 30M /dev/urandom >"$TMP/bytes"

# save NAME: twice what fits, more than once; sizes are known from the second step on
save()
{
	local step rank
	for step in 1 2 3 4; do
		mkdir "$m/$1-$step"
		for rank in 0 1 2 3; do
			cat "$TMP/bytes" >"$m/$1-$step/rank$rank" || die "$1: step $step, rank $rank: was not taken"
		done
		if [ $step -gt 2 ]; then
			rm -r "$m/$1-$((step - 2))"
		fi
	done
	"$BUILD/cairn" wait "$m" || die "$1: is not durable"
	for step in 3 4; do
		for rank in 0 1 2 3; do
			cmp "$TMP/bytes" "$s/$1-$step/rank$rank" || die "$1: step $step, rank $rank: other bytes"
		done
	done
}

start_mount "$s" "$m" staging=1G
status_field "$m" notices | has "staging is 48 MiB instead of 1024: the tmpfs that it is in has 64 MiB" ||
	die "not said: $(status_field "$m" notices)"
save alone

# Another program takes half of it.
head -c 32M /dev/zero >/dev/shm/other
save shared
rm /dev/shm/other
stop_mount "$m"

# What one process has left when it is killed, the next finds, though it is more than staging now.
start_mount "$s" "$m" staging=48M,fsync=staged
exec 7>"$m/left"
head -c 20M "$TMP/bytes" >&7 && sync "$m/left" || die "write and fsync"
kill_mount "$m"
exec 7>&-
start_mount "$s" "$m" staging=8M
stop_mount "$m"
cmp <(head -c 20M "$TMP/bytes") "$s/left" || die "what was staged is lost"

# Too little for anything: refused, and nothing is left.
mount -t tmpfs -o size=4M none /dev/shm || die "mount"
try_mount "$s" "$m" staging=1G 2>"$TMP/err" && die "mounted with 4 MiB for staging"
has 'has 4096 KiB, which is too little' "$TMP/err" || die "it says: $(cat "$TMP/err")"
[ -z "$(ls -A /dev/shm)" ] || die "left behind: $(ls -A /dev/shm)"
umount /dev/shm
