#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# `cairn wait --tier` says what it waits for where that may never come: a checkpoint whose bytes changed after its commit, one
# that is in the way there, a tier that is away. It goes on when that is mended.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier
mkdir "$t"
start_mount "$s" "$m" "tier=$t"
save 1
save 2
expect 0 "$cairn" wait --tier "$m"

# begins NAME PATH: a wait without a limit; told NAME TEXT: what it says; goes_on NAME: and ends well
begins() { "$cairn" wait --tier "$2" 2>"$TMP/said.$1" & waits=$!; on_exit "kill $waits 2>/dev/null"; }
told() { retry 60 has "$2" "$TMP/said.$1" || die "$1: not told: $(cat "$TMP/said.$1"): $(status_field "$m" tier)"; }
goes_on() { wait $waits || die "$1: $(cat "$TMP/said.$1")"; }

# Its bytes, in the store: of that nobody but a person can make a copy.
printf x | dd of="$s/run/step-1/__0_0.distcp" bs=1 seek=100 conv=notrunc 2>"$TMP/dd" || die "$(cat "$TMP/dd")"
begins bytes "$m/run/step-1"
told bytes 'step-1 is not in the tier: .*__0_0.distcp: its bytes are not those that were persisted.*; waiting for that'
expect 3 "$cairn" wait --tier --timeout 1 "$m/run/step-1"
says err 'its bytes are not those that were persisted'
expect 0 "$cairn" wait --tier --timeout 60 "$m/run/step-2"	# what is there does not wait for it
rm -r "$m/run/step-1"
save 1
goes_on bytes
[ "$(grep -c 'waiting for that' "$TMP/said.bytes")" = 1 ] || die "told again and again: $(cat "$TMP/said.bytes")"

# Somebody else's file is in the way. Who waits for all of a run hears it, too.
mkdir -p "$t/run/step-3" && echo theirs >"$t/run/step-3/__0_0.distcp"
save 3
begins way "$m/run"
told way '/run is not in the tier: .*step-3/__0_0.distcp: in the way: it is not of a push'
rm -r "$t/run/step-3"
touch "$m/run/step-3/.metadata"	# it is looked at anew
goes_on way

# The tier is away.
mv "$t" "$TMP/away"
begins away "$m/run/step-2"
told away "step-2 is not in the tier: $t: No such file"
mv "$TMP/away" "$t"
goes_on away
stop_mount "$m"
