#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# All of cairnfs is killed, and the next start puts its mount in the place of the dead one: at no moment can a program
# make a file in the directory under both, where it would be hidden. A start that is refused leaves the dead mount.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool chattr lsattr nsenter prlimit unshare
at_mount=$BUILD/tests/mount/at_mount
"$at_mount" nothing true /bin/true || skip "seccomp cannot hold calls here"
store=$TMP/store
is_guarded() { lsattr -d "$1" | has '^[^ ]*i'; }

# Two places for mountpoints: a disk, in which another mount namespace sees what is mounted here, as a container does;
# a tmpfs.
make_disk disk ext4 64M
mount --make-shared "$TMP/disk"
mkdir "$TMP/memory" && mount -t tmpfs none "$TMP/memory" && mount --make-private "$TMP/memory" || die "mount"
on_exit 'umount -l "$TMP/memory"'
mkdir "$TMP/disk/mnt" "$TMP/memory/mnt"
unshare -m --propagation slave "$LIB_TOP/tests/lib/own_mounts" sleep 600 &
container=$!
on_exit 'kill $container'
retry 20 sh -c "[ \"\$(readlink /proc/$container/ns/mnt)\" != \"\$(readlink /proc/self/ns/mnt)\" ]" || die "unshare"

# Makes a file in the mount, in each namespace that sees it. A new mount that does not answer yet lets it wait.
cat >"$TMP/make" <<'END'
echo >>"$TMP/calls"
n=$(wc -l <"$TMP/calls")
for in in "" "nsenter -m -t $container"; do
	[[ -z $in || $mnt = $TMP/disk/* ]] || continue
	timeout -s KILL 2 $in sh -c ': >"$0"' "$mnt/$n${in:+c}" 2>/dev/null && echo "$n${in:+c}" >>"$TMP/made"
done
true
END
export container mnt TMP

# Both processes; the mount stays.
kill_all()
{
	local pids pid
	pids="$(keeper_pid "$mnt") $(worker_pid "$mnt")"
	# shellcheck disable=SC2086	# several pids
	kill -KILL $pids
	for pid in $pids; do
		retry 10 lib_pid_gone "$pid" || die "pid $pid survived SIGKILL"
	done
}

none_lost()	# WHAT
{
	local name
	while read -r name; do
		[ -e "$mnt/$name" ] || die "$1: file $name was made, and is not in the mount"
	done <"$TMP/made"
}

# A mount is killed and started anew, with a call of the start held at a time.
take_over()	# WHAT MOUNTPOINT REFUSED [OPTIONS]
{
	local what=$1 seen
	mnt=$2
	start_mount "$store" "$mnt" "${4:-}"
	echo "$what" >"$mnt/kept"
	sync "$mnt/kept"
	kill_all
	: >"$TMP/calls"
	: >"$TMP/made"
	LIB_WRAP=("$at_mount" "$3" "bash $TMP/make")
	start_mount "$store" "$mnt" "${4:-}" 2>"$TMP/said"
	LIB_WRAP=()
	has "taken over" "$TMP/said" || die "$what: it says: $(cat "$TMP/said")"
	[ -s "$TMP/calls" ] || die "$what: no call was held"
	none_lost "$what"
	[ "$(cat "$mnt/kept")" = "$what" ] || die "$what: what was there"
	seen=$(nsenter -m -t "$container" cat "$mnt/kept" 2>/dev/null)
	[ "$mnt" != "$TMP/disk/mnt" ] || [ "$seen" = "$what" ] || die "$what: the container does not see the mount"
	[ "$(awk -v p="$mnt" '$5 == p' /proc/self/mountinfo | wc -l)" = 1 ] || die "$what: several mounts"
	stop_mount "$mnt"
	[ -z "$(ls -A "$mnt")" ] || die "$what: under the mount are: $(ls -A "$mnt")"
	is_guarded "$mnt" && die "$what: the directory is immutable after a clean end"
	note "$what: $(wc -l <"$TMP/calls") calls held"
}

take_over "disk" "$TMP/disk/mnt" nothing
take_over "disk, guard" "$TMP/disk/mnt" nothing guard
take_over "tmpfs" "$TMP/memory/mnt" nothing
take_over "disk, before Linux 6.5" "$TMP/disk/mnt" beneath
take_over "disk, before Linux 6.5, guard" "$TMP/disk/mnt" beneath guard
if chattr +i "$TMP/memory/mnt" 2>/dev/null; then
	chattr -i "$TMP/memory/mnt"
	take_over "tmpfs, before Linux 6.5" "$TMP/memory/mnt" beneath
fi

# Before Linux 5.2 a start unmounts the dead mount first: it works, with the gap.
mnt=$TMP/memory/mnt
start_mount "$store" "$mnt"
kill_all
LIB_WRAP=("$at_mount" tree true)
start_mount "$store" "$mnt"
LIB_WRAP=()

# Without descriptors a start fails at each of its steps, also after the mount: then its own stays, dead.
kill_all
tries=0
for ((n = 10; n < 80; n++)); do
	LIB_WRAP=(prlimit "--nofile=$n:$n")
	try_mount "$store" "$mnt" 2>"$TMP/said" && break
	tries=$((tries + 1))
	is_mounted "$mnt" || die "$n descriptors: the dead mount is gone: $(cat "$TMP/said")"
	: 2>/dev/null >"$mnt/wrong" && die "$n descriptors: a file was made in the mountpoint"
done
LIB_WRAP=()
[ $n -lt 80 ] && [ $tries -gt 5 ] || die "$tries starts failed, the last with $n descriptors: $(cat "$TMP/said")"
note "$tries starts without descriptors"
stop_mount "$mnt"
start_mount "$store" "$mnt"

# Refused, by an option and because the store is served elsewhere: the dead mount stays.
refused()	# WHAT OPTIONS
{
	"$BUILD/cairnfs" "$store" "$mnt" -o "staging=64M,pool=0$2" 2>"$TMP/said" && die "$1: not refused"
	is_mounted "$mnt" || die "$1: the dead mount is gone: $(cat "$TMP/said")"
	: 2>/dev/null >"$mnt/wrong" && die "$1: a file was made in the mountpoint"
	has "taken over" "$TMP/said" && die "$1: it says: $(cat "$TMP/said")"
}
kill_all
refused "an option" ,tier_keep=2
start_mount "$store" "$TMP/other"
refused "served elsewhere" ,guard
stop_mount "$TMP/other"

# A program that makes files all the time, nothing held.
make_files()
{
	local i=0
	while [ ! -e "$TMP/enough" ]; do
		i=$((i + 1))
		: 2>/dev/null >"$mnt/w$1.$i" && echo "w$1.$i" >>"$TMP/made"
	done
}
: >"$TMP/made"
for round in 1 2 3; do
	rm -f "$TMP/enough"
	make_files $round &
	writer=$!
	start_mount "$store" "$mnt" 2>/dev/null
	retry 20 has -s "^w$round" "$TMP/made" || die "round $round: no file can be made"
	: >"$TMP/enough"
	wait $writer
	none_lost "round $round"
	kill_all
done
umount "$mnt"
[ -z "$(ls -A "$mnt")" ] || die "under the mount are: $(ls -A "$mnt" | head)"
start_mount "$store" "$mnt"
none_lost "at the end"
stop_mount "$mnt"
