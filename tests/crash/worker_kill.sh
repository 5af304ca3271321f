#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# P4: kill -9 of the worker at seeded instants under load is a pause: no call of any
# trainer fails, nothing they wrote is lost, in the mount and, drained, in the store.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"

points=$(share 36 "${1:-}")
per_mount=4	# five deaths in 10 s are the keeper's limit
done_points=0 idle=0 worst=0

# Kills the worker now; counts it if something was under way.
kill_worker()
{
	local old before open
	read_status || point_fail "no status before the kill"
	status_text pid; old=$REPLY
	status_text pending; before=$REPLY
	status_text open; open=$REPLY
	now_ms; local t=$REPLY
	kill -KILL "$old" || point_fail "no worker $old to kill"
	until read_status && status_text pid && [ "$REPLY" != "$old" ]; do
		[ $SECONDS -lt "$deadline" ] || point_fail "no new worker after the kill of $old"
		sleep 0.005
	done
	WORKER=$REPLY
	now_ms
	[ $((REPLY - t)) -le $worst ] || worst=$((REPLY - t))
	if [ "$((before + open))" -gt 0 ]; then
		done_points=$((done_points + 1))
	else
		idle=$((idle + 1))
	fi
}

one_mount()
{
	local fsync k deadline=$((SECONDS + 120 * CAIRN_TEST_SLOW))
	point_begin "$1"
	fsync=$((RANDOM % 4 * 8))
	crash_mount "$TMP/store"
	load_start "$MNT/run" -t 60000 -f $fsync
	for ((k = 0; k < per_mount; k++)); do
		pick 20 300
		msleep "$REPLY"
		POINT="seed $SEED, kill $((k + 1))"
		kill_worker
	done
	pick 20 150
	msleep "$REPLY"
	"$TOOL/load" -c stop "$HIST"
	load_wait 60
	[ "$REPLY" = 0 ] || point_fail "a trainer saw an error"
	check_tree "$MNT/run" -a
	[ "$ACKED" -gt 0 ] || point_fail "the trainers did nothing"
	drain
	check_tree "$TMP/store/run" -a
	clean_stop
	rm -rf "$TMP/store"
}

for ((seed = CRASH_SEED; done_points < points; seed++)); do
	one_mount "$seed"
	[ $idle -le $((done_points + 20)) ] || point_fail "$idle kills hit nothing under way"
done
note "$done_points kills of the worker under load, $idle idle ones; a new worker answered after $worst ms at most; longest call of a trainer $LONGEST ms"
