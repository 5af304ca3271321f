#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# Two nodes write one store: .metadata goes there when all that it lists is there, whoever wrote
# it, and what does not concern it goes on. Node b has another host name, and so its own order.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare

assets=$LIB_TOP/tests/assets/dcp s=$TMP/store a=$TMP/a b=$TMP/b
relay=; [ "$MODE" != relay ] || relay=,nopassthrough

mount_b()
{
	mkdir -p "$b" "$TMP/staging-b"
	# shellcheck disable=SC2016
	unshare --uts sh -c 'hostname node-b && exec "$0" "$1" "$2" -o "$3"' "$BUILD/cairnfs" "$s" "$b" \
		"staging=64M,pool=0,staging_dir=$TMP/staging-b$relay" || die "node b does not mount"
	LIB_STORE[$b]=$s
	LIB_KEEPER[$b]=$(keeper_pid "$b")
}

held() { status_field "$a" held; }

# Node a writes its shard and, last, the .metadata of both.
save_a()
{
	mkdir -p "$a/$1"
	cp "$assets/__0_0.distcp" "$a/$1"
	cp "$assets/.metadata" "$a/$1/.metadata.tmp"
	mv "$a/$1/.metadata.tmp" "$a/$1/.metadata"
	echo later >"$a/$1.done"
}

# Alone in its store a node never waits, even for what nobody wrote.
start_mount "$s" "$a" staging=64M,pool=0
save_a alone
wait_durable "$a"
[ -e "$s/alone/.metadata" ] || die "one node waits for itself"

# More than half of staging is a cache of what is durable: that gives way, and is no reason not to wait.
for i in 1 2 3 4 5 6 7 8 9 10; do head -c 4M /dev/urandom >"$a/cached-$i"; done
wait_durable "$a"
[ "$(status_field "$a" staging.used_bytes)" -gt $((32 << 20)) ] || die "nothing is cached: $(status_field "$a" staging)"

# A shard of the other node is missing: the name waits, and what else is new passes it.
mount_b
save_a step-1
retry 20 test -e "$s/step-1/.metadata.tmp" || die "what comes before .metadata is not in the store"
retry 20 eval '[ "$(held)" != null ]' || die "nothing is held"
[[ $(held) == *step-1/.metadata:*__1_0.distcp\ is\ not\ in\ the\ store* ]] || die "held: $(held)"
grep -q 'waiting .*another node.*step-1/.metadata' "$a/.cairn/status" || die "status: $(cat "$a/.cairn/status")"
retry 20 test -e "$s/step-1.done" || die "another file waits behind it: $(cat "$a/.cairn/status")"
[ ! -e "$s/step-1/.metadata" ] || die "published before the other node's shard"
cmp "$a/step-1/.metadata" "$assets/.metadata" || die "the mount itself does not wait"
# Meanwhile both make one directory: node a's comes later in the store, and is node b's.
mkdir "$a/step-1/both" "$b/step-1/both" || die "mkdir of both"
echo a >"$a/step-1/both/a"
echo b >"$b/step-1/both/b"
wait_durable "$b/step-1/both"
head -c 100 "$assets/__1_0.distcp" >"$b/step-1/__1_0.distcp"	# cut short: still not what is listed
wait_durable "$b/step-1/__1_0.distcp"
retry 20 eval '[[ $(held) == *"has 100 of"* ]]' || die "held: $(held)"
[ ! -e "$s/step-1/.metadata" ] || die "published while a shard is short"
cp "$assets/__1_0.distcp" "$b/step-1/"
wait_durable "$b/step-1/__1_0.distcp"
wait_durable "$a"
[ "$(held)" = null ] || die "still held: $(held)"
[ -e "$s/step-1/.metadata" ] && [ -e "$s/step-1.done" ] || die "not published"
[ "$(cat "$s/step-1/both/a" "$s/step-1/both/b")" = "$(printf 'a\nb')" ] || die "a directory of two nodes: $(ls -l "$s/step-1/both")"
! has -i conflict "$a/.cairn/status.json" || die "a directory that is there is used, and no conflict: $(status_field "$a" notices)"

# The other node's shard comes first, as it does with DCP: nothing waits.
mkdir "$b/step-2"
cp "$assets/__1_0.distcp" "$b/step-2"
wait_durable "$b"
save_a step-2
wait_durable "$a"

# Written through this mount, before it or after: its turn comes.
mkdir "$a/step-3"
cp "$assets/.metadata" "$a/step-3/"
retry 20 eval '[ "$(held)" != null ]' || die "not held: cp may still bring the shards"
cp "$assets"/*.distcp "$a/step-3/"
wait_durable "$a"
diff -r "$assets" "$s/step-3" || die "the store differs"

# It is removed while it waits.
save_a step-4
retry 20 eval '[ "$(held)" != null ]' || die "step-4 is not held"
rm -r "$a/step-4" "$a/step-4.done"
cp "$assets/__1_0.distcp" "$b/later"
wait_durable "$a"
[ "$(held)" = null ] && [ ! -e "$s/step-4" ] || die "removed, and it waits: $(held), $(find "$s/step-4"), $(cat "$a/.cairn/status.json")"
! has conflict "$a/.cairn/status.json" || die "a conflict: $(status_field "$a" notices)"

# A kill of the worker while it waits: it waits on.
save_a step-5
retry 20 eval '[ "$(held)" != null ]' || die "step-5 is not held"
kill -KILL "$(worker_pid "$a")"
retry 20 eval '[ "$(held)" != null ]' || die "forgotten by the next worker"
[ ! -e "$s/step-5/.metadata" ] || die "published by the next worker"
cp "$assets/__1_0.distcp" "$b/step-5/"
wait_durable "$a"

# A directory renamed over the other node's empty one takes its name, as on any filesystem; and what the other node then
# puts there, by the directory that it had open, is not lost.
mkdir "$a/from" "$b/into"
echo a >"$a/from/a"
python3 -c 'import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); os.fsync(fd)' "$b/into" || die "fsync of the other's directory"
wait_durable "$a"
exec 6<"$b/into"
mv -T "$a/from" "$a/into" || die "rename over the other's empty directory"
wait_durable "$a"
echo b >"$b/into/b" || die "the other node cannot write there"
mkdir "$b/into/deep" && echo c >"$b/into/deep/c" && mv "$b/into/deep" "$b/into/deeper" || die "names there"
wait_durable "$b"
exec 6<&-
[ "$(cat "$s/into/a" "$s/into/b" "$s/into/deeper/c" | tr '\n' ' ')" = "a b c " ] || die "into: $(find "$s/into")"
[ "$(status_field "$b" refused)" = null ] || die "refused: $(status_field "$b" refused)"

stop_mount "$a"
start_mount "$s" "$a" staging=64M,pool=0,commit_wait=0
save_a step-7
wait_durable "$a"
[ "$(cat "$a/.cairn/status.json" | grep -c 'is published, but')" = 0 ] || die "commit_wait=0 waits"
stop_mount "$a"
stop_mount "$b"
