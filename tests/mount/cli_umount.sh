#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn umount: ends when the store holds everything and the daemon is gone; busy is explained.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

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
exec 3<"$m/d/1"
tail -f /dev/null &
user=$!
exec 3<&-
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
if [ -d "/proc/$keeper" ] && ! lib_pid_gone "$keeper"; then
	# another case, or somebody else on this machine, made a mount namespace meanwhile: that is told
	says err "has it mounted in its mount namespace"
	retry 60 sh -c "[ ! -d /proc/$keeper ]" || die "the daemon is still there"
fi
for i in 1 2 3 4; do
	cmp "$TMP/data" "$s/d/$i" || die "unmounted, and $i is not whole in the store"
done

# free for the next at once
start_mount "$s" "$m"
same_tree "$m" "$s"

# without /proc no mount is found
if [ "$(id -u)" = 0 ]; then
	expect 2 unshare -m bash -c 'umount -l /proc && exec "$@"' - "$cairn" umount "$m"
	says err "/proc, which is not mounted here: mount -t proc"
	(cd / && expect 2 unshare -m bash -c 'umount -l /proc && exec "$@"' - "$cairn" status) || exit
	says err "/proc, which is not mounted here: mount -t proc"
fi

# Mapped for writing after its close: not durable, so the mount stays. In the relay
# lane the kernel keeps the file itself open, and the mount is just busy.
map_and_hold "$m/mapped" "$TMP/ready" &
mapper=$!
on_exit 'kill $mapper 2>/dev/null'
retry 20 test -e "$TMP/ready" || die "the mapper did not start"
[ "$(lane "$m/mapped")" = relay ] && late=1 || late=3
expect $late "$cairn" umount --timeout 0.5 "$m"
says err "stays mounted"
[ $late = 1 ] || says err "and 1 change not durable yet"
is_mounted "$m" || die "unmounted with a file that is not durable"
kill $mapper
wait $mapper 2>/dev/null
expect 0 "$cairn" umount "$m"
[ "$(tr -d v <"$s/mapped" | wc -c)" = 0 ] && [ "$(stat -c %s "$s/mapped")" = 1048576 ] || die "the bytes written after the close are not in the store"

sleeps() { [[ $(cat "/proc/$holder/comm") == sl*eep ]]; }

# A mount namespace that was made meanwhile has a copy of the mount, and the daemon goes on: that is told.
start_mount "$s" "$m"
keeper=$(keeper_pid "$m")
unshare -m --propagation private "$LIB_TOP/tests/lib/own_mounts" sleep 600 &
holder=$!
on_exit 'kill $holder 2>/dev/null'
retry 20 sleeps || die "unshare"
expect 0 within 60 "$cairn" umount "$m"
says err "sleep (pid $holder) has it mounted in its mount namespace"
says err "kill $keeper"
kill $holder
wait $holder 2>/dev/null
lib_pid_gone "$keeper" || retry 60 sh -c "[ ! -d /proc/$keeper ]" || die "the daemon stays when that namespace is gone"

# Its process may have any name; and from a pid namespace of another's, as in a container, nothing is seen: that is told.
start_mount "$s" "$m"
keeper=$(keeper_pid "$m")
cp "$(command -v sleep)" "$TMP/$(printf 'sl\033eep')"
unshare -m --propagation private "$LIB_TOP/tests/lib/own_mounts" "$TMP/$(printf 'sl\033eep')" 600 &
holder=$!
retry 20 sleeps || die "unshare"
expect 0 within 60 unshare -p -f --mount-proc --propagation private "$cairn" umount "$m"
says err "its cairnfs is not visible from here"
is_mounted "$m" || die "unmounted in another mount namespace, and here"
expect 0 within 60 "$cairn" umount "$m"
says err 'sl\\x1beep (pid '
kill $holder "$keeper"
wait $holder 2>/dev/null
lib_pid_gone "$keeper" || retry 60 sh -c "[ ! -d /proc/$keeper ]" || die "the daemon stays"

# A store whose filesystem is frozen: a close waits for it, and no process has the file open any more.
if [ "$(id -u)" = 0 ] && make_disk frozen ext4 96M; then
	start_mount "$TMP/frozen/store" "$TMP/frozen-m" staging=64M
	on_exit 'fsfreeze -u "$TMP/frozen" 2>/dev/null'
	closing() { [ "$(status_field "$TMP/frozen-m" closing.files)" = 1 ]; }
	fsfreeze -f "$TMP/frozen" || die "fsfreeze"
	python3 -c 'import os, sys
f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(f, bytes(3000000))
os.close(f)' "$TMP/frozen-m/f" &
	closer=$!
	retry 20 closing || die "a close does not wait for a frozen store"
	expect 1 "$cairn" umount "$TMP/frozen-m"
	says err "close(2) of 1 file: the store does not answer"
	has "not visible" "$TMP/err" && die "something that is not visible: $(cat "$TMP/err")"
	fsfreeze -u "$TMP/frozen"
	wait $closer || die "the close"
	[ "$(status_field "$TMP/frozen-m" closing.files)" = 0 ] || die "still closing"
	expect 0 "$cairn" umount "$TMP/frozen-m"
	[ "$(stat -c %s "$TMP/frozen/store/f")" = 3000000 ] || die "the file of the frozen store"
fi

# A file that is too long for cairnfs: free space does not help.
mkdir "$TMP/short" "$TMP/short-m"
bash -c 'ulimit -f 8000 && exec "$@"' - "$BUILD/cairnfs" "$TMP/short" "$TMP/short-m" -o staging=64M,pool=0 \
	</dev/null 2>/dev/null || die "with a limit of file sizes"
LIB_STORE[$TMP/short-m]=$TMP/short
LIB_KEEPER[$TMP/short-m]=$(keeper_pid "$TMP/short-m")
LIB_STAGING[$(status_field "$TMP/short-m" staging.dir)]=1
head -c 20M /dev/zero 2>/dev/null >"$TMP/short-m/long"
[ "$(state "$TMP/short-m/long")" = failed ] || die "longer than the limit, and $(state "$TMP/short-m/long")"
expect 1 "$cairn" umount "$TMP/short-m"
says err "long: File too large"
says err "ulimit -f"
has "free space" "$TMP/err" && die "what does not help: $(cat "$TMP/err")"
expect 0 "$cairn" discard "$TMP/short-m/long"
expect 0 "$cairn" umount "$TMP/short-m"
