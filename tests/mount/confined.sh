#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# What the processes of a mount have given up, in each of their threads, also after a worker's death
# (what they still can do then: tests/unit/fs_trust.cc). What is installed has no failing store.
. "$(dirname "$0")/../lib/lib.sh"
need_root
grep -qs . "$BUILD/sanitizer" && skip "a sanitizer's runtime needs more: nothing is given up"

grep -q CAIRNFS_FAULT "$BUILD/cairnfs" && die "cairnfs takes CAIRNFS_FAULT"
grep -q CAIRNFS_FAULT "$BUILD/tests/cairnfs" || die "the tests' own does not"

start_mount "$TMP/store" "$TMP/m"
m=$TMP/m
# field PID/task/TID NAME
field() { awk -v n="$2:" '$1 == n { print $2 }' "/proc/$1/status"; }
check()
{
	local pid t seen=0
	for pid in $(keeper_pid "$m") $(lib_children "$(keeper_pid "$m")"); do
		for t in /proc/"$pid"/task/*; do
			t=${t#/proc/}
			[ "$(field "$t" Seccomp)" = 2 ] || die "$1: $t ($(cat "/proc/$t/comm")) has no filter"
			[ "$(field "$t" NoNewPrivs)" = 1 ] || die "$1: $t may get new privileges"
			# SYS_RESOURCE, SYS_PTRACE, SYS_MODULE, SETUID, NET_ADMIN
			[ $((0x$(field "$t" CapPrm) & (1 << 24 | 1 << 19 | 1 << 16 | 1 << 7 | 1 << 12))) = 0 ] ||
				die "$1: $t ($(cat "/proc/$t/comm")) has capabilities $(field "$t" CapPrm)"
			seen=$((seen + 1))
		done
	done
	[ $seen -ge 10 ] || die "$1: only $seen threads"
	note "$1: $seen threads"
}
echo a >"$m/a"
check "at first"
pid=$(worker_pid "$m")
kill -KILL "$pid"
echo b >"$m/b"
wait_durable "$m"
[ "$(worker_pid "$m")" != "$pid" ] || die "the same worker"
check "a new worker"
stop_mount "$m"
