#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# -o tier=DIR: each process that sends, or starts one that does, is killed in turn, also while it sends, and the keeper: a
# checkpoint that is saved afterwards gets to the tier. All of them at once: it is told. The next mount sends the rest.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
t=$TMP/tier
export COLUMNS=400
mkdir -p "$t"

n=0
save() { n=$((n + 1)); mkdir -p "$m/run"; cp -r "$assets/dcp" "$m/run/step-$n"; }
has_all() { [ -e "$t/.cairn/manifests/run/step-$n/manifest.json" ]; }
in_tier() { retry 60 has_all || die "$1: step-$n is not in the tier: $(status_field "$m" tier)"; }
is_new() { now=$(status_field "$m" "tier.$1") && [ "$now" != 0 ] && [ "$now" != "$2" ]; }
parent_is() { [ "$(awk '/^PPid:/ { print $2 }' "/proc/$1/status" 2>/dev/null)" = "$2" ]; }
in_order()
{
	local runner
	runner=$(status_field "$m" tier.runner)
	parent_is "$(status_field "$m" tier.pid)" "$runner" && parent_is "$runner" "$(status_field "$m" tier.guard)"
}

start_mount "$s" "$m" "tier=$t"
save
in_tier "at first"
for who in pid runner guard runner guard pid; do
	retry 30 is_new pid 0 || die "nothing sends: $(status_field "$m" tier)"
	old=$(status_field "$m" "tier.$who") follower=$(status_field "$m" tier.pid)
	starts=$(status_field "$m" tier.starts)
	kill -KILL "$old" || die "no process $old, which is the $who"
	save
	in_tier "$who was killed"
	retry 30 is_new "$who" "$old" || die "$who is still $now"
	retry 30 is_new pid "$follower" || die "the follower is still $follower"
	retry 30 in_order || die "not one below the other: $(status_field "$m" tier)"
	[ ! -d "/proc/$follower" ] || [ "$who" = pid ] || die "two followers, after $who was killed"
	[ "$(status_field "$m" tier.starts)" -gt "$starts" ] || die "starts"
done
[ "$(status_field "$m" tier.runner_starts)" -ge 5 ] || die "runner_starts: $(status_field "$m" tier)"
[ "$(metric "$m" tier_killed)" = 0 ] || die "metric"

# The keeper: the spare takes over, and they stay.
kill -KILL "$(status_field "$m" keeper_pid)" || die "no keeper"
save
in_tier "the keeper was killed"

# All at once, stopped before: nothing starts any of them.
pids="$(status_field "$m" tier.guard) $(status_field "$m" tier.runner) $(status_field "$m" tier.pid)"
# shellcheck disable=SC2086
kill -STOP $pids
# shellcheck disable=SC2086
kill -KILL $pids
killed() { [ "$(metric "$m" tier_killed)" = 1 ]; }
retry 30 killed || die "all were killed, and: $(status_field "$m" tier)"
expect 0 "$cairn" status "$m"
says out 'TIER  *all processes that send to it were killed; mount again'
save
wait_durable "$m/run/step-$n"
expect 1 "$cairn" wait --tier --timeout 100 "$m/run/step-$n"	# it would wait for ever
says err "step-$n is not in the tier: all processes that send to it were killed; mount again"
stop_mount "$m"
has_all && die "who sent it?"
start_mount "$s" "$m" "tier=$t"
in_tier "mounted again"
runner=$(status_field "$m" tier.runner) guard=$(status_field "$m" tier.guard)
stop_mount "$m"
ended() { [ ! -d "/proc/$1" ] || grep -q '^State:.*zombie' "/proc/$1/status"; }
ended "$runner" && ended "$guard" || die "processes are left after the unmount"
expect 0 "$cairn" tier verify "$t"
