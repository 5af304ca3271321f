#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
#
# Closes that wait for removals to make space are more than there are threads that answer; others
# are answered all the while.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare

make_disk small ext4 96M
assets=$LIB_TOP/tests/assets/dcp store=$TMP/small/store a=$TMP/a b=$TMP/b
waiting=20	# session.c: N_THREADS is 16
relay=; [ "$MODE" != relay ] || relay=,nopassthrough

put() { helper files put "$a/$1" "$2" "$3" >"$TMP/said.$1"; }

start_mount "$store" "$a" staging=1G,pool=0,commit_wait=600
mkdir -p "$b" "$TMP/staging-b"
# shellcheck disable=SC2016
unshare --uts sh -c 'hostname node-b && exec "$0" "$1" "$2" -o "$3"' "$BUILD/cairnfs" "$store" "$b" \
	"staging=16M,pool=0,staging_dir=$TMP/staging-b$relay" || die "node b does not mount"
LIB_STORE[$b]=$store
LIB_KEEPER[$b]=$(keeper_pid "$b")

# Until nothing more fits, also when the disk has given back what did not.
fill()
{
	for n in $(seq 0 99); do
		put "f$1-$n" "${1%-*}" "$n" || break
	done
	rm -f "$a/f$1-$n"
	wait_durable "$a" 60
	sync -f "$store"
}
fill 8000000
for round in $(seq 10); do
	fill "2000000-$round"
	[ "$n" != 0 ] || break
done
[ "$n" = 0 ] || die "the store is never full"

# The order stands still at a .metadata whose other shard is missing (less than half of staging is in
# use, or it would go on); removals wait behind it.
mkdir "$a/step-1"
cp "$assets/__0_0.distcp" "$assets/.metadata" "$a/step-1/"
retry 20 eval '[ "$(status_field "$a" held)" != null ]' || die "nothing is held"
rm "$a"/f8000000-[012]

pids=()
for i in $(seq $waiting); do
	put "w$i" 2000000 "$i" &
	pids+=($!)
done
worker=$(worker_pid "$a")
offloaded() { cat /proc/"$worker"/task/*/comm 2>/dev/null | grep -c cairn-offload; }
retry 25 eval '[ "$(offloaded)" -gt 16 ]' ||
	die "$(offloaded) closes wait, of $waiting; held: $(status_field "$a" held); $(head -qn1 "$TMP"/said.w*)"
timeout 60 ls "$a" >/dev/null || die "a look is not answered"
helper files same "$a/f8000000-3" 8000000 3 || die "a read is not answered"
note "$(offloaded) closes still wait"

cp "$assets/__1_0.distcp" "$store/step-1/"	# not through node b: the store is full
accepted=()
for i in $(seq $waiting); do
	rc=0
	wait "${pids[i - 1]}" || rc=$?
	[ $rc = 0 ] || [ $rc = 28 ] || die "w$i: exit code $rc, want ENOSPC: $(cat "$TMP/said.w$i")"
	[ $rc = 0 ] && accepted+=("$i") || rm -f "$a/w$i"
done
wait_durable "$a" 60
note "${#accepted[@]} of them found space"
for i in "${accepted[@]}"; do
	helper files same "$store/w$i" 2000000 "$i" || die "w$i in the store"
done
stop_mount "$a"
stop_mount "$b"
