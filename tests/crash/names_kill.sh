#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 120
#
# P4, of names: kill -9 of the worker at seeded instants while names come and go, several of one file, empty files,
# renames over each other, files that stay open meanwhile. Every name that is listed opens, and all is as a model has
# it: in the mount at each moment, in the mount and in the store when all is durable. `cairn verify` agrees with
# `cairn wait`.
# For a campaign: bash tests/crash/names_kill.sh 500
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"

points=$(share 6 "${1:-}")
per_mount=4	# five deaths in 10 s are the keeper's limit
kills=0 worst=0 calls=0 checks=0
NAMES=

# With CRASH_KEEP the calls, the store with its log, and staging are kept.
names_fail()
{
	if [ -n "${CRASH_KEEP:-}" ]; then
		mkdir -p "$CRASH_KEEP/$MODE.$SEED"
		cp -a "$TMP"/model* "$TMP/store" "$STAGING" "$CRASH_KEEP/$MODE.$SEED/" 2>/dev/null
	fi
	CRASH_KEEP='' point_fail "$@"
}

names_cleanup() { [ -z "$NAMES" ] || kill -KILL "$NAMES" 2>/dev/null; }
on_exit names_cleanup

# The mode is the lane; by the seed only what is not.
names_opts()
{
	local opts=staging=256M,pool=0 mode
	mode=$(lib_mode_opts)
	[ $((SEED % 7)) != 3 ] || opts=staging=32M,pool=0
	[ $((SEED % 5)) != 4 ] || opts=$opts,fsync=staged
	echo "$opts${mode:+,$mode}"
}

names_mount()
{
	mkdir -p "$TMP/store" "$MNT"
	LIB_STORE[$MNT]=$TMP/store
	within 60 "$BUILD/cairnfs" "$TMP/store" "$MNT" -o "$(names_opts)" </dev/null || names_fail "cairnfs: exit code $?"
	read_daemon
}

kill_worker()
{
	local old=$WORKER t
	now_ms; t=$REPLY
	kill -KILL "$old" || names_fail "no worker $old to kill"
	until read_status && status_text pid && [ "$REPLY" != "$old" ]; do
		[ $SECONDS -lt "$deadline" ] || names_fail "no new worker after the kill of $old"
		sleep 0.005
	done
	WORKER=$REPLY
	now_ms
	[ $((REPLY - t)) -le $worst ] || worst=$((REPLY - t))
	kills=$((kills + 1))
}

# as_foreseen TREE
as_foreseen()
{
	local n
	for n in 0 1 2; do
		"$TOOL/names" -l "$1/r$n" >"$TMP/listing"
		diff "$TMP/model.$n" "$TMP/listing" || names_fail "$1/r$n is not as foreseen"
	done
}

one_mount()
{
	local k deadline=$((SECONDS + 120 * CAIRN_TEST_SLOW))
	point_begin "$1"
	names_mount
	"$TOOL/names" "$MNT" "$TMP/model" "$SEED" >"$TMP/said" &
	NAMES=$!
	for ((k = 0; k < per_mount; k++)); do
		pick 20 350
		msleep "$REPLY"
		POINT="seed $SEED, kill $((k + 1))"
		lib_pid_gone "$NAMES" && names_fail "the load ended by itself"
		kill_worker
	done
	pick 20 200
	msleep "$REPLY"
	kill "$NAMES"
	retry 60 lib_pid_gone "$NAMES" || names_fail "the load hangs"
	wait "$NAMES" || names_fail "the load: exit code $?"
	NAMES=
	[[ $(cat "$TMP/said") =~ calls=([0-9]+)\ checks=([0-9]+) ]] || names_fail "the load said $(cat "$TMP/said")"
	calls=$((calls + BASH_REMATCH[1])) checks=$((checks + BASH_REMATCH[2]))
	within 60 "$BUILD/cairn" wait "$MNT" >"$TMP/out" 2>&1 || names_fail "cairn wait: $(cat "$TMP/out")"
	within 60 "$BUILD/cairn" verify "$MNT" >"$TMP/out" 2>&1 || names_fail "cairn verify: $(cat "$TMP/out")"
	has ' 0 not durable' "$TMP/out" || names_fail "cairn verify: $(cat "$TMP/out")"
	as_foreseen "$MNT"
	as_foreseen "$TMP/store"
	clean_stop
	as_foreseen "$TMP/store"
	[ ! -e "$TMP/store/.cairn/lost+found" ] || [ -z "$(ls -A "$TMP/store/.cairn/lost+found")" ] ||
		names_fail "lost+found: $(ls "$TMP/store/.cairn/lost+found")"
	rm -rf "$TMP/store"
}

for ((seed = CRASH_SEED; kills < points; seed++)); do
	one_mount "$seed"
done
note "$kills kills of the worker, $calls calls, $checks trees compared; a new worker answered after $worst ms at most"
