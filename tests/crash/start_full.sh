#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
#
# All is killed while accepted versions are on their way, and the store has no space for them at the next
# start: it serves, from staging, and says so; with space all becomes durable, by itself.
. "$(dirname "$0")/../lib/lib.sh"

make_disk small ext4 300M
store=$TMP/small/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=96M
need_passthrough "$mnt"
mkdir "$mnt/d"
helper files put "$mnt/d/old" 20000000 1 || die "old"
wait_durable "$mnt"

# What is mapped holds up all that comes later; one file is never closed.
python3 - "$mnt" "$TMP/go" <<'EOP' &
import ctypes, mmap, os, sys, time
mnt = sys.argv[1]
fd = os.open(mnt + "/held", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 65536)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
held = libc.mmap(None, 65536, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
ctypes.memmove(held, b"held", 4)
os.close(fd)
fd = os.open(mnt + "/d/open", os.O_WRONLY | os.O_CREAT)
os.write(fd, b"o" * 1000000)
os.mkdir(mnt + "/d2")
for name, n in (("d/new", 40000000), ("d2/f", 10000000)):
    f = os.open(mnt + "/" + name, os.O_WRONLY | os.O_CREAT)
    left = memoryview(b"n" * n)
    while left:
        left = left[os.write(f, left):]
    os.close(f)
os.rename(mnt + "/d/old", mnt + "/d/older")
open(sys.argv[2], "w").close()
time.sleep(1000)
EOP
writer=$!
on_exit "kill $writer 2>/dev/null"
retry 60 test -e "$TMP/go" || die "the files are not written"
kill_mount "$mnt"
kill $writer
wait $writer 2>/dev/null

# Somebody took all of it, the blocks of the unpublished files too.
rm -f "$store"/.cairn/*/tmp/* "$store"/.cairn/*/reserve
sync -f "$store"
dd if=/dev/zero of="$TMP/small/filler" bs=1M 2>/dev/null
dd if=/dev/zero of="$TMP/small/filler2" bs=4K 2>/dev/null

for i in 1 2; do
	start_mount "$store" "$mnt" staging=96M
	status_field "$mnt" notices | has "cairn retry" || die "start $i: notices: $(status_field "$mnt" notices)"
	[ "$(head -c 40000000 "$mnt/d/new" | tr -d n | wc -c)" = 0 ] || die "start $i: d/new is not readable"
	[ "$(stat -c %s "$mnt/d/new" "$mnt/d2/f" "$mnt/d/older" | tr '\n' ' ')" = "40000000 10000000 20000000 " ] ||
		die "start $i: $(ls -lR "$mnt")"
	[ ! -e "$mnt/d/old" ] || die "start $i: a name that was moved is back"
	rc=0; "$BUILD/cairn" wait -q --timeout 20 "$mnt/d/new" 2>"$TMP/err" || rc=$?
	[ $rc = 1 ] || die "start $i: cairn wait: $rc, $(cat "$TMP/err")"
	[ $i = 2 ] || kill_mount "$mnt"
done
# a worker's death in that state is a pause, too
restarts=$(status_field "$mnt" restarts)
kill -KILL "$(worker_pid "$mnt")"
retry 20 eval '[ "$(status_field "$mnt" restarts)" -gt '"$restarts"' ]' || die "no new worker"
[ "$(stat -c %s "$mnt/d/new")" = 40000000 ] || die "after the worker's death: $(ls -lR "$mnt")"

rm "$TMP/small/filler" "$TMP/small/filler2"
retry 60 "$BUILD/cairn" wait -q "$mnt/d/new" "$mnt/d2/f" "$mnt/d/older" 2>/dev/null || die "not durable with space"
[ "$(tr -d n <"$store/d/new" | wc -c)" = 0 ] || die "d/new in the store"
[ "$(stat -c %s "$store/d/new" "$store/d2/f" "$store/d/older" | tr '\n' ' ')" = "40000000 10000000 20000000 " ] ||
	die "the store: $(ls -lR "$store")"
echo after >"$mnt/after" || die "a file after it"
within 60 "$BUILD/cairn" wait -q "$mnt/after" || die "a file after it is not durable"
umount "$mnt"
retry 60 lib_pid_gone "${LIB_KEEPER[$mnt]}" || die "the daemon did not end"
unset "LIB_KEEPER[$mnt]" "LIB_STORE[$mnt]"
start_mount "$store" "$mnt" staging=96M
find "$store/.cairn/lost+found" "$mnt/d/open" -name '*open*' -size 1000000c 2>/dev/null | has . ||
	die "the file that was never closed is nowhere: $(ls -lR "$mnt" "$store/.cairn/lost+found")"
stop_mount "$mnt"
