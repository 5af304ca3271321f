#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# Staging belongs to one store on one filesystem. A copy of a store never takes it, is told, and gets an id of its
# own; a store that was moved by rename, or whose filesystem was mounted again, has its staging still.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool python3 losetup

id_of() { cat "$1/.cairn/id"; }

# Three files are closed and staged, and not in the store: the first is mapped still. Then everything is killed.
stage_and_kill()
{
	local s=$1 m=$2
	coproc HOLD { exec python3 -c 'import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(sys.argv[1] + "/first", os.O_CREAT | os.O_RDWR)
os.write(fd, b"first" * 1000)
assert libc.mmap(None, ctypes.c_size_t(5000), 3, 1, fd, ctypes.c_long(0)) != ctypes.c_void_p(-1).value
os.close(fd)
for name in "second", "third":
    with open(sys.argv[1] + "/" + name, "w") as f:
        f.write(name)
print("ready", flush=True)
sys.stdin.read()' "$m"; }
	read -r -t 60 line <&"${HOLD[0]}" && [ "$line" = ready ] || die "not staged: $line"
	kill_mount "$m"
	kill "$HOLD_PID"
	wait "$HOLD_PID" 2>/dev/null
	[ ! -e "$s/first" ] && [ ! -e "$s/third" ] || die "published before the kill"
}

holds_all()
{
	[ "$(cat "$1/second" "$1/third" 2>/dev/null)" = secondthird ] && [ "$(stat -c %s "$1/first")" = 5000 ]
}

make_disk a ext4 256M
s=$TMP/a/store m=$TMP/m
start_mount "$s" "$m" staging=64M
echo before >"$m/before"
wait_durable "$m"
stage_and_kill "$s" "$m"
staging=$(ls -d /run/cairnfs/"$(id_of "$s")")

# A copy, on the same filesystem and on another.
make_disk b xfs 400M
for copy in "$TMP/a/copy" "$TMP/b/copy"; do
	cp -a "$s" "$copy"
	id=$(id_of "$copy")
	mkdir -p "$m"
	said=$("$BUILD/cairnfs" "$copy" "$m" -o staging=64M,pool=0 2>&1 </dev/null) || die "$copy: $said"
	LIB_STORE[$m]=$copy
	LIB_KEEPER[$m]=$(keeper_pid "$m")
	[ "$(ls "$m")" = before ] || die "the copy took what is staged for the original: $(ls "$m")"
	[[ $said == *"is a copy of the store $s"*"stays for the original"* ]] || die "$copy: it said: $said"
	has 'is a copy of' "$m/.cairn/status.json" || die "no notice: $(status_field "$m" notices)"
	[ "$(id_of "$copy")" != "$id" ] || die "the copy has its id still"
	echo new >"$m/new" && sync "$m/new" || die "the copy takes no files"
	stop_mount "$m"
	[ "$(cat "$copy/new")" = new ] && [ -z "$(ls "$copy/.cairn/lost+found")" ] || die "$copy: $(ls -R "$copy/.cairn")"
	said=$("$BUILD/cairnfs" "$copy" "$m" -o staging=64M,pool=0 2>&1 </dev/null) || die "$copy again: $said"
	LIB_STORE[$m]=$copy
	LIB_KEEPER[$m]=$(keeper_pid "$m")
	[ -z "$said" ] || die "told twice: $said"
	stop_mount "$m"
	[ -d "$staging" ] || die "the original's staging is gone"
done

# The original's filesystem comes back at another device, and it was renamed there: it is the same store.
umount "$TMP/a" || die "umount"
disk_left a
truncate -s 1M "$TMP/other.img"
other=$(losetup -f --show "$TMP/other.img") || skip "no loop device"
on_exit "losetup -d $other"
remount_disk a
mv "$s" "$TMP/a/moved"
start_mount "$TMP/a/moved" "$m" staging=64M
holds_all "$TMP/a/moved" || die "what was staged is not in the store: $(ls -l "$TMP/a/moved")"
holds_all "$m" || die "nor in the mount"
! has 'is a copy' "$m/.cairn/status.json" || die "taken for a copy: $(status_field "$m" notices)"

# A copy of a store that is being served, with the same id: both are served, each its own.
cp -a "$TMP/a/moved" "$TMP/a/second"
start_mount "$TMP/a/second" "$TMP/m2" staging=64M
echo second >"$TMP/m2/of-second"
echo moved >"$m/of-moved"
stop_mount "$TMP/m2"
stop_mount "$m"
[ -e "$TMP/a/second/of-second" ] && [ ! -e "$TMP/a/moved/of-second" ] && [ -e "$TMP/a/moved/of-moved" ] || die "mixed up"
