#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# What the program that starts cairnfs has open is not kept by the mount: a lock of a prolog, a pipe that somebody reads
# to its end.
. "$(dirname "$0")/../lib/lib.sh"
need_tool flock
s=$TMP/store m=$TMP/mnt

mkfifo "$TMP/pipe"
cat "$TMP/pipe" >"$TMP/read" &
reader=$!
exec 8>"$TMP/pipe" 9>"$TMP/lock"
flock 9
start_mount "$s" "$m"
exec 8>&- 9>&-
flock -n "$TMP/lock" true || die "the mount holds the lock of the program that started it"
retry 20 sh -c "! kill -0 $reader 2>/dev/null" || die "the mount holds the pipe of the program that started it"
for pid in $(keeper_pid "$m") $(worker_pid "$m") $(lib_children "$(keeper_pid "$m")"); do
	find "/proc/$pid/fd" -lname "$TMP/lock" -o -lname "$TMP/pipe" | has . && die "process $pid has them open"
done
stop_mount "$m"
