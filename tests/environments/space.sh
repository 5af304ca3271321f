#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# The core where there is little space: a store that is nearly full, a tiny and a huge staging, few
# descriptors.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/core.inc"
need_root

make_disk nearly ext4 96M
fallocate -l $((($(stat -f -c '%a * %S' "$TMP/nearly") - 24 * 1048576))) "$TMP/nearly/ballast" || die "fill"
core "24 MiB free" "$TMP/nearly/store" staging=32M

# A loop that saves without a pause and keeps the last two: three checkpoints fit, as with plain calls. ext2 has no
# fallocate.
head -c 15M /dev/urandom >"$TMP/shard"
save()	# DIR
{
	local k
	mkdir "$1"
	for k in 1 2; do
		dd "if=$TMP/shard" "of=$1/shard$k" bs=1M conv=fsync status=none || return 1
	done
	echo all >"$1/.metadata"
}
keep_two()	# STORE OPTS
{
	local i
	start_mount "$1" "$core_mnt" "$2"
	for i in {1..8}; do
		save "$core_mnt/step-$i" || die "$2: checkpoint $i, with $(free_mib "$1") MiB free"
		[ "$i" -le 2 ] || rm -r "$core_mnt/step-$((i - 2))" || die "$2: rm"
	done
	within 60 "$BUILD/cairn" wait -q "$core_mnt" || die "$2: cairn wait"
	for i in {7..8}; do
		cat "$1/step-$i/shard1" "$1/step-$i/shard2" | cmp - <(cat "$TMP/shard" "$TMP/shard") ||
			die "$2: checkpoint $i in the store"
	done
	rm -r "$core_mnt"/step-*
	stop_mount "$core_mnt"
	note "keeps two: $2: good"
}
make_disk old ext2 116M
! fallocate -l 1M "$TMP/old/can" 2>/dev/null || note "ext2 has fallocate here"
rm -f "$TMP/old/can"
for options in staging=64M staging=512M staging=64M,fsync=staged staging=512M,fsync=staged; do
	keep_two "$TMP/old/store" "$options"
done
rm "$TMP/shard"

core "staging=4M" "$TMP/tiny" staging=4M
core "staging is half of the memory" "$TMP/huge" "staging=$(awk '/^MemTotal/ { print int($2 / 2048) }' /proc/meminfo)M"
LIB_WRAP=(bash -c 'ulimit -n 64; exec "$@"' -)
core "64 descriptors" "$TMP/few"

# A path deeper than there are descriptors, and more directories: known since they were made, and not known.
m=$TMP/mnt deep=$(printf 'd%d/' {1..100})
for round in new again; do
	start_mount "$TMP/few" "$m" staging=64M,pool=0
	mkdir -p "$m/$deep"
	echo $round >"$m/$deep/file"
	for i in {1..80}; do
		mkdir -p "$m/wide/$i/in" && echo $round >"$m/wide/$i/in/file" || die "64 descriptors: $round, directory $i"
	done
	wait_durable "$m"
	[ "$(status_field "$m" halted)" = null ] || die "64 descriptors: $round: $(status_field "$m" halted)"
	! has -i 'too many open files' "$m/.cairn/status.json" || die "64 descriptors: $(status_field "$m" notices)"
	stop_mount "$m"
	[ "$(cat "$TMP/few/$deep/file" "$TMP/few"/wide/*/in/file | sort | uniq -c | tr -s ' ')" = " 81 $round" ] ||
		die "64 descriptors: $round: not all is in the store"
done
