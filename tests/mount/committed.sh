#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
# A directory that is saved into again is complete when its .metadata is written over shards that were closed or synced
# before, also if something keeps them open a little longer: a mapping, a process that was forked meanwhile, a descriptor
# that was synced. What was written after the commit still counts as overwritten. Alone, and with two hosts of one store.
. "$(dirname "$0")/../lib/lib.sh"
need_tool python3

cairn=$BUILD/cairn assets=$LIB_TOP/tests/assets/dcp s=$TMP/store a=$TMP/a b=$TMP/b
mkdir -p "$TMP/run-a" "$TMP/run-b"
serve() { start_mount "$s" "$1" "staging=64M,pool=0,host=$2,staging_dir=$TMP/run-$2${3:+,$3}"; }

# save HOW NTH DIR0 DIR1: the two shards of one save, the .metadata in DIR0, and then what is done later.
save()
{
	python3 - "$assets" "$@" <<'PY' || die "save $*"
import mmap, os, sys
assets, how, nth, *dirs = sys.argv[1:]
late = []

def data(name):
    with open(f"{assets}/{name}", "rb") as f:
        src = f.read()
    return bytes([int(nth) % 256]) * 64 + src[64:]

for at, name in zip(dirs, ("__0_0.distcp", "__1_0.distcp")):
    rdwr = how in ("mapped", "synced", "written", "mapped-written")
    fd = os.open(f"{at}/{name}", (os.O_RDWR if rdwr else os.O_WRONLY) | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, data(name))
    if how == "synced" or how == "written":
        os.fsync(fd)
        late.append(fd)
        continue
    if how == "mapped":
        late.append(mmap.mmap(fd, 0)) # has a copy of fd
    elif how == "forked":
        end, go = os.pipe()
        if not os.fork():
            os.close(go)
            os.read(end, 1)
            os._exit(0)
        late.append(go)
        os.close(end)
    os.close(fd)
with open(f"{assets}/.metadata", "rb") as src, open(f"{dirs[0]}/.metadata.tmp", "wb") as f:
    f.write(src.read())
if how == "tick": # two saves within a tick of the clock
    os.utime(f"{dirs[0]}/.metadata.tmp", (1000, 1000))
os.rename(f"{dirs[0]}/.metadata.tmp", f"{dirs[0]}/.metadata")
for x in late:
    if isinstance(x, int):
        if how == "written":
            os.pwrite(x, b"x" * 64, 0)
        os.close(x)
    else:
        x.close()
while how == "forked":
    try:
        os.wait()
    except ChildProcessError:
        break
PY
}

# judged DIR WORD: by the mount and in the store. The daemon itself says the same.
judged()
{
	local at
	for at in "${1%/*}" "$s"; do
		"$cairn" ls "$at" >"$TMP/out" || die "ls $at"
		has "ckpt/ .*$2" "$TMP/out" || die "$how, save $i: not $2: $(cat "$TMP/out")"
	done
	"$cairn" latest "${1%/*}" >"$TMP/out" 2>"$TMP/err"
	if [ "$2" = complete ]; then
		[ "$(cat "$TMP/out")" = "$1" ] || die "$how, save $i: latest: $(cat "$TMP/out" "$TMP/err")"
	else
		[ ! -s "$TMP/out" ] || die "$how, save $i: latest leads to $(cat "$TMP/out")"
	fi
}

serve "$a" a
mkdir "$a/ckpt"
for how in plain mapped synced forked tick; do
	for i in 1 2 3; do
		save $how $i "$a/ckpt" "$a/ckpt"
		wait_durable "$a"
		judged "$a/ckpt" complete
	done
done
how=written i=1
save $how $i "$a/ckpt" "$a/ckpt"
wait_durable "$a"
judged "$a/ckpt" "writing: __0_0.distcp was overwritten later than .metadata"

# A worker that takes over between the close and the end of the mapping.
how=killed i=1
save plain 4 "$a/ckpt" "$a/ckpt"
mkfifo "$TMP/go"
python3 - "$a/ckpt/__0_0.distcp" "$TMP/go" <<'PY' &
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 0)
os.pwrite(fd, b"y" * 64, 0)
os.close(fd)
open(sys.argv[2] + ".closed", "w").close()
open(sys.argv[2]).read()
PY
retry 20 test -e "$TMP/go.closed" || die "no writer"
cp "$assets/.metadata" "$a/ckpt/.metadata.tmp"
mv "$a/ckpt/.metadata.tmp" "$a/ckpt/.metadata"
old=$(worker_pid "$a")
kill -KILL "$old"
: >"$TMP/go"
wait $!
wait_durable "$a"
[ "$(worker_pid "$a")" != "$old" ] || die "the same worker"
judged "$a/ckpt" complete

# Two hosts: each has the shard of its own rank, and the first commits.
serve "$b" b
retry 30 eval '[ "$(status_field "$a" hosts.alive)" = 1 ] && [ "$(status_field "$b" hosts.alive)" = 1 ]' ||
	die "they do not know each other: $(status_field "$a" hosts)"
for how in plain mapped synced forked tick; do
	for i in 5; do
		save $how $i "$a/ckpt" "$b/ckpt"
		wait_durable "$b"
		wait_durable "$a"
		judged "$a/ckpt" complete
		judged "$b/ckpt" complete
	done
done
stop_mount "$b"
stop_mount "$a"

# With fsync=staged no version is made by an fsync: the store has none of a first save when it is committed.
serve "$a" a fsync=staged
for how in synced mapped written; do
	rm -r "$a/ckpt"
	mkdir "$a/ckpt"
	i=1
	save $how $i "$a/ckpt" "$a/ckpt"
	wait_durable "$a"
	[ $how = written ] || judged "$a/ckpt" complete
done
judged "$a/ckpt" "writing: __0_0.distcp was overwritten later than .metadata"
stop_mount "$a"
