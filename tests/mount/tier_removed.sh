#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 60
# -o tier=DIR: checkpoints that are removed while they wait to be sent are no error.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
t=$TMP/tier
mkdir -p "$t" "$s/run"
for i in 1 2 3 4; do
	cp -r "$assets/dcp" "$s/run/step-$i"
	touch -d "2026-01-01 00:00:0$i" "$s/run/step-$i/.metadata" "$s/run/step-$i"
done
head -c 1M /dev/urandom >"$s/run/step-1/more"

# While the first one is sent the next two go; the follower knows that they are there.
start_mount "$s" "$m" "tier=$t,tier_rate=200K"
sends() { [ "$(status_field "$m" tier.sending)" = run/step-1 ]; }
retry 60 sends || die "step-1 is not sent: $(status_field "$m" tier)"
pid=$(status_field "$m" tier.pid)
kill -STOP "$pid"
sends || die "step-1 was sent within seconds: $(status_field "$m" tier)"
[ "$(status_field "$m" tier.pending)" = 4 ] || die "not all wait: $(status_field "$m" tier)"
rm -r "$m/run/step-2" "$m/run/step-3"
gone() { [ ! -e "$s/run/step-2" ] && [ ! -e "$s/run/step-3" ]; }
retry 60 gone || die "they are in the store"
kill -CONT "$pid"
sent() { [ "$(status_field "$m" tier.pending)" = 0 ]; }
until sent; do
	[ "$(status_field "$m" tier.error)" = null ] || die "it is an error: $(status_field "$m" tier.error)"
	sleep 0.05
done
[ -e "$t/run/step-4/.metadata" ] || die "step-4 was not sent"
stop_mount "$m"
grep 'No such file' "$s"/.cairn/*/log && die "logged"
exit 0
