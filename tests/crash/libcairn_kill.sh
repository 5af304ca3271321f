#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 400
#
# Trainers on libcairn, with the fake driver every other time, killed by SIGKILL at seeded instants.
# Each leaves no buffer and, in mount and store, a prefix of its commits; with the tree removed staging
# holds what it held before.
#
#	CRASH_TRAINERS	how many are killed (default 200)
#	CRASH_SEED	seed of the first
. "$(dirname "$0")/../lib/lib.sh"

: "${CRASH_TRAINERS:=200}" "${CRASH_SEED:=1}"
store=$TMP/store mnt=$TMP/mnt size=$((1700 << 10))
RANDOM=$((CRASH_SEED % 32768))
need_root
start_mount "$store" "$mnt" staging=128M,pool=0
[ "$MODE" != fast ] || need_passthrough "$mnt"
used() { status_field "$mnt" staging.used_bytes; }
before=$(used)
for slot in 0 1 2 3; do mkdir -p "$mnt/run/slot-$slot"; done
wait_durable "$mnt"

none_left() { [ "$(status_field "$mnt" buffers.count)" = 0 ]; }
for ((n = 0; n < CRASH_TRAINERS; n++)); do
	driver=
	[ $((n % 2)) = 0 ] || driver=$BUILD/tests/fake_cuda
	LD_LIBRARY_PATH=$driver "$BUILD/tests/mount/libcairn" train "$mnt/run" $size 2>"$TMP/err" &
	pid=$!
	sleep "0.$(printf %03d $((RANDOM % 160)))"
	kill -KILL $pid || die "kill $n: the trainer ended by itself: $(cat "$TMP/err")"
	wait $pid 2>/dev/null
	retry 20 none_left || die "kill $n: buffers are left: $(status_field "$mnt" buffers)"
	"$BUILD/tests/mount/libcairn" prefix "$mnt/run" $size >"$TMP/said" 2>&1 || die "kill $n: $(cat "$TMP/said")"
	"$BUILD/tests/mount/libcairn" prefix "$store/run" $size >"$TMP/stored" 2>&1 ||
		die "kill $n, store: $(cat "$TMP/stored")"
	rm -f "$mnt"/run/.*.cairn-* "$mnt"/run/slot-*/.*.cairn-*
done
note "$CRASH_TRAINERS trainers killed: $(cat "$TMP/said")"
[ "$(sed -n 's/newest //p' "$TMP/said")" -gt $((CRASH_TRAINERS / 4)) ] || die "they were killed before they did anything"
[ "$(status_field "$mnt" restarts)" = 0 ] || die "the worker died of it"
wait_durable "$mnt"
"$BUILD/tests/mount/libcairn" prefix "$store/run" $size >"$TMP/stored" || die "store, at the end"
cmp -s "$TMP/said" "$TMP/stored" || die "mount: $(cat "$TMP/said"), store: $(cat "$TMP/stored")"
rm -rf "$mnt/run"
wait_durable "$mnt"
as_before() { [ "$(used)" -le "$before" ]; }
retry 20 as_before || die "staging held $before bytes, now $(used)"
stop_mount "$mnt"
[ ! -e "$store/.cairn/lost+found" ] || [ -z "$(ls "$store/.cairn/lost+found")" ] ||
	die "lost+found: $(ls "$store/.cairn/lost+found")"
