#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 400
#
# Clients that commit buffers. Killed by SIGKILL at seeded instants, they leave no buffer, no
# memory of staging, and a prefix of their calls in mount and store; the worker killed under
# them is a pause; everything killed, the next start publishes what they committed.
#
#	CRASH_CLIENTS	clients that are killed (default 200)
#	CRASH_WORKERS	workers killed under a client (default 8)
#	CRASH_ALL	kills of everything (default 4)
#	CRASH_SEED	seed of the first
. "$(dirname "$0")/../lib/lib.sh"

: "${CRASH_CLIENTS:=200}" "${CRASH_WORKERS:=8}" "${CRASH_ALL:=4}" "${CRASH_SEED:=1}"
lender=$BUILD/tests/crash/lender
store=$TMP/store mnt=$TMP/mnt acks=$TMP/acks
RANDOM=$((CRASH_SEED % 32768))
need_root
[ -x "$lender" ] || die "$lender is not built"

start_mount "$store" "$mnt" staging=128M,pool=64M
need_passthrough "$mnt"
mkdir "$mnt/run"
said=$("$lender" kills "$mnt" "$mnt/run" "$store/run" "$CRASH_SEED" "$CRASH_CLIENTS") || die "$said"
note "$said"
[ "$(status_field "$mnt" restarts)" = 0 ] || die "the worker died of it"
stop_mount "$mnt"
rm -rf "$store"

# huge/ of a mount, by its status
staged() { ls "$(status_field "$mnt" staging.dir)/huge"; }

pick_ms() { printf '0.%03d' $(($1 + RANDOM % ($2 - $1))); }

# The worker's deaths: the client sees no error, its buffers stay its own.
left=$CRASH_WORKERS per_mount=4	# five in 10 s are the keeper's limit
for ((seed = CRASH_SEED; left > 0; seed++)); do
	start_mount "$store" "$mnt" staging=128M
	mkdir "$mnt/run"
	rm -f "$acks"
	"$lender" client "$mnt/run" "$acks" "$seed" 80 >"$TMP/client" &
	client=$!
	for ((k = 0; k < per_mount && left > 0; k++, left--)); do
		sleep "$(pick_ms 50 400)"
		old=$(worker_pid "$mnt")
		kill -KILL "$old" || die "seed $seed: no worker to kill"
		retry 20 eval '[ "$(worker_pid "$mnt")" != "$old" ]' || die "seed $seed: no new worker"
	done
	wait $client || die "seed $seed: a call of the client failed: $(cat "$TMP/client")"
	[ "$(status_field "$mnt" restarts)" = "$k" ] || die "seed $seed: $k kills, $(status_field "$mnt" restarts) restarts"
	"$lender" check "$mnt/run" "$acks" "$seed" 80 >"$TMP/said" || die "seed $seed: $(cat "$TMP/said")"
	wait_durable "$mnt"
	"$lender" check "$store/run" "$acks" "$seed" 80 >"$TMP/said" || die "seed $seed, store: $(cat "$TMP/said")"
	retry 10 eval '[ "$(status_field "$mnt" buffers.count)" = 0 ]' || die "seed $seed: buffers are left"
	! staged | has buffer || die "seed $seed: left in staging: $(staged)"
	"$BUILD/cairn" verify "$mnt" >"$TMP/said" || die "seed $seed: verify: $(cat "$TMP/said")"
	stop_mount "$mnt"
	[ ! -e "$store/.cairn/lost+found" ] || [ -z "$(ls "$store/.cairn/lost+found")" ] ||
		die "seed $seed: lost+found: $(ls "$store/.cairn/lost+found")"
	rm -rf "$store"
done
note "$CRASH_WORKERS workers killed under a client"

# The log starts anew while clients have buffers, and then the worker dies: they are as they were.
start_mount "$store" "$mnt" staging=128M
cat >"$TMP/rotated.py" <<'END'
import json, mmap, os, signal, sys, time
mnt = sys.argv[1]
os.chdir(mnt)
status = lambda: json.load(open(".cairn/status.json"))
size = 4 << 20

