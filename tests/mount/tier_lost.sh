#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# -o tier=DIR: what the tier loses while the mount is up is sent again, and nothing says meanwhile that it is there: it loses
# one checkpoint, all of them, a file while it is away.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier
mkdir "$t"

there() { local i; for i; do same_tree "$assets/dcp" "$t/run/step-$i"; done; }
all_there() { there 1 2 && [ "$(find "$t/.cairn/manifests" -name manifest.json | wc -l)" = 2 ]; }
# Whoever waits asks what the tier has.
is_told() { "$cairn" wait --tier --timeout 1 "$m" 2>"$TMP/err" && die "the tier is away"; has "$t: No such file" "$TMP/err"; }

start_mount "$s" "$m" "tier=$t"
save 1
save 2
expect 0 "$cairn" wait --tier "$m"
all_there || die "not sent"
ino=$(stat -c %i "$t/run/step-2/__0_0.distcp")

# One of them. The other one is not sent again.
rm -r "$t/run/step-1" "$t/.cairn/manifests/run/step-1"
expect 0 "$cairn" wait --tier "$m/run/step-1"
all_there || die "wait --tier returned, and step-1 is not there"
[ "$(stat -c %i "$t/run/step-2/__0_0.distcp")" = "$ino" ] || die "step-2 was sent again"

# All
find "$t/run" "$t/.cairn/manifests" -mindepth 1 -delete
expect 0 "$cairn" wait --tier "$m"
all_there || die "wait --tier returned, and the tier is empty: $(find "$t")"

# It is away. That is noticed without anything to be sent; and when it is back all is compared again: a file is gone.
mv "$t" "$TMP/away"
retry 60 is_told || die "the tier is away, and: $(status_field "$m" tier)"
expect 0 "$cairn" status "$m"
says out 'tier  *what it has is not known: '
says out 'TIER  *nothing is sent, for .*: No such file'
rm "$TMP/away/run/step-2/__0_0.distcp"
mv "$TMP/away" "$t"
expect 0 "$cairn" wait --tier "$m"
all_there || die "a file that was lost while the tier was away was not sent again: $(find "$t/run")"
expect 0 "$cairn" status "$m"
says out 'tier  *has all that is complete'

# It takes nothing more, and what it has is there.
mkdir -p "$t/.cairn/manifests/run/step-3/begun.json"
save 3
fails() { status_field "$m" tier.error | has 'step-3: Is a directory'; }
retry 60 fails || die "no error: $(status_field "$m" tier)"
expect 0 "$cairn" wait --tier --timeout 60 "$m/run/step-1"
fails || die "the error is not told any more"
rmdir "$t/.cairn/manifests/run/step-3/begun.json"
expect 0 "$cairn" wait --tier "$m"
stop_mount "$m"
expect 0 "$cairn" tier verify "$t"
