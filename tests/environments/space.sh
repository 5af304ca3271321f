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
