#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
#
# A file is published, its name cannot be synced, it is removed, and the worker dies: the bytes stay staged until the
# names are durable, for the store may lose them. So the buffer that it was made of stays lent.
. "$(dirname "$0")/../lib/lib.sh"

mnt=$TMP/mnt

make_disk disk ext4 64M		# its names are synced by the mark
store=$TMP/disk/store
mkdir "$store"
# of the syncs: the mark's as publication begins, the bytes', and from there on none succeeds
CAIRNFS_FAULT=1:@3+:lostsync start_mount "$store" "$mnt" staging=64M
[ "$(status_field "$mnt" passthrough)" = true ] || skip "no buffers without passthrough"
python3 - "$mnt" "$store" <<'END' || die "see above"
import json, os, signal, sys, time
mnt, store = sys.argv[1:]

def status():
    while True:
        try: return json.load(open(mnt + "/.cairn/status.json"))
        except (OSError, ValueError): time.sleep(0.05)

def until(what, true):
    end = time.monotonic() + 60
    while not true():
        if time.monotonic() > end: sys.exit("never: " + what)
        time.sleep(0.02)

name = mnt + "/.cairn/buffers/4194304.x"
fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
state = lambda: os.getxattr(fd, "user.cairn.buffer").decode()
os.pwrite(fd, b"x" * 4194304, 0)
os.link(name, mnt + "/shard")
until("publication halts", lambda: status()["halted"])
if not os.path.exists(store + "/shard"): sys.exit("shard is not published: this shows nothing")
os.unlink(mnt + "/shard")
if state() != "lent": sys.exit("removed: the buffer is " + state())
was = status()["restarts"]
os.kill(status()["pid"], signal.SIGKILL)
until("another worker", lambda: status()["restarts"] > was)
if state() != "lent": sys.exit("another worker: the buffer is " + state())
END
kill_mount "$mnt"
start_mount "$store" "$mnt" staging=64M
wait_durable "$mnt"
[ ! -e "$store/shard" ] || die "shard is still there"
stop_mount "$mnt"
