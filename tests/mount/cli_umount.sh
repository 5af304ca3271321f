#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn umount: ends when the store holds everything and the daemon is gone; busy is explained.
. "$(dirname "$0")/../lib/lib.sh"

cairn=$BUILD/cairn s=$TMP/store m=$TMP/mnt

# expect CODE command...: its output is in $TMP/out and $TMP/err afterwards
expect()
{
	local want=$1 rc=0
	shift
	"$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
	[ $rc = "$want" ] || die "$*: exit code $rc, not $want: $(cat "$TMP/out" "$TMP/err")"
}
says() { grep -q -- "$2" "$TMP/$1" || die "no '$2' in: $(cat "$TMP/$1")"; }

# Maps $1 for writing, closes it, writes through the mapping, makes $2, keeps the
# mapping. (mmap.mmap of Python would keep the file open as well.)
map_and_hold()
{
	exec python3 - "$1" "$2" <<'PY'
import ctypes, mmap, os, sys, time
size = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, size)
p = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
assert p != ctypes.c_void_p(-1).value, ctypes.get_errno()
os.close(fd)
ctypes.memset(p, ord("v"), size)
open(sys.argv[2], "w").close()
time.sleep(1000)
PY
}

start_mount "$s" "$m" fsync=staged
keeper=$(keeper_pid "$m")
mkdir "$m/d"
head -c 60000000 /dev/urandom >"$TMP/data"
for i in 1 2 3; do
	cp "$TMP/data" "$m/d/$i"
done

expect 2 "$cairn" umount "$m/d"
says err "not the mount point"
is_mounted "$m" || die "umount of a path below unmounted it"

# in use: it stays, and who uses it is told
tail -f /dev/null 3<"$m/d/1" &
user=$!
on_exit 'kill $user 2>/dev/null'
expect 1 "$cairn" umount "$m"
says err "(pid $user)"
is_mounted "$m" || die "busy, and unmounted all the same"
[ "$(state "$m/d")" = durable ] || die "umount tried before all was durable"
kill $user
wait $user 2>/dev/null

cp "$TMP/data" "$m/d/4"
expect 0 "$cairn" umount "$m"
is_mounted "$m" && die "still mounted"
[ ! -d "/proc/$keeper" ] || lib_pid_gone "$keeper" || die "the daemon is still there"
for i in 1 2 3 4; do
	cmp "$TMP/data" "$s/d/$i" || die "unmounted, and $i is not whole in the store"
done

# free for the next at once
start_mount "$s" "$m"
same_tree "$m" "$s"

# Mapped for writing after its close: not durable, so the mount stays. In the relay
# lane the kernel keeps the file itself open, and the mount is just busy.
map_and_hold "$m/mapped" "$TMP/ready" &
mapper=$!
on_exit 'kill $mapper 2>/dev/null'
retry 20 test -e "$TMP/ready" || die "the mapper did not start"
[ "$(lane "$m/mapped")" = relay ] && late=1 || late=3
expect $late "$cairn" umount --timeout 0.5 "$m"
says err "stays mounted"
is_mounted "$m" || die "unmounted with a file that is not durable"
kill $mapper
wait $mapper 2>/dev/null
expect 0 "$cairn" umount "$m"
[ "$(tr -d v <"$s/mapped" | wc -c)" = 0 ] && [ "$(stat -c %s "$s/mapped")" = 1048576 ] || die "the bytes written after the close are not in the store"
