#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# All of cairnfs on host a is killed, and the job goes on with host b. What b wrote then is not replaced, removed or
# moved by what a left over, whatever the clocks say; what b had written before, and a had seen, is.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root
need_tool python3

s=$TMP/store a=$TMP/a b=$TMP/b found=$TMP/store/.cairn/lost+found
mkdir -p "$TMP/run-a" "$TMP/run-b"

serve() { start_mount "$s" "$1" "staging=64M,pool=0,host=$2,staging_dir=$TMP/run-$2"; }

# From now on nothing of a reaches the store: a file that is mapped for writing is first in the order.
hold()
{
	rm -f "$TMP/held"
	map_and_hold "$a/held" "$TMP/held" &
	holder=$!
	retry 20 test -e "$TMP/held" || die "no mapping"
}
kill_a()
{
	[ "$(status_field "$a" log.pending)" -gt 1 ] || die "nothing is pending: $(status_field "$a" log)"
	kill_mount "$a"
	kill -KILL $holder
	wait $holder 2>/dev/null
}
on_exit '[ -z "${holder:-}" ] || kill -KILL $holder 2>/dev/null'

# Overwritten in place, so the file keeps its number; by a rename; a symlink.
in_place() { echo "$2" >"$1" || die "$1"; }
renamed() { echo "$2" >"$1.tmp" && mv "$1.tmp" "$1" || die "$1"; }
linked() { ln -sfn "$2" "$1" || die "$1"; }
is() { [ "$(cat "$1")" = "$2" ]; }
has_now() { is "$s/$1" "$2" || die "the store has $(cat "$s/$1" 2>&1) in $1, not $2"; }
shows() { retry 20 is "$1" "$2" || die "$1 is $(cat "$1" 2>&1), not $2"; }

serve "$a" a
need_passthrough "$a"
serve "$b" b
for f in place own gone marked later/place; do
	mkdir -p "$a/$(dirname $f)"
	in_place "$a/$f" 100
done
for f in latest moved; do renamed "$a/$f" 100; done
linked "$a/link" step-100
# Seen by a before it is killed: written by b, also over a's own, with as many bytes.
for f in old-place old-gone; do in_place "$a/$f" 100; done
wait_durable "$a"
for f in old-place old-gone; do in_place "$b/$f" 200; done
renamed "$b/old-latest" 200
linked "$b/old-link" step-200
mkdir "$b/old-step.tmp"
in_place "$b/old-step.tmp/shard" 200
mkdir "$a/step.tmp" "$a/empty"
in_place "$a/step.tmp/shard" 300
mkdir "$a/both" "$b/both"
wait_durable "$b"
wait_durable "$a"
for f in old-place old-gone old-latest old-step.tmp/shard; do shows "$a/$f" 200; done
[ "$(readlink "$a/old-link")" = step-200 ] || die "old-link: $(readlink "$a/old-link")"
in_place "$a/own" 250
wait_durable "$a"

hold
in_place "$a/place" 300
in_place "$a/later/place" 300
renamed "$a/latest" 300
renamed "$a/moved" 300
in_place "$a/own" 300
in_place "$a/only" 300
in_place "$a/new" 300
linked "$a/link" step-300
linked "$a/only-link" step-300
ln -s step-300 "$a/new-link"
rm "$a/gone"
chmod 600 "$a/marked"
mv "$a/step.tmp" "$a/step-300"
rmdir "$a/empty"
mv "$a/both" "$a/both-300"
in_place "$a/old-place" 300
rm "$a/old-gone"
renamed "$a/old-latest" 300
linked "$a/old-link" step-300
mv "$a/old-step.tmp" "$a/old-step"
# Half of a step: b saves it again, and is not ready when a is back.
mkdir "$a/ckpt"
in_place "$a/ckpt/__0_0.distcp" 300
in_place "$a/ckpt/__1_0.distcp" 300
renamed "$a/ckpt/.metadata" 300
mkdir "$a/ckpt-a"
in_place "$a/ckpt-a/__0_0.distcp" 300
renamed "$a/ckpt-a/.metadata" 300
kill_a

in_place "$b/place" 500
in_place "$b/new" 500
renamed "$b/latest" 500
renamed "$b/moved" 500
in_place "$b/gone" 500
in_place "$b/marked" 500
linked "$b/link" step-500
ln -s step-500 "$b/new-link"
rm -r "$b/step.tmp" "$b/empty"
mkdir "$b/step.tmp" "$b/empty" "$b/ckpt"
in_place "$b/step.tmp/shard" 500
in_place "$b/ckpt/__0_0.distcp" 500
in_place "$b/later/place" 500
# Its clock is behind.
touch -d '-60 sec' "$b/place" "$b/latest" "$b/gone" "$b/new"
wait_durable "$b"

serve "$a" a
wait_durable "$a"
for f in place new latest moved gone marked later/place step.tmp/shard ckpt/__0_0.distcp; do has_now $f 500; done
[ "$(readlink "$s/new-link")" = step-500 ] || die "the store has $(readlink "$s/new-link") in new-link"
"$BUILD/cairn" wait --timeout 20 "$a" || die "what was left out is an error"
[ "$(readlink "$s/link")" = step-500 ] || die "the store has $(readlink "$s/link") in link"
[ "$(stat -c %a "$s/marked")" = 644 ] || die "the mode of b's file was changed"
[ ! -e "$s/step-300" ] || die "b's directory was moved"
[ -d "$s/empty" ] || die "b's directory was removed"
[ ! -e "$s/ckpt/.metadata" ] || die "a's .metadata commits a shard of b"
for f in own only old-place old-latest ckpt/__1_0.distcp ckpt-a/__0_0.distcp ckpt-a/.metadata; do has_now $f 300; done
[ "$(readlink "$s/only-link")" = step-300 ] || die "only-link: $(readlink "$s/only-link")"
[ "$(readlink "$s/old-link")" = step-300 ] || die "what a had seen of b stays: old-link"
has_now old-gone 200 # what was written before it was removed was given up
[ -d "$s/both-300" ] && [ ! -e "$s/both" ] || die "a directory that both made is not moved"
has_now old-step/shard 200
[ ! -e "$s/old-step.tmp" ] || die "what a had seen of b stays: old-step.tmp"
for f in place new later%2Fplace ckpt%2F__0_0.distcp; do
	cat "$found/$f".[0-9]* 2>/dev/null | has '^300$' || die "$f of a is not in lost+found: $(ls "$found")"
done
has 'conflict at place: what was left over from a kill is older than what the store has, which stays' \
	"$a/.cairn/status.json" || die "no notice: $(status_field "$a" notices)"
# Both show what the store has, and go on with it.
for m in "$a" "$b"; do
	for f in place new latest moved gone marked; do shows "$m/$f" 500; done
	for f in own only old-place old-latest; do shows "$m/$f" 300; done
done
for f in place latest; do
	renamed "$a/$f" 600
	wait_durable "$a"
	has_now $f 600
done
stop_mount "$a"
stop_mount "$b"
