#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn: what is asked wrongly ends with exit code 2 and one line that says why.
# modes: fast
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

expect 2 "$cairn"
says err usage
expect 2 "$cairn" frobnicate
says err frobnicate
expect 2 "$cairn" wait
expect 2 "$cairn" wait --timeout soon /
says err soon
for time in -1 5d 5ms 0x5 m 1e400h ''  '5 m'; do
	expect 2 "$cairn" wait --timeout "$time" /
	says err "not a duration"
	expect 2 "$cairn" umount --timeout "$time" /
	says err "not a duration"
done
expect 2 "$cairn" ls --nonsense
says err nonsense
expect 2 "$cairn" ls --json -zl
says err 'value: -z;'
expect 0 "$cairn" wait / -h
says out 'usage: cairn wait'
for sub in ls wait timeline verify umount; do
	expect 2 "$cairn" $sub "$TMP/missing"
	says err "No such file"
	expect 2 "$cairn" $sub /proc
	says err "neither on a cairnfs mount nor in a store"
	[ "$(wc -l <"$TMP/err")" = 1 ] || die "$sub: more than one line: $(cat "$TMP/err")"
done
expect 0 "$cairn" help
awk 'length > 80 { exit 1 }' "$TMP/out" || die "more than 80 columns: $(cat "$TMP/out")"
subs=$(sed -n 's/^  \([a-z-]*\) .*/\1/p' "$TMP/out")
[ "$(wc -w <<<"$subs")" -ge 17 ] || die "cairn help lists only: $subs"
for sub in $subs; do
	expect 0 "$cairn" help $sub
	says out "usage: cairn $sub"
	mv "$TMP/out" "$TMP/help"
	expect 0 "$cairn" $sub --help
	cmp "$TMP/out" "$TMP/help" || die "cairn $sub --help is not cairn help $sub"
	awk 'length > 80 { exit 1 }' "$TMP/out" || die "more than 80 columns: $(cat "$TMP/out")"
done
expect 0 "$cairn" version
says out '^cairn [0-9]'
expect 1 bash -c '"$0" version >/dev/full' "$cairn"

# On the mount of a cairnfs that was killed: each says so, in one line, and what to do.
start_mount "$s" "$m"
echo hello >"$m/f"
wait_durable "$m"

# The control file takes two words, each as it is.
for line in retry drain; do
	echo "$line" >"$m/.cairn/control" || die "control: $line"
	printf %s "$line" >"$m/.cairn/control" || die "control: $line, without a line's end"
done
for line in "retry x" retryx "retry drain" dra sync "drain "; do
	echo "$line" 2>"$TMP/err" >"$m/.cairn/control" && die "control takes '$line'"
	says err "Invalid argument"
done
keeper=$(keeper_pid "$m") worker=$(worker_pid "$m")
kill -KILL "$keeper" "$worker"
retry 10 lib_pid_gone "$worker" || die "the worker survived SIGKILL"
for sub in status ls tensors check latest "rm --keep-last 1" wait timeline verify retry umount; do
	# shellcheck disable=SC2086	# a subcommand and its option
	expect 1 "$cairn" $sub "$m"
	says err "is dead; start it again with"
	[ "$(cat "$TMP/out" "$TMP/err" | wc -l)" = 1 ] || die "$sub: more than one line: $(cat "$TMP/out" "$TMP/err")"
done
umount -l "$m"
start_mount "$s" "$m"
rc=0
ln "$m/.cairn/status" "$m/name" 2>"$TMP/err" || rc=$?
[ $rc != 0 ] && says err "not permitted"
stop_mount "$m"
