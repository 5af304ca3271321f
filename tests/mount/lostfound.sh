#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
#
# All of cairnfs is killed: what was fsynced and closed, or only fsynced, is in the store and not once
# more in lost+found; what was never closed is there, by its whole path.
. "$(dirname "$0")/../lib/lib.sh"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=256M
python3 - "$mnt" >"$TMP/out" <<'PY' &
import os, sys, time
m = sys.argv[1]
os.makedirs(m + "/run 1/new/step%3")
def put(name, size, sync, close):
	fd = os.open(m + "/" + name, os.O_CREAT | os.O_WRONLY, 0o644)
	os.write(fd, name.encode() * (size // len(name)))
	if sync:
		os.fsync(fd)
	if close:
		os.close(fd)
	return fd
for i, size in enumerate((300, 300000, 3000000)):
	put(f"closed{i}", size, True, True)
	put(f"run 1/plain{i}", size, False, True)
put("twice", 5000, True, True)
fd = os.open(m + "/twice", os.O_WRONLY | os.O_APPEND)
os.write(fd, b"more")
os.fsync(fd)
os.close(fd)
fd = os.open(m + "/twice", os.O_WRONLY)	# and not touched
os.close(fd)
put("run 1/new/step%3/half", 5000, False, False)
put("run 1/new/moved", 300000, False, False)
os.rename(m + "/run 1/new/moved", m + "/run 1/new/gone")
os.rename(m + "/run 1/new", m + "/run 1/old")
print("ready", flush=True)
time.sleep(50)
PY
writer=$!
retry 30 has ready "$TMP/out" || die "the writer"
wait_durable "$mnt/closed2" 30
kill_mount "$mnt"
kill $writer
wait $writer 2>/dev/null
start_mount "$store" "$mnt" staging=256M
found=$(cd "$store/.cairn/lost+found" && find . -type f -printf '%P\n' | sed 's/[.][0-9a-f]*$//' | sort | tr '\n' ' ')
[ "$found" = "run 1%2Fold%2Fgone.unclosed run 1%2Fold%2Fstep%253%2Fhalf.unclosed " ] || die "lost+found: $found"
for i in 0 1 2; do
	[ -s "$mnt/closed$i" ] && [ -s "$mnt/run 1/plain$i" ] || die "$i is missing"
done
stop_mount "$mnt"
