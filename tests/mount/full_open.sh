#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 240
#
# A writer that keeps its file open fills the store and goes on: it gets ENOSPC, memory stays bounded, and status
# says why. When there is space again the same descriptor can be written, and all that was accepted is in the store.
# How much that is depends on how fast the writer is, and cairnfs: the store has space for all of it then.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

disk=$TMP/small store=$TMP/small/store mnt=$TMP/mnt MIB=1048576
make_disk small ext4 2560M

# write_on FLAGS NAME: writes until ENOSPC, waits for a line, goes on for 4 MiB, and closes
write_on()
{
	python3 - "$mnt/$2" "$1" "$TMP/go" >"$TMP/out" 3<>"$TMP/go" <<-'END'
	import errno, os, sys, time
	fd = os.open(sys.argv[1], getattr(os, sys.argv[2]) | os.O_CREAT | os.O_TRUNC)
	block, n = b"\7" * (1 << 20), 0
	def write(left):
	    global n
	    while left:
	        got = os.write(fd, left)
	        left, n = left[got:], n + got
	try:
	    while n < 1536 << 20:
	        write(block)
	    print("endless", flush=True)
	    os._exit(1)
	except OSError as e:
	    if e.errno != errno.ENOSPC:
	        raise
	print("full", n, flush=True)
	os.read(3, 1)
	end = time.monotonic() + 60
	want = n + (4 << 20)
	while n < want:
	    try:
	        write(block[:want - n])
	    except OSError as e:
	        if e.errno != errno.ENOSPC or time.monotonic() > end:
	            raise
	        time.sleep(0.05)
	os.close(fd)
	print("closed", n, flush=True)
	END
}
says() { "$BUILD/cairn" status "$mnt" | has "$1"; }
worker_is_new() { [ "$(worker_pid "$mnt")" != "$1" ]; }

tmpfs_mib() { df --output=size -BM "/run/cairnfs/$(cat "$store/.cairn/id")/small" | tail -n 1 | tr -dc 0-9; }

# slow_keeper PID NAME: the keeper, which makes the tmpfs small, is stopped. The writer waits for it, however long.
slow_keeper()
{
	local size=0 last=-1 still
	still=0
	while kill -0 "$1" && [ $still -lt 6 ]; do
		size=$(stat -c %s "$mnt/$2" 2>/dev/null || echo 0)
		[ "$size" = "$last" ] && [ "$size" -gt 0 ] && still=$((still + 1)) || still=0
		last=$size
		sleep 0.5
	done
	[ ! -s "$TMP/out" ] || die "$2: it wrote on: $(cat "$TMP/out")"
	note "$2: waits at $((last / MIB)) MiB"
	kill -CONT "$keeper"
}

# round FLAGS NAME [kill|stop]
round()
{
	local pid old n what
	leave_mib "$disk" 480
	helper files put "$mnt/old" $((240 * MIB)) 1 || die "$2: another file"
	wait_durable "$mnt" 60
	: >"$TMP/out"
	keeper=$(keeper_pid "$mnt")
	[ "${3:-}" != stop ] || kill -STOP "$keeper"
	write_on "$1" "$2" &
	pid=$!
	[ "${3:-}" != stop ] || slow_keeper $pid "$2"
	retry 100 grep -q . "$TMP/out" || die "$2: neither ENOSPC nor an end"
	read -r what n <"$TMP/out"
	[ "$what" = full ] || die "$2: 1.5 GiB went into 480 MiB: $(cat "$TMP/out")"
	n=$((n / MIB))
	note "$2: $(lane "$mnt/$2"): ENOSPC after $n MiB"
	if [ "$MODE" = fast ]; then
		[ "$(lane "$mnt/$2")" = fast ] || die "$2: not in the fast lane: the test is blind"
		says "their writes get ENOSPC" || die "$2: status does not say why: $("$BUILD/cairn" status "$mnt")"
	fi
	if [ "${3:-}" = kill ]; then
		old=$(worker_pid "$mnt")
		kill -KILL "$old"
		retry 30 worker_is_new "$old" || die "no new worker"
		n=$(tmpfs_mib)
		[ "$MODE" != fast ] || [ "$n" -lt 1024 ] || die "$2: without its worker the tmpfs has $n MiB"
	fi
	rm "$mnt/old" "$disk/filler"
	echo >"$TMP/go"
	wait $pid || die "$2: with space again: $(cat "$TMP/out")"
	[ "$MODE" != fast ] || retry 30 says "have space again" || die "$2: status does not say that it is over"
	wait_durable "$mnt" 60
	read -r what n < <(tail -n 1 "$TMP/out")
	[ "$(stat -c %s "$store/$2")" = "$n" ] || die "$2: $(stat -c %s "$store/$2") bytes in the store, not $n"
	cmp <(head -c "$n" /dev/zero | tr '\0' '\7') "$store/$2" || die "$2 is another in the store"
	rm "$mnt/$2"
	wait_durable "$mnt" 60
}

mkfifo "$TMP/go"
start_mount "$store" "$mnt" staging=64M
round O_WRONLY append
round O_RDWR rdwr
round O_WRONLY killed kill
[ "$MODE" != fast ] || round O_WRONLY held stop
# with space there is no limit
helper files put "$mnt/after" $((100 * MIB)) 3 || die "the mount works on"
wait_durable "$mnt" 60
n=$(status_field "$mnt" restarts)
[ "$n" = 1 ] || die "the worker was restarted $n times"
stop_mount "$mnt"
"$BUILD/cairn" verify -q "$store" >/dev/null || die "verify"
