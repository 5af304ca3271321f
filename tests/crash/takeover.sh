#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
#
# All of cairnfs is killed and the next start comes at once, without a pause and without an umount:
# it takes the dead mount over every time, while processes have their cwd, open files and calls under
# way in the dead one, also when several dead mounts lie on top of each other.
. "$(dirname "$0")/../lib/lib.sh"

need_root
store=$TMP/store mnt=$TMP/mnt
rounds=${1:-17}
users=()

# A process that stays in the mount: cwd, an open file, calls that go on.
user()
{
	(
		cd "$mnt" || exit 0
		exec 8<"$mnt/f$1"
		[ "$1" != 3 ] || exec 9>"$mnt/open"	# a writer that stays costs the start some seconds
		while :; do
			: >"$mnt/g$1"
			stat "$mnt"
			sleep 0.02
		done
	) >/dev/null 2>&1 &
	users+=($!)
}

users_end()
{
	[ ${#users[@]} = 0 ] || kill -KILL "${users[@]}" 2>/dev/null
	wait "${users[@]}" 2>/dev/null
	users=()
}
on_exit users_end

kill_at_once()
{
	local keeper worker
	keeper=$(keeper_pid "$mnt") worker=$(worker_pid "$mnt")
	# The attributes of the root that the kernel keeps must not pass for an answer.
	[ $(($1 % 2)) = 0 ] || stat "$mnt" >/dev/null
	kill -KILL "$keeper" "$worker"
}

start_mount "$store" "$mnt" staging=64M
for ((i = 0; i < rounds; i++)); do
	echo "$i" >"$mnt/f$i" || die "round $i: write"
	user "$i"
	user "$i"
	sleep "0.0$((i % 7))"
	kill_at_once "$i"
	rc=0
	try_mount "$store" "$mnt" staging=64M 2>"$TMP/said" || rc=$?
	[ $rc = 0 ] || die "round $i: exit code $rc: $(cat "$TMP/said")"
	[ "$(cat "$mnt/f$i")" = "$i" ] || die "round $i: the file is not there"
	[ "$(awk -v p="$mnt" '$5 == p' /proc/self/mountinfo | wc -l)" = 1 ] || die "round $i: the dead mount is still there"
	users_end
done
stop_mount "$mnt"
for ((i = 0; i < rounds; i++)); do
	[ "$(cat "$store/f$i")" = "$i" ] || die "f$i is not in the store"
done
note "$rounds starts at once after a kill of everything"
