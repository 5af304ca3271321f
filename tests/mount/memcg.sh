#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
# set: rest
#
# A trainer in a memory cgroup: what it writes is charged to the daemon's cgroup, not to its own, so
# that a small limit does not get it killed.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"
. "$(dirname "$0")/memcg.inc"
memcg_init

store=$TMP/store mnt=$TMP/mnt
limit=$((120 << 20)) slack=$((64 << 20))
memcg_make empty $limit
memcg_run empty dd if=/dev/zero of=/dev/null bs=1M count=1 status=none || die "a program of its own"
most=$(($(memcg_peak empty) + slack))
note "an empty program: $(($(memcg_peak empty) >> 10)) KiB"

n=0
# trainer WHAT FILE command...: a program that writes FILE in a new cgroup. In the spill lane, and for a mapping
# in the relay lane, page cache is charged to it, as on any filesystem of a disk, and the kernel reclaims it
# at the limit.
trainer()
{
	local what=$1 file=$2 peak cached
	shift 2
	n=$((n + 1))
	memcg_make "t$n" $limit
	memcg_run "t$n" "$@" || die "$what: exit code $?; killed for memory: $(memcg_killed "t$n")"
	peak=$(memcg_peak "t$n")
	note "$what: $(lane "$file"), $((peak >> 20)) MiB"
	cached=$(lane "$file")
	[ "${what##*, }" != mapped ] || cached=${cached/relay/spill}
	[ "$peak" -le $most ] || [ "$cached" = spill ] || die "$what: charged for $((peak >> 20)) MiB"
}

put() { echo "dd if=/dev/zero of=$1 status=none bs=1M count=$2"; }

# shellcheck disable=SC2046	# words
for opts in staging=2G staging=2G,pool=768M staging=96M; do
	start_mount "$store" "$mnt" "$opts"
	mkdir "$mnt/step-1" "$mnt/step-2" "$mnt/small"
	a=$mnt/step-1/first.bin b=$mnt/step-2/first.bin
	trainer "$opts, size unknown" "$a" $(put "$a" 200)
	trainer "$opts, size known" "$b" $(put "$b" 200)
	case $opts in staging=2G*)
		trainer "$opts, larger than known" "$b" $(put "$b" 350)
		trainer "$opts, appended" "$a" $(put "$a" 150) oflag=append conv=notrunc
		trainer "$opts, in large writes" "$mnt/large.pt" $(put "$mnt/large.pt" 3) bs=50M
		trainer "$opts, mapped" "$mnt/mapped" python3 - "$mnt/mapped" <<-'P'
			import mmap, sys
			with open(sys.argv[1], "w+b") as f:
			    f.truncate(200 << 20)
			    with mmap.mmap(f.fileno(), 0) as m:
			        for at in range(0, 200 << 20, 4096):
			            m[at] = 1
		P
		;;
	esac
	trainer "$opts, small files" "$mnt/small/n1998" python3 - "$mnt/small" <<-'P'
		import sys
		for i in range(2000):
		    name = "".join(chr(97 + (i >> s & 15)) for s in (0, 4, 8)) if i % 2 else "n%d" % i
		    with open(sys.argv[1] + "/" + name, "wb") as f:
		        f.write(b"x" * 65536)
	P
	wait_durable "$mnt"
	cmp "$mnt/step-2/first.bin" "$store/step-2/first.bin" || die "first.bin in the store"
	[ -z "$(find "$mnt" -size -1999k -name first.bin)" ] || die "first.bin is too short"
	rm -r "$mnt/step-1" "$mnt/step-2" "$mnt/small"
	end_mount "$mnt"
done

# Where nothing limits the writer its files take the fast lane, of unknown size too, and most of their
# memory is there before it writes.
if [ "$MODE" = fast ]; then
	start_mount "$store" "$mnt" staging=4G
	need_passthrough "$mnt"
	memcg_make free max
	memcg_run free $(put "$mnt/free.bin" 800) bs=1M || die "a writer without a limit"
	peak=$(memcg_peak free)
	note "no limit, size unknown: $(lane "$mnt/free.bin"), $((peak >> 20)) MiB of 800"
	[ "$(lane "$mnt/free.bin")" = fast ] || die "not in the fast lane"
	[ "$peak" -lt $((400 << 20)) ] || die "charged for $((peak >> 20)) MiB of 800"
	[ "$(stat -c %b "$mnt/free.bin")" = $((800 * 2048)) ] || die "more than 800 MiB are kept of it"
	wait_durable "$mnt"
	end_mount "$mnt"
fi

# The daemon's own limit: staging is as small as it allows, and says so. Files that outgrow it go to the store.
memcg_make daemon $((256 << 20))
memcg_enter daemon
start_mount "$store" "$mnt" staging=2G
memcg_leave
budget=$(status_field "$mnt" staging.budget_bytes)
[ "$budget" -le $((192 << 20)) ] && [ "$budget" -ge $((64 << 20)) ] || die "staging is $budget in a cgroup of 256 MiB"
status_field "$mnt" notices | has "staging is 192 MiB instead of 2048" || die "it is not told: $(status_field "$mnt" notices)"
$(put "$mnt/large.1" 500) || die "a file larger than the daemon's cgroup"
$(put "$mnt/large.2" 500) || die "another one, of known size"
wait_durable "$mnt"
cmp "$mnt/large.2" "$store/large.2" || die "large.2 in the store"
note "in a cgroup of 256 MiB: $(lane "$mnt/large.1"), $(lane "$mnt/large.2"), $(($(memcg_peak daemon) >> 20)) MiB"
[ "$(memcg_killed daemon)" = 0 ] || die "the daemon was killed for its memory"
end_mount "$mnt"
