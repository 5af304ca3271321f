#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
#
# When memory is short the kernel kills cairnfs last, for that would free nothing; what has memory
# of its own, a parser and the tier's processes, is killed like others.
. "$(dirname "$0")/../lib/lib.sh"

need_root
# without CAP_SYS_RESOURCE it is only made as likely as for other processes
want=0
! bash -c 'echo -900 >/proc/self/oom_score_adj' 2>/dev/null || want=-900
echo 100 >/proc/self/oom_score_adj || die "100"
m=$TMP/mnt
mkdir "$TMP/store" "$TMP/tier"
start_mount "$TMP/store" "$m" "staging=16M,tier=$TMP/tier"

score() { cat "/proc/$1/oom_score_adj"; }
# those of this mount by name: NAME
named()
{
	local pid
	for pid in $(pgrep -x "$1"); do
		! tr '\0' '\n' <"/proc/$pid/cmdline" | has -xF -e "$TMP/store" || echo "$pid"
	done
}
all_protected()
{
	local pid pids
	pids="$(keeper_pid "$m") $(worker_pid "$m") $(named cairnfs-spare)"
	[ "$(wc -w <<<"$pids")" = 3 ] || return
	for pid in $pids; do
		[ "$(score "$pid")" = $want ] || return
	done
}
retry 30 all_protected || die "keeper, worker, spare are to be $want: $(for p in $(keeper_pid "$m") $(worker_pid "$m") $(named cairnfs-spare); do score "$p"; done)"
for name in cairnfs-nursery cairnfs-tier; do
	pids=$(named $name)
	[ -n "$pids" ] || die "no $name"
	for pid in $pids; do
		[ "$(score "$pid")" = 100 ] || die "$name: $(score "$pid")"
	done
done
worker=$(worker_pid "$m")
kill -KILL "$worker"
new_worker() { [ "$(worker_pid "$m" 2>/dev/null)" -gt 0 ] && [ "$(worker_pid "$m")" != "$worker" ]; } 2>/dev/null
retry 30 new_worker || die "no new worker"
retry 30 all_protected || die "after a worker's death"
keeper=$(keeper_pid "$m")
kill -KILL "$keeper"
new_keeper() { [ "$(keeper_pid "$m" 2>/dev/null)" -gt 0 ] && [ "$(keeper_pid "$m")" != "$keeper" ]; } 2>/dev/null
retry 30 new_keeper || die "no new keeper"
retry 30 all_protected || die "after a keeper's death"
stop_mount "$m"
