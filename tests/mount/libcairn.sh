#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 240
#
# A trainer on libcairn: on the mount, through the fake CUDA driver and without one, and on a plain
# directory. Fast and posix: shards are made of the mount's memory, the same few pieces step after
# step. Relay: the same calls write. Bytes, sizes and devices are those written, in the mount and in the store.
. "$(dirname "$0")/../lib/lib.sh"

store=$TMP/store mnt=$TMP/mnt size=$((5 << 20)) fake=$BUILD/tests/fake_cuda
start_mount "$store" "$mnt" staging=256M

with_fake() { LD_LIBRARY_PATH=$fake FAKE_CUDA_STRICT=1 FAKE_CUDA_LOG=$TMP/log helper libcairn "$@"; }
without() { helper libcairn "$@"; }
counted() { awk -v n="$1" '$1 == n { print $2 }' "$TMP/log"; }
value() { sed -n "s/^$1:.* $2 \([0-9]*\).*/\1/p" "$TMP/out"; }

fast=
if [ "$MODE" != relay ] && [ "$(status_field "$mnt" passthrough)" = true ]; then
	fast=1
fi
[ "$MODE" = relay ] || [ -n "$fast" ] || note "no passthrough here: shards are written"

# Nothing but libc is linked, nothing but the interface is seen. (Sanitizers add their own.)
others() { awk '$3 !~ /^cairn_/ { print; bad = 1 } END { exit !bad }'; }
if [ -z "$(cat "$BUILD/sanitizer" 2>/dev/null)" ]; then
	objdump -p "$BUILD/libcairn.so" | grep NEEDED | grep -v 'libc\.so\|libdl\.so\|ld-linux' &&
		die "libcairn.so needs other libraries"
	nm -D --defined-only "$BUILD/libcairn.so" | others && die "libcairn.so exports other symbols"
	nm -g --defined-only "$BUILD/libcairn.a" | grep ' T ' | others && die "libcairn.a has other symbols"
fi

# HOW DIR: checkpoints, twice two of them to get the memory, none after that
run()
{
	local how=$1 dir=$2 step
	mkdir -p "$dir"
	"$how" steps "$dir" 6 3 $size >"$TMP/out" 2>"$TMP/err" || die "$how steps: $(cat "$TMP/err")"
	cat "$TMP/out"
	"$how" read "$dir" 6 3 $size || die "$how read"
	[ "$(value 'all steps' shards)" = 18 ] || die "shards"
	[ "$(value 'all steps' mapped)" = "$(value 'two steps' mapped)" ] ||
		die "memory was mapped after the second step"
	[ "$(value 'all steps' registrations)" = "$(value 'two steps' registrations)" ] ||
		die "memory was registered after the second step"
	for step in 0 5; do
		[ "$(stat -c %s "$dir/step-$step/shard-1")" = $((size - step)) ] || die "size of step $step"
	done
}

for how in without with_fake; do
	run $how "$mnt/$how"
	if [ -n "$fast" ]; then
		[ "$(value 'all steps' own)" = 0 ] || die "$how: shards were not made of the mount's memory"
		[ "$(value 'all steps' written)" = 0 ] || die "$how: bytes were written"
	else
		[ "$(value 'all steps' written)" != 0 ] || die "$how: nothing was written"
	fi
	run $how "$TMP/plain-$how"
done
[ "$(counted registered_now)" = 0 ] || die "registrations are left"
[ "$(counted violations)" = 0 ] || die "violations"
if [ "$(counted cuMemHostRegister)" -eq 0 ]; then die "the fake was not used"; fi

if [ -n "$fast" ]; then
	[ "$(without mount "$mnt/without/step-1")" = "$mnt" ] || die "the mount was not found"
	[ -z "$(cat "$TMP/err")" ] || die "told without need: $(cat "$TMP/err")"
fi

# one file, overwritten, its size going up and down in the same memory
for how in without with_fake; do
	$how over "$mnt/over-$how" 24 $size || die "$how over"
done

# a reader maps versions before they are durable
without kept "$mnt/kept" $size || die "kept"

# a mount with too little space: what it cannot give is written
start_mount "$TMP/store2" "$TMP/mnt2" staging=24M
mkdir "$TMP/mnt2/run"
without steps "$TMP/mnt2/run" 4 6 $size >"$TMP/out" 2>"$TMP/err" || die "little space: $(cat "$TMP/err")"
cat "$TMP/out" "$TMP/err"
without read "$TMP/mnt2/run" 4 6 $size || die "read, little space"
[ "$(value 'all steps' own)" = 0 ] || [ "$(grep -c '^notice: .*write(2)' "$TMP/err")" = 1 ] ||
	die "not told, or told more than once"
stop_mount "$TMP/mnt2"

# errors of the driver: slower, not other
mkdir "$mnt/sick"
FAKE_CUDA_FAIL=cuMemHostRegister=2 with_fake steps "$mnt/sick" 2 1 $size >/dev/null 2>"$TMP/err" ||
	die "registration refused: $(cat "$TMP/err")"
[ "$(grep -c '^notice: .*CUDA_ERROR_OUT_OF_MEMORY' "$TMP/err")" = 1 ] || die "told not once: $(cat "$TMP/err")"
with_fake read "$mnt/sick" 2 1 $size || die "read sick"
mkdir "$mnt/lost"
if FAKE_CUDA_FAIL=cuMemcpyDtoHAsync=700@3 with_fake steps "$mnt/lost" 3 1 $size >/dev/null 2>"$TMP/err"; then
	die "a failed copy was not told"
fi
grep -q CUDA_ERROR_ILLEGAL_ADDRESS "$TMP/err" || die "why? $(cat "$TMP/err")"
[ "$(ls "$mnt/lost/step-0")" = shard-0 ] || die "step 0"
[ -z "$(ls "$mnt/lost/step-1")" ] || die "a shard whose copy failed has a name"

# killed, wherever it is: no memory stays lent, staging empties
mkdir "$mnt/held"
for pause in 0 0.03 0.1; do
	without hold "$mnt/held" $size >"$TMP/ready" &
	pid=$!
	retry 20 grep -q ready "$TMP/ready" || die "hold"
	sleep $pause
	kill -KILL $(ps -o pid= --ppid $pid) $pid 2>/dev/null
	wait $pid 2>/dev/null
done
wait_durable "$mnt"
none_left() { [ -z "$fast" ] || [ "$(status_field "$mnt" buffers.count)" = 0 ]; }
retry 20 none_left || die "buffers are left: $(status_field "$mnt" buffers)"
! ls -A "$mnt/held" | grep -v '^hold-[0-3]$' | grep -v '^\.hold-[0-3]\.cairn-' || die "odd names"
rm -f "$mnt"/held/.hold*

wait_durable "$mnt"
cp -a "$mnt/." "$TMP/copy" 2>/dev/null
stop_mount "$mnt"
rm -rf "$TMP/copy/.cairn"
same_tree "$TMP/copy" "$store"
