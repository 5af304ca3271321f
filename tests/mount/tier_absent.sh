#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 60
# -o tier=DIR that is not there, or is no directory: what the mount says, and the status, before anything is to be sent.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
t=$TMP/tier
export COLUMNS=400
mkdir "$s" "$m"

touch "$TMP/file"
expect 1 "$BUILD/cairnfs" "$s" "$m" -o "tier=$TMP/file"
says err 'the tier .*/file is not a directory'
expect 1 "$BUILD/cairnfs" "$s" "$m" -o "tier=$TMP/file/below"
says err 'the tier .*/file/below is not a directory'

start_mount "$s" "$m" "tier=$t" 2>"$TMP/err"
says err 'warning: the tier .*/tier: No such file or directory; .*is sent when it is there'
is_told() { status_field "$m" tier.error | has "$t: No such file"; }
retry 60 is_told || die "no tier, and: $(status_field "$m" tier)"
expect 0 "$cairn" status "$m"
says out 'tier  *what it has is not known: '
says out 'TIER  *nothing is sent, for .*: No such file'
has 'has all' "$m/.cairn/status" && die "$(cat "$m/.cairn/status")"
[ ! -e "$t" ] || die "made"

# It comes.
mkdir "$t"
comes() { [ "$(status_field "$m" tier.error)" = null ]; }
retry 60 comes || die "the tier is there, and: $(status_field "$m" tier)"
[ -z "$(ls -A "$t")" ] || die "written to it without a checkpoint: $(ls -A "$t")"
cp -r "$assets/dcp" "$m/step-1"
expect 0 "$cairn" wait --tier "$m/step-1"
stop_mount "$m"
start_mount "$s" "$m" "tier=$t" 2>"$TMP/err"
grep tier "$TMP/err" && die "a warning, and it is there"
stop_mount "$m"
