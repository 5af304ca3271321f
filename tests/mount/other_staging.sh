#!/bin/bash
# SPDX-License-Identifier: MIT
# All is killed while files that moved to the store are not published. A start under another host name
# publishes them; one with another staging_dir leaves them to the one that has their names.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root

s=$TMP/store m=$TMP/mnt
opts=staging=64M,pool=0
mkdir -p "$s"
for d in one two; do mkdir "$TMP/$d" && mount -t tmpfs -o size=200M,mode=700 none "$TMP/$d" || skip "no tmpfs here"; done
on_exit 'umount -l "$TMP/one" "$TMP/two" 2>/dev/null'

on_exit '[ -z "${HOLDER:-}" ] || kill -KILL $HOLDER 2>/dev/null'
# 120 MiB and some small files, which stay in staging, or move to the store, behind a file that is mapped.
save()
{
	map_and_hold "$m/mapped" "$TMP/holds" &
	HOLDER=$!
	retry 20 test -e "$TMP/holds" || die "not mapped"
	rm "$TMP/holds"
	for i in 1 2 3 4 5 6; do
		head -c 20000000 /dev/urandom >"$TMP/big$i" && cp "$TMP/big$i" "$m/big$i" || die "big$i"
		echo "small $i $1" >"$TMP/small$i" && cp "$TMP/small$i" "$m/small$i" || die "small$i"
	done
	[ -n "$(ls "$s/.cairn/$1/tmp")" ] || die "nothing moved to the store"
	[ ! -e "$s/small6" ] || die "it is published"
}

kill_all()
{
	kill_mount "$m"
	kill -KILL "$HOLDER" && wait "$HOLDER" 2>/dev/null
}

whole()
{
	for i in 1 2 3 4 5 6; do
		cmp "$TMP/big$i" "$1/big$i" && cmp "$TMP/small$i" "$1/small$i" || die "of $1 $2: $(ls -l "$1")"
	done
}

start_mount "$s" "$m" "$opts,host=pod-1,staging_dir=$TMP/one"
need_passthrough "$m"
save pod-1
kill_all
start_mount "$s" "$m" "$opts,host=pod-2,staging_dir=$TMP/one"
whole "$m" "under another name"
"$BUILD/cairn" wait --timeout 60 "$m" || die "wait"
whole "$s" "under another name"
[ -z "$(ls "$s/.cairn/pod-1/tmp")" ] || die "left: $(ls "$s/.cairn/pod-1/tmp")"

rm "$m"/big? "$m"/small?
save pod-2
kill_all
start_mount "$s" "$m" "$opts,host=pod-2,staging_dir=$TMP/two"
has 'another staging area of this store' "$s/.cairn/pod-2/log" || die "no word: $(cat "$s/.cairn/pod-2/log")"
echo other >"$m/other"
head -c 20000000 /dev/urandom >"$m/large"
kill -KILL "$(worker_pid "$m")"
[ "$(cat "$m/other")" = other ] || die "after the worker's death"
"$BUILD/cairn" umount -q "$m" || die "umount of the other"
start_mount "$s" "$m" "$opts,host=pod-2,staging_dir=$TMP/one"
whole "$m" "after a start with another staging_dir"
"$BUILD/cairn" wait --timeout 60 "$m" || die "wait"
"$BUILD/cairn" umount -q "$m" || die "umount"
whole "$s" "after a start with another staging_dir"
[ "$(cat "$s/other")" = other ] || die "what the other start wrote"
for d in "$s"/.cairn/pod-2/tmp-?*-*; do [ ! -d "$d" ] || die "left: $d"; done
