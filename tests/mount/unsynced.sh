#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
#
# A file is published, and its name cannot be synced: its bytes stay staged until names are durable, for the store may
# lose them, also if the worker dies and the file is removed or written again. So a buffer that it was made of stays lent,
# and a store that has lost it gets it again.
. "$(dirname "$0")/../lib/lib.sh"

mnt=$TMP/mnt

gone() { [ "$(status_field "$mnt" store_gone)" != null ]; }

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

# The store stops, and while it is away the file is appended to, which cannot be closed. What was closed before is
# published when the store is there again: the name that it had in the store is gone.
CAIRNFS_FAULT=1:@3+:lostsync start_mount "$store" "$mnt" staging=64M
echo first >"$mnt/again"
retry 20 test -e "$store/again" || die "not published: this shows nothing"
retry 20 test "$(status_field "$mnt" halted)" != null || die "publication goes on"
helper godown "$TMP/disk" || skip "godown"
retry 20 gone || die "status does not say that the store is gone"
python3 -c 'import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(fd, b"second\n")
try: os.close(fd)
except OSError: sys.exit(0)
sys.exit(1)' "$mnt/again" || die "a close succeeds without a store"
kill_mount "$mnt"
umount "$TMP/disk" || die "umount"
disk_left disk
remount_disk disk
[ ! -e "$store/again" ] || die "the store has not lost it: this shows nothing"
start_mount "$store" "$mnt" staging=64M
wait_durable "$mnt"
[ "$(cat "$store/again")" = first ] || die "what was closed is lost: $(od -c "$store/again" | head -n 3)"
stop_mount "$mnt"
