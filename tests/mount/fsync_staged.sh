#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# fsync=staged promises nothing but that the bytes are staged: no version is made of bytes that their
# writer may still change. What was fsynced outlives all processes, and takes its place at the close.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool python3

s=$TMP/store m=$TMP/m
start_mount "$s" "$m" staging=256M,fsync=staged

# Write A, fsync, overwrite by a longer B, not closed. A later file is durable: what is in the store of the
# earlier ones must be A, or nothing. Then they are closed.
python3 - "$m" "$s" <<'PY' || die "a version that never was"
import ctypes, os, sys, time
mnt, store = sys.argv[1:3]

def durable(name):
    while os.getxattr(f"{mnt}/{name}", "user.cairn.state") != b"durable":
        time.sleep(0.002)

def later(name):
    with open(f"{mnt}/{name}", "w") as f:
        f.write("later")
    durable(name)

def stored(name):
    path = f"{store}/{name}"
    return open(path, "rb").read() if os.path.exists(path) else None

bad, fds = [], []
for i in range(9):
    fd = os.open(f"{mnt}/f{i}", os.O_CREAT | (os.O_RDWR if i % 2 else os.O_WRONLY))
    size = (4096, 65536, 1 << 20)[i % 3]
    os.pwrite(fd, b"A" * size, 0)
    os.fsync(fd)
    os.pwrite(fd, b"B" * (size + 1000), 0)
    later(f"later{i}")
    if stored(f"f{i}") not in (None, b"A" * size):
        bad.append(i)
    assert os.getxattr(f"{mnt}/f{i}", "user.cairn.state") == b"open"
    fds.append((fd, size))
for i, (fd, size) in enumerate(fds):
    os.close(fd)
    durable(f"f{i}")
    if stored(f"f{i}") != b"B" * (size + 1000):
        bad.append(f"f{i} after its close")

# As O_SYNC: every write is followed by an fsync.
fd = os.open(f"{mnt}/sync", os.O_CREAT | os.O_WRONLY | os.O_SYNC)
for i in range(20):
    os.pwrite(fd, bytes([65 + i]) * 100000, 0)
later("later-sync")
if stored("sync") is not None and len(set(stored("sync"))) > 1:
    bad.append("sync")
os.close(fd)
durable("sync")
if stored("sync") != b"T" * 100000:
    bad.append("sync after its close")

# Closed and still mapped, fsynced by another descriptor: final when the mapping is gone.
fd = os.open(f"{mnt}/mapped", os.O_CREAT | os.O_RDWR)
os.pwrite(fd, b"A" * (4 << 20), 0)
libc = ctypes.CDLL(None)	# Python's own mmap keeps the file open
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_size_t(4 << 20), 3, 1, fd, ctypes.c_long(0))
os.close(fd)
fd = os.open(f"{mnt}/mapped", os.O_RDONLY)
os.fsync(fd)
for page in range(0, 4 << 20, 4096):
    ctypes.memset(at + page, ord("B"), 4096)
libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(4 << 20))
os.close(fd)
durable("mapped")
if stored("mapped") != b"B" * (4 << 20):
    bad.append("mapped")
if bad:
    sys.exit(f"torn or wrong in the store: {bad}")
PY

# A program that fsyncs before it writes, closes and renames, as older DCP and Megatron do.
python3 - "$m" <<'PY' || die "fsync first"
import os, sys
os.mkdir(sys.argv[1] + "/step-1")
fd = os.open(sys.argv[1] + "/step-1/.metadata.tmp", os.O_CREAT | os.O_WRONLY)
os.fsync(fd)
os.write(fd, b"all of it")
os.close(fd)
os.rename(sys.argv[1] + "/step-1/.metadata.tmp", sys.argv[1] + "/step-1/.metadata")
PY
wait_durable "$m/step-1"
[ "$(ls -A "$s/step-1")" = .metadata ] && [ "$(cat "$s/step-1/.metadata")" = "all of it" ] || die "step-1: $(ls -A "$s/step-1")"

# Everything is killed while files are open and fsynced. Nobody can write them any more: they are sealed as they
# are, under the names they have by then; what was removed stays removed.
coproc TRAINER { exec python3 -c 'import os, sys
mnt = sys.argv[1]
def begin(name, flags=os.O_CREAT | os.O_WRONLY, at=0):
    fd = os.open(f"{mnt}/{name}", flags)
    os.pwrite(fd, name.encode() * 1000, at)
    os.fsync(fd)
    return fd
begin("plain")
begin("renamed.tmp"); os.rename(f"{mnt}/renamed.tmp", f"{mnt}/renamed")
begin("removed"); os.unlink(f"{mnt}/removed")
begin("joined"); begin("joined", os.O_WRONLY, 6000)
begin("later0", os.O_WRONLY)
lost = os.open(f"{mnt}/never", os.O_CREAT | os.O_WRONLY); os.write(lost, b"not fsynced")
print("ready", flush=True)
sys.stdin.read()' "$m"; }
on_exit 'kill "$TRAINER_PID" 2>/dev/null'
read -r -t 60 line <&"${TRAINER[0]}" && [ "$line" = ready ] || die "the trainer: $line"
kill_mount "$m"
[ ! -e "$s/plain" ] || die "published before its close"
start_mount "$s" "$m" staging=256M,fsync=staged
times() { python3 -c 'import sys; sys.stdout.write(sys.argv[1] * int(sys.argv[2]))' "$1" "$2"; }
[ "$(cat "$s/plain")" = "$(times plain 1000)" ] || die "plain: $(ls -l "$s")"
[ "$(cat "$s/renamed")" = "$(times renamed.tmp 1000)" ] || die "renamed"
[ "$(cat "$s/joined")" = "$(times joined 2000)" ] || die "joined: $(ls -l "$s/joined")"
[ "$(cat "$s/later0")" = "$(times later0 1000)" ] || die "later0"
[ ! -e "$s/renamed.tmp" ] && [ ! -e "$s/removed" ] && [ ! -e "$s/never" ] || die "came back: $(ls "$s")"
found=$(ls "$s/.cairn/lost+found")
has '^never\.unclosed\.' <<<"$found" || die "never closed nor fsynced, and not in lost+found: $found"
! has -E '^(plain|renamed|joined|later0)' <<<"$found" || die "fsynced, and in lost+found: $found"
kill "$TRAINER_PID" 2>/dev/null
wait "$TRAINER_PID" 2>/dev/null
stop_mount "$m"
same=$(find "$s" -path "$s/.cairn" -prune -o -name '*.tmp' -print)
[ -z "$same" ] || die "left: $same"
