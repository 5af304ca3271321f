#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# P5: keeper, worker and trainers killed at seeded instants. The store is then a prefix
# (P1); the next start finds what was staged and makes it durable, also when it is killed
# itself, again and again. A point counts if something was acknowledged and not yet in
# the store at the kill. In the second half the store has had another host: nothing of this
# one's own is taken for that one's.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"

points=$(share 30 "${1:-}")
store=$TMP/store
done_points=0 empty=0 recoveries=0

# Starts cairnfs and kills it while it is recovering, or soon after.
killed_recovery()
{
	local pid
	"$BUILD/cairnfs" -f "$store" "$MNT" -o "$(mount_opts)" </dev/null 2>"$TMP/log" &
	pid=$!
	pick 0 80
	msleep "$REPLY"
	lib_pid_gone "$pid" && point_fail "cairnfs ended by itself: $(cat "$TMP/log")"
	kill -KILL $pid
	wait "$pid" 2>/dev/null
	retry 20 daemons_gone || point_fail "a daemon survives SIGKILL: $(our_daemons)"
	while is_mounted "$MNT"; do
		umount -l "$MNT"
	done
	recoveries=$((recoveries + 1))
}

kill_everything()
{
	case $((RANDOM % 3)) in
	0)
		kill "$LOAD"
		daemon_kill
		;;
	1)
		daemon_kill
		pick 0 30
		msleep "$REPLY"
		;;
	2)
		kill -KILL "$WORKER" 2>/dev/null
		kill "$LOAD"
		daemon_kill
		;;
	esac
	load_kill
	mount_drop
}

one_point()
{
	local run n
	point_begin "$1"
	run=run$SEED
	load_start "$MNT/$run" -t 60000 -f $((RANDOM % 3 * 6))
	pick 60 600
	msleep "$REPLY"
	"$TOOL/load" -c crash "$HIST"
	kill_everything
	check_tree "$store/$run" -k
	if [ "$ACKED" -gt 0 ] && [ "$LOST" -gt 0 ]; then
		done_points=$((done_points + 1))
	else
		empty=$((empty + 1))
	fi
	for ((n = RANDOM % 4; n > 1; n--)); do	# none in half of the points
		killed_recovery
		check_tree "$store/$run" -k
	done
	crash_mount "$store" $((SEED + 1))	# the next point goes on in it
	drain
	check_tree "$store/$run" -a -k
	[ $((RANDOM % 3)) != 0 ] || check_tree "$MNT/$run" -a -k
	within 60 rm -rf "${MNT:?}/$run" || point_fail "rm -rf $MNT/$run"
}

crash_mount "$store"
for ((seed = CRASH_SEED; done_points < points; seed++)); do
	if [ $done_points -ge $((points / 2)) ] && [ ! -e "$store/.cairn/elsewhere" ]; then
		mkdir -m 700 "$store/.cairn/elsewhere" && : >"$store/.cairn/elsewhere/lock" || die "another host"
	fi
	one_point "$seed"
	[ $empty -le $((done_points + 20)) ] || point_fail "staging was empty at $empty kills"
done
drain
clean_stop
left=$(find "$store" -mindepth 1 -path "$store/.cairn" -prune -o -print | head -n 5)
[ -z "$left" ] || die "left in the store: $left"
left=$(find "$store/.cairn/lost+found" -mindepth 1 2>/dev/null | wc -l)
note "$done_points kills of everything, $empty more with nothing staged; $recoveries recoveries killed; $left unclosed files in lost+found"
