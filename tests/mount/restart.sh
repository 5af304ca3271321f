#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# What is durable is not written again because a worker died: neither the next worker nor the one
# after it accepts a change that nobody made.
. "$(dirname "$0")/../lib/lib.sh"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=64M
python3 - "$mnt" <<'END' || die "writing"
import ctypes, mmap, os, sys, time
top = sys.argv[1]
os.makedirs(f"{top}/run/step-1")
os.chdir(f"{top}/run/step-1")
with open("large", "wb") as f:           # more than staging has space for: spilled
    for i in range(100):
        f.write(b"l" * (1 << 20))
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for i in range(2):                       # closed before its mapping goes
    fd = os.open(f"mapped{i}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 100000)
    at = libc.mmap(None, 100000, 3, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    time.sleep(0.5)
    ctypes.memset(at, 109, 100000)
    libc.munmap(at, 100000)
for i in range(8):                       # saved as many do
    with open(f"tmp{i}", "wb") as f:
        f.write(b"x" * 5000)
    os.rename(f"tmp{i}", f"saved{i}")
with open("both", "w+b") as f:           # read and written, synced, written on
    f.write(b"y" * 300000)
    f.flush()
    os.fsync(f.fileno())
    f.write(b"z" * 10)
with open("both", "r+b") as f:           # opened to write, and not written
    f.read(10)
os.chmod("both", 0o600)
open(f"{top}/other", "w").close()
END
wait_durable "$mnt"
# a link over a name is made beside, and moved there; a worker did not live to do that
scratch=$(echo "$store"/.cairn/*/tmp)/l24a89105a21b568
ln "$store/other" "$scratch" || die "ln"
find "$store/run" -printf '%p %i %T@ %C@\n' | sort >"$TMP/before"
accepted=$(status_field "$mnt" log.last_seq)
for i in 1 2; do
	kill -KILL "$(worker_pid "$mnt")"
	retry 20 test "$(status_field "$mnt" restarts)" = $i || die "no other worker"
	[ ! -e "$scratch" ] || die "a name of a file too many is left after $i deaths"
	sleep 1		# it looks for mappings that went several times a second
	wait_durable "$mnt"
	now=$(status_field "$mnt" log.last_seq)
	[ "$now" = "$accepted" ] || die "after $i deaths $now changes, where $accepted were made"
	find "$store/run" -printf '%p %i %T@ %C@\n' | sort >"$TMP/after"
	cmp "$TMP/before" "$TMP/after" || die "written again: $(diff "$TMP/before" "$TMP/after")"
done

# Fsynced and not written since, that is no new version either, whether it is closed before the worker
# dies or after it. What is written after the fsync is one.
mkfifo "$TMP/go"
python3 - "$mnt" "$TMP" <<'END' &
import os, sys, time
top, tmp = sys.argv[1:]
def synced(name):
    fd = os.open(f"{top}/{name}", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"s" * 100000)
    time.sleep(0.05)                     # before 6.13 times are coarse
    os.fsync(fd)
    return fd
os.close(synced("closed"))
left, more = synced("left"), synced("more")
os.close(synced("again"))
again = os.open(f"{top}/again", os.O_WRONLY | os.O_APPEND)
os.write(again, b"2")
open(f"{tmp}/synced", "w").close()
open(f"{tmp}/go").read()
os.write(more, b"3")
for fd in left, more, again:
    os.close(fd)
END
writer=$!
on_exit 'kill $writer 2>/dev/null'
retry 20 test -e "$TMP/synced" || die "no fsync"
retry 20 eval '[ "$(state "$mnt/closed")" = durable ]' || die "closed: $(state "$mnt/closed")"
inode() { stat -c %i "$store/$1"; }
closed=$(inode closed) left=$(inode left)
kill -KILL "$(worker_pid "$mnt")"
retry 20 test "$(status_field "$mnt" restarts)" = 3 || die "no other worker"
wait_durable "$mnt/closed"
: >"$TMP/go"
wait $writer || die "the writer: $?"
writer=
retry 20 eval '[ "$(status_field "$mnt" versions.open)" = 0 ]' || die "open: $(status_field "$mnt" versions)"
wait_durable "$mnt"
[ "$(inode closed)" = "$closed" ] || die "a file that was fsynced and closed is written again"
if printf '6.13\n%s\n' "$(uname -r)" | sort -CV; then
	[ "$(inode left)" = "$left" ] || die "a file that was not changed after its fsync is written again"
fi
[ "$(tail -c 2 "$store/more")" = s3 ] && [ "$(tail -c 2 "$store/again")" = s2 ] || die "what was written after the fsync is not there"
stop_mount "$mnt"
