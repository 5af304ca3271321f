#!/bin/bash
# SPDX-License-Identifier: MIT
# A worker that is stopped: each subcommand says so within its limit and ends, also one whose request the worker has
# read, which not even SIGKILL ends. When the worker continues, all is as before.
# modes: fast
# timeout: 60
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

start_mount "$s" "$m"
mkdir "$m/step-1" "$m/step-2"
cp "$assets"/dcp/*/* "$m/step-1" 2>/dev/null
echo bytes >"$m/step-1/f"
wait_durable "$m"
worker=$(worker_pid "$m") restarts=$(status_field "$m" restarts)
on_exit 'kill -CONT $worker 2>/dev/null'

expect 0 "$cairn" metrics "$m"
says out '^cairnfs_up{mount="'"$m"'"} 1$'
says out '^cairnfs_pending_bytes{'
expect 2 "$cairn" ls --timeout soon "$m"
says err "not a duration"
expect 2 "$cairn" ls "$m" --timeout
says err "missing value: --timeout"
expect 0 "$cairn" status --timeout=1m "$m"
says out "everything is durable"

# one whose request the worker has read, into pipes that somebody reads to their end
sleep 1000 >"$m/step-2/open" & # no other has it, whose exit were a call on the mount
holder=$!
on_exit 'kill $holder 2>/dev/null'
retry 20 test -e "$m/step-2/open" || die "nobody writes step-2/open"
waiting() { [ "$(status_field "$m" wait_calls.now)" = "$1" ]; }
(rc=0; out=$("$cairn" wait -q --timeout 8 "$m/step-2" 2>&1) || rc=$?; echo "$rc $out" >"$TMP/waited") &
waiter=$!
retry 20 waiting 1 || die "cairn wait does not wait"

kill -STOP "$worker"
for sub in status metrics ls tensors "check --quick" latest "rm --keep-last 1" timeline "top --once" verify retry umount \
	"wait -q" "commit --force" discard; do
	(
		path=$m/step-1 rc=0
		case $sub in status | metrics | retry | umount) path=$m ;; esac
		# shellcheck disable=SC2086	# a subcommand and its options
		within 30 "$cairn" $sub --timeout 0.5 "$path" >"$TMP/out.${sub%% *}" 2>"$TMP/err.${sub%% *}" || rc=$?
		echo $rc >"$TMP/rc.${sub%% *}"
	) &
	jobs+=($!)
done
wait "${jobs[@]}" $waiter
state=$(sed 's/.*) //' "/proc/$worker/stat")
kill -CONT "$worker"
[[ $state == T* ]] || die "the worker was not stopped: $state"

for sub in status ls tensors check latest rm timeline top verify retry umount wait commit discard metrics; do
	want=3
	[ $sub != metrics ] || want=0
	[ "$(cat "$TMP/rc.$sub")" = $want ] ||
		die "$sub: exit code $(cat "$TMP/rc.$sub"), not $want: $(cat "$TMP/out.$sub" "$TMP/err.$sub")"
	has "no answer for .* the worker (pid $worker) of $m is stopped; .* safe in staging.* kill -CONT $worker" <"$TMP/err.$sub" ||
		die "$sub: $(cat "$TMP/err.$sub")"
	[ "$(wc -l <"$TMP/err.$sub")" = 1 ] || die "$sub: more than one line: $(cat "$TMP/err.$sub")"
done
has -x "cairnfs_up{mount=\"$m\"} 0" <"$TMP/out.metrics" || die "metrics: $(cat "$TMP/out.metrics")"
has "^3 .*no answer for" <"$TMP/waited" || die "cairn wait, whose call the worker had read: $(cat "$TMP/waited")"

is_mounted "$m" || die "not mounted any more"
kill $holder
expect 0 "$cairn" wait -q "$m"
[ "$(worker_pid "$m") $(status_field "$m" restarts)" = "$worker $restarts" ] || die "the worker was replaced"
expect 0 "$cairn" status "$m"
retry 20 waiting 0 || die "the call of a process that was ended still waits"
expect 0 "$cairn" umount "$m"
