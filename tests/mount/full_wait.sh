#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: relay
# timeout: 180
# waits: yes
#
# Closes that wait for removals to make space are more than there are threads that answer; others
# are answered all the while. Not in mode fast: the program that is installed has no fault engine.
. "$(dirname "$0")/../lib/lib.sh"
need_root

make_disk small ext4 96M
store=$TMP/small/store a=$TMP/a
waiting=20	# session.c: N_THREADS is 16

put() { helper files put "$a/$1" "$2" "$3" >"$TMP/said.$1"; }

# Removed later: they take the publisher half a minute, where each operation on the store takes up to 20 ms.
mkdir -p "$store/many"
(cd "$store/many" && seq 3000 | xargs touch)
export CAIRNFS_FAULT=1:1:delay
start_mount "$store" "$a" staging=1G,pool=0
unset CAIRNFS_FAULT

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

# The removals that make space come after many others.
rm -r "$a/many"
rm "$a"/f8000000-[012]

pids=()
for i in $(seq $waiting); do
	put "w$i" 2000000 "$i" &
	pids+=($!)
done
worker=$(worker_pid "$a")
offloaded() { cat /proc/"$worker"/task/*/comm 2>/dev/null | grep -c cairn-offload; }
retry 25 eval '[ "$(offloaded)" -gt 16 ]' ||
	die "$(offloaded) closes wait, of $waiting; $(head -qn1 "$TMP"/said.w*)"
timeout 60 ls "$a" >/dev/null || die "a look is not answered"
helper files same "$a/f8000000-3" 8000000 3 || die "a read is not answered"
note "$(offloaded) closes still wait"

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
