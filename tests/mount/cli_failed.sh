#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn on a store that fails: wait and umount say so and why, status shows it, retry is heard.
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

need_root
need_tool xfs_io
make_disk disk ext4 256M
s=$TMP/disk/store
start_mount "$s" "$m"
echo before >"$m/before"
expect 0 "$cairn" wait "$m"

# A mapping holds the version back until the store is dead; its blocks were
# allocated and its close was answered before.
map_and_hold "$m/victim" "$TMP/go" &
mapper=$!
on_exit 'kill $mapper 2>/dev/null'
retry 20 test -e "$TMP/go" || die "the mapper did not start"
xfs_io -x -c shutdown "$TMP/disk" || die "cannot shut the disk down"
kill $mapper
wait $mapper 2>/dev/null

expect 1 "$cairn" wait --timeout 60 "$m/victim"
says err victim
says err "error\|failed"
expect 1 "$cairn" umount "$m"
says err "stays mounted"
is_mounted "$m" || die "unmounted with a file that failed"
expect 0 "$cairn" status "$m"
says out HALTED
expect 0 "$cairn" status --json "$m"
python3 -c 'import json, sys
assert json.load(open(sys.argv[1]))["halted"]["error"]' "$TMP/out" || die "halted is not told"
expect 0 "$cairn" retry "$m"
expect 1 "$cairn" wait --timeout 60 "$m/victim"	# nothing was repaired
kill_mount "$m"
