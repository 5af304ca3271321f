#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn on a store that fails: wait and umount say so and why, status shows it, retry is heard.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

need_root
need_tool xfs_io
make_disk disk ext4 256M
s=$TMP/disk/store
start_mount "$s" "$m"
echo before >"$m/before"
expect 0 "$cairn" wait "$m"

# A mapping holds the version back until the store is dead; its bytes were written, its blocks
# allocated and its close answered before.
map_and_hold "$m/victim" "$TMP/go" written &
mapper=$!
on_exit 'kill $mapper 2>/dev/null'
retry 20 test -e "$TMP/go" || die "the mapper did not start"
xfs_io -x -c shutdown "$TMP/disk" || die "cannot shut the disk down"
kill $mapper
wait $mapper 2>/dev/null

expect 1 "$cairn" wait --timeout 60 "$m/victim"
says err victim
says err "error\|failed"
expect 1 "$cairn" umount "$m"
says err "stays mounted"
is_mounted "$m" || die "unmounted with a file that failed"
expect 0 "$cairn" status "$m"
says out 'HALTED\|STORE GONE'	# the worker may have noticed meanwhile that the disk is stopped
expect 0 "$cairn" status --json "$m"
python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert (d["halted"] or d["store_gone"])["error"]' "$TMP/out" || die "halted is not told"
expect 0 "$cairn" retry "$m"
expect 1 "$cairn" wait --timeout 60 "$m/victim"	# nothing was repaired
kill_mount "$m"
