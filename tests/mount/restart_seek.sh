#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# What has a place in a file or a directory goes on there after a worker's death: lseek(2) to data and holes, the end that
# O_APPEND writes at, a listing half read. In the relay lane one of the files was spilled while it was open, so that the
# next worker finds its bytes only after its descriptors.
. "$(dirname "$0")/../lib/lib.sh"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=64M
mkfifo "$TMP/go"
large=80	# outgrows staging
[ "$MODE" = relay ] || large=20
python3 - "$mnt" "$TMP" $large <<'END' &
import os, sys
top, tmp, large = sys.argv[1:]
MIB = 1 << 20


def places(fd):
    """Where data and holes begin, and the end."""
    out, at, end = [], 0, os.lseek(fd, 0, os.SEEK_END)
    while at < end:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, data, os.SEEK_HOLE)
        out.append((data, at))
    return out, end


os.mkdir(f"{top}/names")
names = {f"{i:0100}" for i in range(2000)}
for name in names:
    os.close(os.open(f"{top}/names/{name}", os.O_WRONLY | os.O_CREAT))
listing = os.scandir(f"{top}/names")
seen = [next(listing).name for _ in range(10)]

files = {}
for name, size in ("small", 2), ("large", int(large)):
    w = os.open(f"{top}/{name}", os.O_RDWR | os.O_CREAT)
    for i in range(size):
        os.pwrite(w, b"d" * MIB, i * MIB)
    os.pwrite(w, b"d" * MIB, (size + 16) * MIB)
    a = os.open(f"{top}/{name}", os.O_WRONLY | os.O_APPEND)
    r = os.open(f"{top}/{name}", os.O_RDONLY)
    files[name] = w, a, r, places(w), places(r)
open(f"{tmp}/ready", "w").close()
open(f"{tmp}/go").read()
for name, (w, a, r, w_was, r_was) in files.items():
    if places(r) != r_was or places(w) != w_was:
        sys.exit(f"{name}: {places(r)}, {places(w)}; before {r_was}, {w_was}")
    end = r_was[1]
    os.write(a, b"appended")
    if os.fstat(r).st_size != end + 8 or os.pread(r, 9, end) != b"appended":
        sys.exit(f"{name}: appended elsewhere: {os.fstat(r).st_size}, {os.pread(r, 9, end)}")
    if places(r)[1] != end + 8 or os.pread(r, 1, 0) != b"d":
        sys.exit(f"{name}: {places(r)} after an append")
    for fd in w, a, r:
        os.close(fd)
seen += [e.name for e in listing]
if len(seen) != len(names) or set(seen) != names:
    sys.exit(f"{len(seen)} names, {len(set(seen))} different, of {len(names)}")
END
user=$!
on_exit 'kill $user 2>/dev/null'
retry 30 test -e "$TMP/ready" || die "not ready"
kill -KILL "$(worker_pid "$mnt")"
retry 20 test "$(status_field "$mnt" restarts)" = 1 || die "no other worker"
: >"$TMP/go"
wait $user || die "after the worker's death: $?"
user=
wait_durable "$mnt"
[ "$(tail -c 8 "$store/large")$(tail -c 8 "$store/small")" = appendedappended ] || die "the store"
stop_mount "$mnt"
