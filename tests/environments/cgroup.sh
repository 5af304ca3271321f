#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# The core where cairnfs is in a memory cgroup of its own: one that holds its staging, and one that is
# smaller than the staging that was asked for.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/../mount/memcg.inc"
. "$(dirname "$0")/core.inc"
memcg_init

# in_cgroup NAME MIB STAGING_MIB
in_cgroup()
{
	memcg_make "$1" $(($2 << 20))
	LIB_WRAP=(sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$MEMCG_TOP/$1")
	core "a memory cgroup of $2 MiB, staging=$3M" "$TMP/$1" "staging=$3M"
	[ "$(memcg_killed "$1")" = 0 ] || die "the kernel killed for memory: $(memcg_killed "$1")"
}

in_cgroup spacious 256 64
in_cgroup tight 128 512

# What is left beside staging suffices for cairnfs.
memcg_make least $((96 << 20))
LIB_WRAP=(sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$MEMCG_TOP/least")
start_mount "$TMP/least" "$TMP/least.mnt" staging=512M
for i in 1 2 3; do
	dd if=/dev/zero of="$TMP/least.mnt/$i" bs=1M count=150 status=none || die "a file in a cgroup of 96 MiB"
done
stop_mount "$TMP/least.mnt"
[ "$(memcg_killed least)" = 0 ] || die "the kernel killed for memory: $(memcg_killed least)"

# One that is too small even for cairnfs: refused, with what to do.
memcg_make too_small $((64 << 20))
LIB_WRAP=(sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$MEMCG_TOP/too_small")
said=$(try_mount "$TMP/refused" "$TMP/refused.mnt" staging=4M 2>&1) && die "a start in a cgroup of 64 MiB"
has "too_small allows 65536 KiB, which is too little" <<<"$said" && has "raise its limit" <<<"$said" || die "refused: $said"

# The kernel kills the worker, because another program in the cgroup takes all memory: the log and the notice say so.
memcg_make shared $((128 << 20))
LIB_WRAP=(sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$MEMCG_TOP/shared")
start_mount "$TMP/store" "$TMP/mnt" staging=8M
echo "before" >"$TMP/mnt/before"
worker=$(worker_pid "$TMP/mnt")
# Programs smaller than the worker: with the same score the kernel kills the largest, and with CAP_SYS_RESOURCE these
# are not killed at all.
memcg_run shared python3 - "$worker" <<-'P' || die "the worker lives while others take all memory"
	import mmap, os, signal, sys
	LOCKED = 0x2000		# MAP_LOCKED
	def lives():
	    try:
	        with open("/proc/%s/stat" % sys.argv[1]) as f:
	            return f.read().rsplit(")")[-1].split()[0] not in "ZX"
	    except OSError:
	        return False
	def score(value):
	    try:
	        with open("/proc/self/oom_score_adj", "w") as f:
	            f.write(value)
	    except OSError:
	        pass
	score("-1000")
	others = []
	while lives() and len(others) < 100:
	    ready, said = os.pipe()
	    pid = os.fork()
	    if pid == 0:
	        taken = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | LOCKED)
	        os.write(said, b"x")
	        signal.pause()
	    os.close(said)
	    others.append(pid)
	    os.read(ready, 1)
	    os.close(ready)
	died = not lives()
	for pid in others:
	    os.kill(pid, signal.SIGKILL)
	    os.waitpid(pid, 0)
	sys.exit(not died)
P
told() { status_field "$TMP/mnt" notices | has "the worker died, killed by the kernel: the memory cgroup .*shared allows 128 MiB"; }
retry 30 told || die "it is not told: $(status_field "$TMP/mnt" notices)"
[ "$(cat "$TMP/mnt/before")" = before ] || die "the file from before"
stop_mount "$TMP/mnt"
