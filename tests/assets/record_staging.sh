#!/bin/bash
# SPDX-License-Identifier: MIT
# record_staging.sh CAIRNFS OUT: a staging area as this program leaves it when it is killed, with all kinds of
# records in its order; OUT/tree says what the mount showed. Run as root once for each released version;
# tests/mount/upgrade.sh replays all of them.
set -eu
cairnfs=$1 out=$2 t=$(mktemp -d)
mkdir "$t/s" "$t/m" "$t/run"
"$cairnfs" "$t/s" "$t/m" -o "staging=64M,ballast=0,staging_dir=$t/run"
echo old >"$t/m/replaced"
echo old >"$t/m/removed"
python3 -c 'import os, sys, time
while os.getxattr(sys.argv[1], "user.cairn.state") != b"durable": time.sleep(0.01)' "$t/m"
# Closed and mapped: what comes behind it in the order stays staged.
# (The mmap of Python would keep the file open.)
coproc HOLD { exec python3 -c 'import ctypes, os, sys
fd = os.open(sys.argv[1] + "/mapped", os.O_CREAT | os.O_RDWR, 0o644)
os.write(fd, b"mapped" * 1000)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, ctypes.c_size_t(6000), 3, 1, fd, ctypes.c_long(0)) != ctypes.c_void_p(-1).value
os.close(fd)
print("ready", flush=True)
sys.stdin.read()' "$t/m"; }
read -r _ <&"${HOLD[0]}"
cd "$t/m"
mkdir dir dir/below gone moved
echo new >replaced
rm removed
echo one >dir/one && mv dir/one dir/below/renamed
python3 -c 'open("dir/large", "wb").write(bytes(range(256)) * 256)'
: >dir/empty
ln dir/large dir/linked
ln -s below/renamed dir/symlink
mkfifo dir/fifo
chmod 0600 dir/empty && chown 12:34 dir/empty && touch -d '2001-02-03 04:05:06.123456789 UTC' dir/empty
python3 -c 'import os; os.setxattr("dir/large", "user.key", b"value"); os.setxattr("dir/below", "user.key", b"dir")'
echo x >gone/x && rm -r gone
mv moved dir/moved && echo y >dir/moved/y
printf committed >dir/.tmp
mv dir/.tmp dir/committed
find . -path ./.cairn -prune -o ! -name . -printf '%P %y %m %U:%G %n %l\n' | LC_ALL=C sort >"$t/tree"
find . -path ./.cairn -prune -o -type f -exec sha256sum {} + | LC_ALL=C sort -k 2 >>"$t/tree"
cd /
worker=$(python3 -c 'import json, sys
s = json.load(open(sys.argv[1] + "/.cairn/status.json")); print(s["keeper_pid"], s["pid"])' "$t/m")
# shellcheck disable=SC2086
kill -KILL $worker
kill "$HOLD_PID"
umount -l "$t/m"
mkdir -p "$out"
cp "$t/tree" "$out/"
cp "$t/s/.cairn/id" "$out/"
run=$t/run/$(cat "$out/id")
mkdir -p "$out/place/huge" "$out/place/small" "$out/store"
cp -a "$t/s/replaced" "$t/s/removed" "$out/store/"
for f in head $(cd "$run" && ls -d log.* small/* huge/* 2>/dev/null | grep -v ballast); do
	cp "$run/$f" "$out/place/$f"
done
# allocated ahead: zeros
python3 - "$out"/place/log.* <<'PY'
import sys
for name in sys.argv[1:]:
    with open(name, "rb+") as f:
        bytes = f.read().rstrip(b"\0")
        f.truncate((len(bytes) + 7) // 8 * 8)
PY
umount -l "$run/huge" "$run/small" "$run"
rm -rf --one-file-system "$t"
