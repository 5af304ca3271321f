#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# -o tier=DIR, and a follower that begins anew: what it has not sent comes before it looks at what an earlier one sent, of
# which it knows by its sent.json. Whatever is in that file, nothing counts as sent that is not in the tier: it is truncated,
# damaged, of another tier, or cannot be written; the tier has lost a file, a manifest, all; checkpoints are replaced and
# removed.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
t=$TMP/tier ref=$TMP/ref
mkdir -p "$t" "$TMP/tier2" "$s/run" "$ref"

# put N: a checkpoint, into the store without its mount
put()
{
	rm -rf --one-file-system "${s:?}/run/step-$1" "${ref:?}/step-$1"
	cp -r "$assets/dcp" "$s/run/step-$1"
	echo "$1 $RANDOM" >"$s/run/step-$1/note.txt"
	cp -a "$s/run/step-$1" "$ref"
}
own() { printf '%s\n' "$s"/.cairn/*/tier; }
follower_says() { has "\"path\": \"run/step-$1\", \"state\": \"$2\"" "$(own)/status.json"; }
is_sent() { follower_says "$1" sent && [ -e "$t/.cairn/manifests/run/step-$1/manifest.json" ]; }
sent() { local i; for i; do retry 60 is_sent "$i" || die "step-$i is not sent: $(cat "$(own)/status.json")"; done; }
# remembers N...: exactly these
remembered()
{
	python3 -c 'import json, sys
print(*sorted(int(c["path"][9:]) for c in json.load(open(sys.argv[1]))["checkpoints"]))' "$(own)/sent.json" 2>/dev/null
}
is_remembered() { [ "$(remembered)" = "$*" ]; }
remembers() { retry 60 is_remembered "$@" || die "sent.json has $(remembered), not $*"; }
# Whoever looks at what the tier has of it fails; what an error is worth that is not of one checkpoint.
lock() { local i; for i; do mkdir -p "$t/.cairn/manifests/run/step-$i/begun.json"; done; }
unlock() { local i; for i; do rmdir "$t/.cairn/manifests/run/step-$i/begun.json"; done; }
told() { status_field "$m" tier.error | has 'step-1: Is a directory'; }
same() { local i; for i; do same_tree "$ref/step-$i" "$t/run/step-$i"; done; }

for i in $(seq 50); do put "$i"; done
start_mount "$s" "$m" "tier=$t"
# shellcheck disable=SC2046
sent $(seq 50)
# shellcheck disable=SC2046
remembers $(seq 50)
ino=$(stat -c %i "$t/run/step-7/note.txt")
stop_mount "$m"

# 49 are there, one is new, one is another, one is gone: the tier is not asked about the 49 first. And none of them counts
# before it is.
put 51
put 20
rm -r "$s/run/step-30"
# shellcheck disable=SC2046
lock $(seq 1 19) $(seq 21 29) $(seq 31 50)
start_mount "$s" "$m" "tier=$t"
sent 20 51
same 20 51
for i in 1 19 21 50; do
	follower_says "$i" waiting || die "step-$i counts as sent, and was not looked at: $(cat "$(own)/status.json")"
done
retry 60 told || die "what cannot be looked at is not told: $(status_field "$m" tier)"
expect 3 "$cairn" wait --tier --timeout 1 "$m/run/step-1"
follower_says 30 . && die "step-30 is not in the store"
kill -KILL "$(status_field "$m" tier.pid)"
cp -r "$assets/dcp" "$m/run/step-52"
sent 52
# shellcheck disable=SC2046
unlock $(seq 1 19) $(seq 21 29) $(seq 31 50)
# shellcheck disable=SC2046
sent $(seq 29) $(seq 31 52)
# shellcheck disable=SC2046
remembers $(seq 29) $(seq 31 52)
[ "$(stat -c %i "$t/run/step-7/note.txt")" = "$ino" ] || die "step-7 was sent again"
stop_mount "$m"

# The rest with six.
for i in $(seq 7 50) 51 52; do rm -rf --one-file-system "${s:?}/run/step-$i"; done

# What the tier has lost comes again.
rm "$t/run/step-2/__0_0.distcp" "$t/.cairn/manifests/run/step-3/manifest.json"
truncate -s 100 "$t/run/step-5/note.txt"
start_mount "$s" "$m" "tier=$t"
expect 0 "$cairn" wait --tier "$m/run"
same 1 2 3 4 5 6
remembers 1 2 3 4 5 6
cp "$(own)/sent.json" "$TMP/sent.json"
stop_mount "$m"

# The same bytes as they were remembered, and a tier that was emptied.
find "$t/run" "$t/.cairn/manifests" -mindepth 1 -delete
start_mount "$s" "$m" "tier=$t"
expect 0 "$cairn" wait --tier "$m"
same 1 2 3 4 5 6
stop_mount "$m"

# Files of other bytes. With a directory in its place nothing can be remembered.
full=$(wc -c <"$TMP/sent.json")
for what in '' 100 no_json other_types paths directory; do
	rm -rf "$(own)/sent.json"
	case $what in
	'') ;;
	[0-9]*) head -c "$what" "$TMP/sent.json" ;;
	no_json) head -c "$full" /dev/urandom ;;
	other_types) sed 's/"files": \([0-9]*\)/"files": "\1"/; s/"print"/"prints"/3' "$TMP/sent.json" ;;
	paths) sed 's|run/step-1"|../../x"|; s|run/step-2"|"|; s|run/step-3"|run/step-4"|' "$TMP/sent.json" ;;
	directory) mkdir -p "$(own)/sent.json/x" ;;
	esac >"$TMP/new"
	[ ! -s "$TMP/new" ] || cp "$TMP/new" "$(own)/sent.json"
	rm -rf --one-file-system "$t/run/step-1" "$t/.cairn/manifests/run/step-1"
	start_mount "$s" "$m" "tier=$t"
	sent 1 2 3 4 5 6
	same 1 2 3 4 5 6
	[ "$what" = directory ] || remembers 1 2 3 4 5 6
	stop_mount "$m"
done
rm -r "$(own)/sent.json"

# It cannot be written: the tier gets all nevertheless, and it is written later.
mkdir "$(own)/sent.json.new"
put 7
start_mount "$s" "$m" "tier=$t"
sent 1 2 3 4 5 6 7
[ ! -e "$(own)/sent.json" ] || die "written through a directory"
rmdir "$(own)/sent.json.new"
remembers 1 2 3 4 5 6 7
stop_mount "$m"

# Another tier has nothing of what the first has; nor does one at the same path that is begun anew.
start_mount "$s" "$m" "tier=$TMP/tier2"
expect 0 "$cairn" wait --tier "$m"
for i in 1 2 3 4 5 6 7; do same_tree "$ref/step-$i" "$TMP/tier2/run/step-$i"; done
stop_mount "$m"
start_mount "$s" "$m" "tier=$t"
expect 0 "$cairn" wait --tier "$m"
stop_mount "$m"
rm -rf --one-file-system "$t" "$(own)/tier"
mkdir "$t"
start_mount "$s" "$m" "tier=$t"
expect 0 "$cairn" wait --tier "$m"
same 1 2 3 4 5 6 7
stop_mount "$m"

# tier_keep removes nothing because it is remembered: its copy is read.
cp "$t/run/step-1/note.txt" "$TMP/whole" -p
printf X | dd of="$t/run/step-1/note.txt" bs=1 conv=notrunc status=none
touch -r "$TMP/whole" "$t/run/step-1/note.txt"	# with another time it were sent again
start_mount "$s" "$m" "tier=$t,tier_keep=6"
kept() { status_field "$m" tier.error | has 'note.txt: not the bytes that were sent; it stays in the store'; }
retry 60 kept || die "a bad copy is not told: $(status_field "$m" tier)"
[ -e "$m/run/step-1/note.txt" ] || die "removed, and its copy is bad"
stop_mount "$m"
cp -p "$TMP/whole" "$t/run/step-1/note.txt"
expect 0 "$cairn" tier verify "$t"
