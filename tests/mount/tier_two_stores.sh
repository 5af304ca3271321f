#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# -o tier=DIR of two stores: each is told of the other, nothing is refused; and nobody is told of itself, of one that wrote
# long ago, or of what is no mark.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
t=$TMP/tier s2=$TMP/store2 m2=$TMP/mnt2
export COLUMNS=400
mkdir "$t"
id() { cat "$1/.cairn/id"; }
# tells_of MNT STORE: what waits asks what the tier has
tells_of()
{
	expect 0 "$cairn" wait --tier "$1"
	expect 0 "$cairn" status "$1"
	says out "TIER  *store $(id "$2") (.*:$2) writes to this tier, too: checkpoints of equal names replace each other"
}
tells_of_none()
{
	expect 0 "$cairn" wait --tier "$1"
	expect 0 "$cairn" status "$1"
	grep 'writes to this tier' "$TMP/out" && die "told of another store"
	[ "$(status_field "$1" tier.other)" = null ] || die "tier.other: $(status_field "$1" tier.other)"
}

start_mount "$s" "$m" "tier=$t"
cp -r "$assets/dcp" "$m/step-1"
tells_of_none "$m"
start_mount "$s2" "$m2" "tier=$t"
tells_of "$m2" "$s"
tells_of_none "$m"	# the other one has sent nothing
cp -r "$assets/dcp" "$m2/step-2"
tells_of "$m2" "$s"
tells_of "$m" "$s2"
[ -e "$t/.cairn/manifests/step-2/manifest.json" ] || die "refused"
stop_mount "$m2"

# A push by hand says so, too. One that did long ago, and what is not a mark, does not count.
rm "$t/.cairn/stores/$(id "$s2")"
tells_of_none "$m"
expect 0 "$cairn" tier push "$s2" "$t"
tells_of "$m" "$s2"
mark=$t/.cairn/stores/$(id "$s2")
sed 's/"time_s": [0-9]*/"time_s": 1700000000/' "$mark" >"$TMP/mark"
for what in "$TMP/mark" /dev/null "$assets/dcp/.metadata"; do
	cp "$what" "$mark"
	tells_of_none "$m"
done
rm "$mark"
mkdir "$mark" "$t/.cairn/stores/x"
tells_of_none "$m"
stop_mount "$m"
