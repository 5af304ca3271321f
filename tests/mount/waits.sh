#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# user.cairn.wait and cairn wait on a mount: one call until it is durable, across the worker's death and a lazy
# umount; a signal ends it, and so does a mount that is killed. fs_waits.cc has the outcomes.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

waiting() { [ "$(status_field "$m" wait_calls.now)" = "$1" ]; }
asked() { status_field "$m" wait_calls.asked; }
arrived() { waiting 1 || ! kill -0 $waiter 2>/dev/null; }
begin() # PATH [OPTION...]: cairn wait in the background, whose call has arrived
{
	local path=$1
	shift
	# not a job of this shell's, which would ignore SIGINT
	env --default-signal=INT "$cairn" wait "$@" "$path" 2>"$TMP/err" 8>&- &
	waiter=$!
	retry 60 arrived && kill -0 $waiter || die "cairn wait $path does not wait: $(cat "$TMP/err")"
}
ends() # CODE
{
	local rc=0
	wait $waiter || rc=$?
	[ $rc = "$1" ] || die "cairn wait: exit code $rc, not $1: $(cat "$TMP/err")"
}
restarted() { [ "$(status_field "$m" restarts)" = "$1" ]; }

start_mount "$s" "$m"
mkdir "$m/d"
exec 8>"$m/d/f"
echo bytes >&8

# one call, however long it takes
begin "$m/d" -q
before=$(asked)
sleep 1 # longer than any poll's distance
exec 8>&-
ends 0
cmp "$s/d/f" - <<<bytes || die "it ended, and the store has not got it"
[ "$(asked)" = "$before" ] || die "$(($(asked) - before)) more calls"
waiting 0 || die "a call of nobody's still waits"

# what is durable: one call, for one path or for many; one more for each if anything is pending. The mounts are read once
many() # CALLS: cairn wait of 300 directories makes that many
{
	local before
	before=$(asked)
	# with a descriptor each, and few more
	(ulimit -S -n 64 && ulimit -H -n 350 && expect 0 "$cairn" wait -q "$m"/many/*) || exit 1
	[ "$(asked)" = $((before + $1)) ] || die "$(($(asked) - before)) calls for 300 paths, not $1"
}
mkdir "$m/many"
(cd "$m/many" && mkdir $(seq 300))
expect 0 "$cairn" wait -q "$m"
before=$(asked)
expect 0 "$cairn" wait -q "$m/many"
[ "$(asked)" = $((before + 1)) ] || die "$(($(asked) - before)) calls for one path"
many 1
expect 2 "$cairn" wait -q "$m"/many/[12]* "$m/many/none"
says err "many/none: No such file"
expect 1 "$cairn" wait -q "$m"/many/[12]* "$m/.cairn/status"
says err "status has no state"
exec 8>"$m/d/e"
many 301
if command -v strace >/dev/null; then
	strace -f -o "$TMP/calls" -e trace=openat,getxattr "$cairn" wait -q --timeout 2 "$m"/many/* "$m/d" 2>"$TMP/err" &&
		die "cairn wait of an open file: 0"
	# one descriptor to hear of changes, one to read them; again when another case mounts something
	[ "$(grep -c mountinfo "$TMP/calls")" -lt 30 ] || die "mountinfo opened $(grep -c mountinfo "$TMP/calls") times"
	n=$(grep -c "getxattr.*user.cairn.wait" "$TMP/calls")
	[ "$n" -ge 302 ] && [ "$n" -lt 330 ] || die "$n getxattrs"
	# whether the mount answers: asked for the path that is waited for, not for each of them again and again
	n=$(grep -c "getxattr.*user.cairn.lane" "$TMP/calls")
	[ "$n" -lt 100 ] || die "$n questions whether the mount answers"
fi
exec 8>&-

# by hand
[ "$(xattr "$m/many" user.cairn.wait)" = durable ] || die "user.cairn.wait: $(xattr "$m/many" user.cairn.wait)"
getfattr -d -m - "$m/many" 2>/dev/null | has wait && die "user.cairn.wait is listed"

# a deadline, a signal, a removal
exec 8>"$m/d/g"
[ "$(xattr "$m/d" user.cairn.wait.1)" = open ] || die "user.cairn.wait.1: $(xattr "$m/d" user.cairn.wait.1)"
expect 3 "$cairn" wait -q --timeout 0.3 "$m/d"
says err "is not durable yet: open"
begin "$m/d" -q
kill -INT $waiter
ends 130
retry 60 waiting 0 || die "the call of a process that was killed still waits"
begin "$m/d/g" -q
rm "$m/d/g"
ends 1
has "was removed" <"$TMP/err" || die "of a removed file: $(cat "$TMP/err")"
exec 8>&-

# the worker's death: the kernel sends the call to the next one
exec 8>"$m/d/h"
if [ "$(printf '%s\n' 6.9 "$(uname -r)" | sort -V | head -1)" = 6.9 ]; then
	begin "$m/d" -q
	kill -KILL "$(worker_pid "$m")"
	retry 60 restarted 1 || die "no other worker"
	retry 60 arrived && kill -0 $waiter || die "the call did not come to the next worker"
	echo more >&8
	exec 8>&-
	ends 0
	cmp "$s/d/h" - <<<more || die "it ended across a restart, and the store has not got it"
	exec 8>"$m/d/i"
else
	note "before Linux 6.9: not across a worker's death"
fi

# the mount goes while it is waited for
begin "$m/d" -q --timeout 600
keeper=$(keeper_pid "$m")
umount -l "$m" || die "umount -l: $?"
exec 8>&-
ends 0
retry 60 eval "! kill -0 $keeper 2>/dev/null" || die "the daemon of an unmounted store is still there"

start_mount "$s" "$m"
exec 8>"$m/d/j"
begin "$m/d" -q
kill_mount "$m"
ends 1
has "is dead" <"$TMP/err" || die "of a dead mount: $(cat "$TMP/err")"
exec 8>&-
