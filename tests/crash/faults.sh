#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# P7: a store that fails, by the fault engine (CAIRNFS_FAULT). Trainers tolerate
# errors and record them. Whatever was answered with success must be in the store, whole
# and in order, when the faults are over; nothing hangs; an error that lasts is told.
#
#	single	one fault at the Nth store operation, for every N
#	rate	one in so many operations fails, all the time
#	lasting	every operation from the Nth on fails; then a start without faults
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"

points=$(share 20 "${1:-}")
kinds=(eio enospc edquot short delay lostsync)
told=0 halts=0 lost=0

# The daemon retries by itself, slowly; `retry` makes it quick.
is_drained_retrying()
{
	is_drained && return
	echo retry >"$MNT/.cairn/control" 2>/dev/null
	return 1
}

faulty_mount()
{
	export CAIRNFS_FAULT=$1
	POINT="seed $SEED, CAIRNFS_FAULT=$1"
	crash_mount "$TMP/store"
	unset CAIRNFS_FAULT
}

# A spilled file is in no staging: where its sync fails after the close was answered there is nothing to write it
# again from. That version may be missing if the log says so, and nothing else may.
check_told()
{
	local name args=()
	while IFS= read -r name; do
		args+=(-t "${name##*/}")
		lost=$((lost + 1))
	done < <(sed -n 's/.* the store could not write \(.*\): .*; that version is skipped.*/\1/p' "$TMP"/store/.cairn/*/log)
	[ ${#args[@]} = 0 ] || [ $((SEED % 7)) = 3 ] || point_fail "a version was lost, and little was spilled"
	check_tree "$@" "${args[@]}"
}

finish()
{
	retry 40 is_drained_retrying || {
		printf '%s\n' "$STATUS"
		point_fail "not drained 40 s after the faults"
	}
	check_told "$TMP/store/run" -a
	check_told "$MNT/run" -a
	[ "$ACKED" -gt 0 ] || point_fail "the trainers did nothing"
	told=$((told + FAILED))
	stop_mount "$MNT"
	crash_mount "$TMP/store"	# what a failed unlink has left goes now
	clean_stop
	check_told "$TMP/store/run" -a
	rm -rf "$TMP/store"
}

# Faults that come and go: the load ends by itself and the mount drains.
passing()
{
	faulty_mount "$1"
	load_start "$MNT/run" -e -n 4 -m 1024 -f 10
	load_wait 60
	[ "$REPLY" = 0 ] || point_fail "load: exit $REPLY"
	finish
}

# The file that status names says so itself, unless it was removed since.
halt_is_told()
{
	local path
	status_text path
	path=$MNT/$REPLY
	[ -n "$REPLY" ] || return 1
	[ -f "$path" ] || return 0
	[ "$(state "$path")" = failed ] && [ -n "$(xattr "$path" user.cairn.error)" ]
}

lasting()
{
	faulty_mount "$1"
	load_start "$MNT/run" -e -t 1500 -m 1024 -f 20
	load_wait 60
	read_status || point_fail "no status while the store fails"
	check_told "$TMP/store/run"
	told=$((told + FAILED))
	if ! is_drained; then
		[[ $STATUS != *'"halted":null'* && $STATUS != *'"halted": null'* ]] ||
			point_fail "publication stands still, but status names no halt: $STATUS"
		[ "$FAILED" -gt 0 ] || point_fail "a store that fails for good, and no trainer was told"
		halt_is_told || point_fail "the halted file's state does not say failed: $STATUS"
		halts=$((halts + 1))
	fi
	daemon_kill
	mount_drop
	crash_mount "$TMP/store"
	finish
}

for ((seed = CRASH_SEED; seed < CRASH_SEED + points; seed++)); do
	point_begin "$seed"
	pick 1 400
	n=$REPLY
	kind=${kinds[RANDOM % ${#kinds[@]}]}
	case $((seed % 5)) in
	0 | 1 | 2) passing "$seed:@$n:$kind" ;;
	3) passing "$seed:$((20 + RANDOM % 80)):eio,enospc,edquot,short,delay,lostsync" ;;
	4) lasting "$seed:@$((n / 4 + 20))+:${kinds[RANDOM % 3]}" ;;
	esac
done
note "$points runs on a failing store, $halts halts, $told errors told to trainers; longest call $LONGEST ms"
[ $lost = 0 ] || note "spilled versions that the log says are lost were missed $lost times"
