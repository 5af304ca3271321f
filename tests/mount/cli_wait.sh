#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn wait: exit codes, several paths, a path that is renamed or removed meanwhile.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

# the subcommand runs in a child of the command
watches() { pgrep -P "$1" | while read -r pid; do readlink "/proc/$pid"/fd/*; done | has -xF "$2"; }

start_mount "$s" "$m"
mkdir "$m/d"
head -c 20000000 /dev/urandom >"$TMP/data"
cp "$TMP/data" "$m/d/x"
expect 0 "$cairn" wait "$m/d"
[ "$(state "$m/d/x")" = durable ] || die "wait ended before x was durable: $(state "$m/d/x")"
cmp "$TMP/data" "$s/d/x" || die "durable, and the store differs"
expect 0 "$cairn" wait --timeout 0 "$m/d/x"

# still being written: a timeout, for a file and for what it is in
exec 8>"$m/d/held"
echo bytes >&8
expect 3 "$cairn" wait --timeout 0.2 "$m/d/held"
says err "held is not durable"
for time in 0.01m 0.0002h 0.6s; do	# minutes and hours are that long, at least
	start=$(date +%s%N)
	expect 3 "$cairn" wait --timeout $time "$m/d/held"
	[ $((($(date +%s%N) - start) / 1000000)) -ge 600 ] || die "--timeout $time ended before that"
done
expect 3 "$cairn" wait --timeout 0 "$m"
expect 3 "$cairn" wait --timeout 0 "$m/d/x" "$m/d/held"

# renamed while waited for
"$cairn" wait --timeout 60 "$m/d" 2>"$TMP/err" 8>&- &
waiter=$!
retry 20 watches $waiter "$m/d" || die "wait does not hold $m/d"
mv "$m/d" "$m/e"
exec 8>&-
wait $waiter || die "wait over a rename: exit code $?: $(cat "$TMP/err")"
[ "$(state "$m/e/held")" = durable ] || die "wait ended before: $(state "$m/e/held")"

# removals count when the root is waited for
rm -r "$m/e"
expect 0 "$cairn" wait "$m"
[ ! -e "$s/e" ] || die "waited, and the removal has not reached the store"

# removed while waited for
exec 8>"$m/gone"
"$cairn" wait --timeout 60 "$m/gone" 2>"$TMP/err" 8>&- &
waiter=$!
# the mount is opened after the file's path is known: before that there would be nothing to wait for
retry 20 watches $waiter "$m" || die "wait does not hold $m/gone"
rm "$m/gone"
exec 8>&-
rc=0
wait $waiter || rc=$?
[ $rc = 1 ] || die "waiting for a file that was removed: exit code $rc, not 1"
stop_mount "$m"

expect 2 "$cairn" wait "$s"
says err "not on a mount"
