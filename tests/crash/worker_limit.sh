#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 120
#
# A worker that dies 5 times in 10 s: a clear log line, an aborted mount, staging kept,
# and the next start recovers all of it.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"

store=$TMP/store
mkdir -p "$store" "$MNT"
point_begin "$CRASH_SEED"
LIB_STORE[$MNT]=$store
"$BUILD/cairnfs" -f "$store" "$MNT" -o "$(mount_opts)" </dev/null 2>"$TMP/log" &
front=$!
retry 20 read_status || die "not mounted: $(cat "$TMP/log")"
read_daemon
load_start "$MNT/run" -t 60000 -f 0
msleep 300
"$TOOL/load" -c crash "$HIST"	# also ends the load: kill until then
deaths=0
while [ $deaths -lt 8 ] && read_status; do
	status_text pid
	if [ "$REPLY" != "$WORKER" ] || [ $deaths = 0 ]; then
		WORKER=$REPLY
		kill -KILL "$WORKER"
		deaths=$((deaths + 1))
	fi
	sleep 0.01
done
retry 20 lib_pid_gone "$front" || die "the keeper goes on after $deaths deaths: $(cat "$TMP/log")"
wait "$front"
rc=$?
[ $rc != 0 ] || die "the keeper gave up, but its exit code says all is well"
[ $deaths -ge 5 ] || die "the keeper gave up after only $deaths deaths"
grep -Eiq 'worker.*(died|times|gave|giv)' "$TMP/log" || die "no clear line in the log: $(cat "$TMP/log")"
note "$(tail -n 1 "$TMP/log")"
is_mounted "$MNT" || die "the mountpoint is bare: it takes files that are meant for the store"
! ls "$MNT/run" >/dev/null 2>&1 || die "the mount still answers"
! touch "$MNT/stray" 2>/dev/null || die "a file was made where no cairnfs serves"
load_kill
mount_drop
[ -n "$(find "$STAGING" -type f | head -n 1)" ] || die "staging was not kept"
check_tree "$store/run" -k
[ "$LOST" -gt 0 ] || note "nothing was pending at the last death"
crash_mount "$store"
drain
check_tree "$store/run" -a -k
check_tree "$MNT/run" -a -k
clean_stop