class Buffer:
    def __init__(self, name):
        self.path = ".cairn/buffers/%d.%s" % (size, name)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        self.map = mmap.mmap(self.fd, size)
    def state(self):
        return os.getxattr(self.fd, "user.cairn.buffer").decode()
    def commit(self, name, byte, length):
        self.map[:] = byte * size
        os.ftruncate(self.fd, length)
        os.link(self.path, name)
        while self.state() == "lent":
            time.sleep(0.01)

free, kept = Buffer("free"), Buffer("kept")
free.commit("a", b"a", 3 << 20)
os.setxattr(free.fd, "user.epoch", b"3")
for attempt in range(200):				# opened before it is durable
    kept.map[:] = b"k" * size
    os.ftruncate(kept.fd, 2 << 20)
    if attempt:
        os.unlink("k")
    os.link(kept.path, "k")
    reader = os.open("k", os.O_RDONLY)
    if kept.state() == "kept":
        break
    os.close(reader)
    while kept.state() == "lent":
        time.sleep(0.001)
assert kept.state() == "kept", kept.state()
os.ftruncate(free.fd, 1 << 20)
before = status()["log"]["bytes"]
open("x", "w").close()
while True:						# until it rotates
    for i in range(4000):
        os.close(os.open("x", os.O_RDONLY))
    time.sleep(0.3)
    now = status()["log"]["bytes"]
    if now < before:
        break
    before = now
old = status()["pid"]
os.kill(old, signal.SIGKILL)
assert (free.state(), kept.state()) == ("free", "kept"), (free.state(), kept.state())
assert status()["pid"] != old and status()["buffers"]["count"] == 2, status()["buffers"]
assert os.fstat(free.fd).st_size == 1 << 20 and os.fstat(free.fd).st_mode & 0o777 == 0o640
assert os.pread(reader, 1 << 23, 0) == b"k" * (2 << 20)
free.map[:] = b"b" * size				# the length is the one that was asked for
os.link(free.path, "b")
while free.state() == "lent":
    time.sleep(0.01)
assert os.getxattr("b", "user.epoch") == b"3"
for name, want in ("a", b"a" * (3 << 20)), ("b", b"b" * (1 << 20)), ("k", b"k" * (2 << 20)):
    assert open(name, "rb").read() == want, name
for b in free, kept:
    b.map.close()					# it has a descriptor of its own
    os.close(b.fd)
while status()["buffers"]["count"]:
    time.sleep(0.01)
assert os.pread(reader, 1 << 23, 0) == b"k" * (2 << 20)
END
within 120 python3 "$TMP/rotated.py" "$mnt" || die "after a rotation and the worker's death"
wait_durable "$mnt"
same_tree "$mnt" "$store"
stop_mount "$mnt"
rm -rf "$store"

# Everything: what was committed is published in order, what was only being filled is dropped.
for ((seed = CRASH_SEED; seed < CRASH_SEED + CRASH_ALL; seed++)); do
	start_mount "$store" "$mnt" staging=128M
	mkdir "$mnt/run"
	rm -f "$acks"
	"$lender" client "$mnt/run" "$acks" "$seed" 5000 >"$TMP/client" 2>&1 &
	client=$!
	sleep "$(pick_ms 20 500)"
	if [ $((seed % 2)) = 0 ]; then		# or it dies of the daemon's death
		kill -KILL $client
		wait $client 2>/dev/null
	fi
	kill_mount "$mnt"
	kill -KILL $client 2>/dev/null
	wait $client 2>/dev/null
	start_mount "$store" "$mnt" staging=128M
	"$lender" check "$mnt/run" "$acks" "$seed" >"$TMP/said" || die "seed $seed: $(cat "$TMP/said")"
	"$lender" check "$store/run" "$acks" "$seed" >"$TMP/said" || die "seed $seed, store: $(cat "$TMP/said")"
	[ -z "$(staged)" ] || die "seed $seed: left in staging: $(staged)"
	[ "$(status_field "$mnt" staging.used_bytes)" = 0 ] || die "seed $seed: staging is in use"
	[ -z "$(ls "$store/.cairn/lost+found")" ] || die "seed $seed: lost+found: $(ls "$store/.cairn/lost+found")"
	stop_mount "$mnt"
	rm -rf "$store"
done
note "$CRASH_ALL kills of everything"
