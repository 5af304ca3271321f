#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 120
#
# The crash suite's own oracle: it must accept every tree a right publisher could leave
# and find each fault a wrong one could have. No mount is needed.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"

faults="order metadata torn cut mixed swapped synced resurrect halfrename stray attr links relent unlent"
declare -A found=()
right=0

# One try of a fault on the history of load $1; 3 = no place for it there.
try_fault()
{
	local seed=$1 fault=$2 rc=0
	rm -rf "$TMP/tree"
	"$TOOL/model" "$TMP/hist" "$TMP/cut" "$TMP/tree" "$seed" "$fault" >"$TMP/model.out" 2>&1 || rc=$?
	[ $rc = 3 ] && return 0
	[ $rc = 0 ] || die "model, seed $seed, $fault: $(cat "$TMP/model.out")"
	rc=0	# a trainer's death closes files, but commits no buffer
	# shellcheck disable=SC2046
	"$TOOL/check" $([ "$fault" != unlent ] || echo -k) "$TMP/cut" "$TMP/tree" >"$TMP/check.out" || rc=$?
	if [ "$fault" = none ]; then
		[ $rc = 0 ] || die "a right tree is refused, load $load, seed $seed: $(cat "$TMP/model.out" "$TMP/check.out")"
		right=$((right + 1))
		return 0
	fi
	[ $rc = 1 ] || die "fault '$fault' not seen, load $load, seed $seed: exit $rc, $(cat "$TMP/model.out" "$TMP/check.out")"
	found[$fault]=$((${found[$fault]:-0} + 1))
}

# Trainers killed on a plain directory: what they died in is allowed, nothing else.
killed_trainers()
{
	local rc=0 victim
	rm -rf "$TMP/dir" "$TMP/hist"
	"$TOOL/load" -m 1024 -t 5000 "$TMP/dir" "$TMP/hist" "$1" &
	retry 60 test -e "$TMP/hist" || die "load $1 does not start"
	sleep "0.$((100 + $1 * 37 % 300))"
	kill $!
	wait $! || die "load $1 failed"
	"$TOOL/check" -q -a -k "$TMP/hist" "$TMP/dir" || die "killed trainers, load $1"
	victim=$(find "$TMP/dir" -name '__*.distcp' -size +8 | sort | head -n 1)
	[ -n "$victim" ] || return 0
	truncate -s -4000 "$victim"
	"$TOOL/check" -q -a -k "$TMP/hist" "$TMP/dir" >"$TMP/check.out" || rc=$?
	[ $rc = 1 ] || die "killed trainers, load $1: a cut file is not seen"
}

# A version that the daemon says is lost may be missing, and no other.
told_loss()
{
	local victim rc=0
	rm -rf "$TMP/dir"
	"$TOOL/load" -m 1024 -n 4 -t 60000 "$TMP/dir" "$TMP/hist" 1 || die "load 1"
	victim=$(find "$TMP/dir" -name '__*.distcp' | sort | head -n 1)
	rm "$victim"
	"$TOOL/check" -q -a -t "$(basename "$victim")" "$TMP/hist" "$TMP/dir" || die "what was told to be lost is not excused"
	"$TOOL/check" -q -a -t no.distcp "$TMP/hist" "$TMP/dir" >"$TMP/check.out" || rc=$?
	[ $rc = 1 ] || die "a file is missing, and it is not seen"
}

# A trainer that dies by itself before the crash is a fault, whatever the tree is.
dead_trainer()
{
	local load rc=0
	rm -rf "$TMP/dir" "$TMP/hist"
	"$TOOL/load" -m 1024 -t 5000 "$TMP/dir" "$TMP/hist" 1 2>"$TMP/load.err" &
	load=$!
	retry 60 test -e "$TMP/hist" || die "load 1 does not start"
	retry 60 pkill -BUS -o -P $load || die "no trainer to kill"
	wait $load && die "a trainer's death is no failure"
	"$TOOL/check" -q -a -k "$TMP/hist" "$TMP/dir" >"$TMP/check.out" || rc=$?
	[ $rc = 1 ] || die "a trainer that died of SIGBUS is not seen: $(cat "$TMP/load.err")"
}

for load in 1 2 3 4 5; do
	rm -rf "$TMP/dir"
	"$TOOL/load" -m 1024 -f 8 -n 12 -t 60000 "$TMP/dir" "$TMP/hist" "$CRASH_SEED$load" || die "load $load"
	"$TOOL/check" -q -a "$TMP/hist" "$TMP/dir" || die "a plain directory is refused, load $load"
	for fault in none none none none $faults; do
		[ "$fault" = none ] || [ "${found[$fault]:-0}" -lt 2 ] || continue
		for try in 1 2 3; do
			try_fault "$((RANDOM * 100 + try))" "$fault"
		done
	done
	killed_trainers "$load"
done
told_loss
dead_trainer
for fault in $faults; do
	[ "${found[$fault]:-0}" -gt 0 ] || die "no history had a place for '$fault'"
done
note "$right right trees accepted; faults found: $(for f in $faults; do printf '%s %s, ' "$f" "${found[$f]}"; done)"
