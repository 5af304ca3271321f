#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 900
# Whatever the host is called: files written through the mount reach the store, survive a restart of
# the worker, and are served by the next mount. CAIRN_TEST_HOSTNAMES=N: how many names (24).
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare python3

count=${CAIRN_TEST_HOSTNAMES:-$((24 / ${TEST_ONE_OF:-1}))}

# Names that machines have, names at the limits of what the kernel takes, names by a seed. As hex: a line each.
names()
{
	python3 - "$count" <<'PY'
import random, sys
n = int(sys.argv[1])
rng = random.Random(5)
out = [b"localhost", b"ubuntu", b"node1", b"dgx01", b"", b"x" * 64, b"Upper.Case.example.org", b".hidden", b"..",
       b"a/b", b"meta", b"id", b"lost+found", "nörd".encode(), b"\xff\x01 \n", b"-o"]
while len(out) < n:
    out.append(bytes(rng.choice(b"abcdefghijklmnopqrstuvwxyz0123456789-") for _ in range(rng.randint(1, 24))))
for name in out[:n]:
    print(name.hex() or "-")
PY
}

# The daemon alone has that name; its staging is found by the store's id.
mount_as()
{
	unshare --uts python3 -c 'import os, socket, sys
socket.sethostname(bytes.fromhex(sys.argv[1].strip("-")))
os.execv(sys.argv[2], sys.argv[2:])' "$1" "$BUILD/cairnfs" "$s" "$m" -o staging=64M,pool=0 </dev/null ||
		die "hostname $1: cairnfs does not mount"
	LIB_STORE[$m]=$s
	LIB_KEEPER[$m]=$(keeper_pid "$m")
}

try_name()
{
	local name=$1 d=dir-$2
	mount_as "$name"
	mkdir "$m/$d" || die "hostname $name: mkdir"
	echo one >"$m/$d/one" || die "hostname $name: a file in a new directory"
	echo root >"$m/$d-root" && sync "$m/$d-root" || die "hostname $name: a file and its fsync"
	[ "$(cat "$s/$d-root" 2>/dev/null)" = root ] || die "hostname $name: fsync returned, the store has no file"
	kill -KILL "$(worker_pid "$m")"
	echo two >"$m/$d/two" || die "hostname $name: after a restart of the worker"
	[ "$(cat "$m/$d/one" "$m/$d/two")" = "$(printf 'one\ntwo')" ] || die "hostname $name: read"
	stop_mount "$m"
	[ "$(cat "$s/$d/one" "$s/$d/two" 2>/dev/null)" = "$(printf 'one\ntwo')" ] || die "hostname $name: not in the store"
	mount_as "$name"
	[ "$(cat "$m/$d/one" "$m/$d/two" "$m/$d-root")" = "$(printf 'one\ntwo\nroot')" ] ||
		die "hostname $name: the next mount"
	stop_mount "$m"
	echo "$name" >>"$TMP/tried"
}

# A store for each lane, and in it a directory for each host.
lane()
{
	local n=0 name
	s=$TMP/store-$1 m=$TMP/m-$1
	mkdir -p "$s" "$m"
	while read -r name; do
		[ $((n++ % LANES)) != "$1" ] || try_name "$name" $n
	done <"$TMP/names"
	[ -z "$(ls -A "$s/.cairn/lost+found")" ] || die "lost+found: $(ls "$s/.cairn/lost+found")"
}

LANES=6
names >"$TMP/names"
for ((i = 0; i < LANES; i++)); do
	lane $i &
done
wait
[ "$(wc -l <"$TMP/tried")" = "$count" ] || die "of $count names only $(wc -l <"$TMP/tried") came through"
note "$count names"
