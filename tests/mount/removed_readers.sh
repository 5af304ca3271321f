#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# Who has a file of the store open goes on reading it when it is removed or replaced, over the deaths of
# workers, too; and nothing is left of it in the store when the last one has closed it.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt
export BUILD
start_mount "$store" "$mnt" staging=32M
python3 - "$mnt" <<'END' || die "writing"
import sys
for name in ("removed", "replaced", "saved", "late", "moved", "left"):
    with open(sys.argv[1] + "/" + name, "wb") as f:
        for i in range(8):
            f.write(bytes([ord(name[0]) ^ i]) * (1 << 20))
END
end_mount "$mnt"	# now the bytes are in the store alone
start_mount "$store" "$mnt" staging=32M
tmp=$(echo "$store"/.cairn/*/tmp)
tmp_is_empty() { [ -z "$(ls -A "$tmp")" ]; }
python3 - "$mnt" "$tmp" <<'END' || die "readers"
import json, mmap, os, signal, subprocess, sys, time
mnt, tmp = sys.argv[1:]
MIB = 1 << 20
buf = mmap.mmap(-1, MIB)

def status():
    return json.load(open(mnt + "/.cairn/status.json"))

def kill_worker():
    before = status()
    os.kill(before["pid"], signal.SIGKILL)
    while status()["restarts"] == before["restarts"]:
        time.sleep(0.02)

def wait():
    subprocess.run([os.environ["BUILD"] + "/cairn", "wait", mnt], check=True)

def write(name, byte, size):
    with open(mnt + "/" + name, "wb") as f:
        for i in range(0, size, MIB):
            f.write(byte * min(MIB, size - i))

readers = []
def reader(name, first=None):
    for flags in (os.O_RDONLY | os.O_DIRECT, os.O_RDONLY):
        fd = os.open(mnt + "/" + name, flags)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        readers.append((name, fd, first or name[0]))

def check(i, when):
    for name, fd, first in readers:
        try:
            got = os.preadv(fd, [buf], i * MIB)
            data = os.lseek(fd, i * MIB, os.SEEK_DATA)
        except OSError as e:
            sys.exit("%s, %s: %s" % (name, when, e))
        if got != MIB or buf[:] != bytes([ord(first) ^ i]) * MIB:
            sys.exit("%s, %s: %d bytes, or others" % (name, when, got))
        if data != i * MIB:
            sys.exit("%s, %s: data at %d" % (name, when, data))

for name in ("removed", "replaced", "saved", "late", "moved"):
    reader(name)
with open(mnt + "/spilled", "wb") as f:          # more than staging has space for
    for i in range(40):
        f.write(bytes([ord("S") ^ (i % 8)]) * MIB)
reader("spilled", "S")
check(0, "before all")
os.unlink(mnt + "/removed")
write("new", b"n", 100)
os.rename(mnt + "/new", mnt + "/replaced")
write("saved", b"n", 8 * MIB)
write("moved", b"n", 100)
os.rename(mnt + "/moved", mnt + "/elsewhere")
os.unlink(mnt + "/spilled")
kill_worker()                                     # published or not
check(1, "after one death")
wait()
check(2, "published")
kill_worker()
check(3, "after two deaths")
os.unlink(mnt + "/late")                          # of a worker that did not see it opened
wait()
for name, fd, first in readers:
    want = 0 if name in ("removed", "replaced", "spilled", "late") else 1
    if os.fstat(fd).st_nlink != want:
        sys.exit("%s has %d links" % (name, os.fstat(fd).st_nlink))
if len(os.listdir(tmp)) < 5:
    sys.exit("tmp has only %s: this proves nothing" % os.listdir(tmp))
kill_worker()
check(4, "after three deaths")
for name, fd, first in readers[::2]:              # half of them: the others keep the files
    os.close(fd)
del readers[::2]
check(5, "half are closed")
kill_worker()
check(6, "after four deaths")
END
retry 20 tmp_is_empty || die "the last close left $(ls "$tmp")"
for f in replaced saved elsewhere; do
	cmp "$mnt/$f" "$store/$f" || die "$f"
	has n <"$mnt/$f" || die "$f is not the new one"
done

# The last reader goes with all of cairnfs.
exec 9<"$mnt/left"
rm "$mnt/left"
wait_durable "$mnt"
tmp_is_empty && die "left has no second name: this proves nothing"
kill_mount "$mnt"
exec 9<&-
start_mount "$store" "$mnt" staging=32M
retry 20 tmp_is_empty || die "a first start left $(ls "$tmp")"
end_mount "$mnt"
