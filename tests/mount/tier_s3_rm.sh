#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# set: rest
# cairn tier rm of a bucket: each of its requests fails once, which nobody notices, and for good, which is told and leaves no
# manifest nor commit file over objects that are missing; the next one completes it. Other checkpoints and objects stay.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
need_tool python3
s3_fault_bucket
t=s3://bucket/a src=$TMP/src
mkdir -p "$src/run"
for i in 1 2; do cp -r "$assets/dcp" "$src/run/step-$i"; done
objects=$(cd "$src/run/step-1" && find . -type f | wc -l)

# keys PREFIX: the bucket's, asked of the server itself
keys() { plain GET "$url/bucket?list-type=2&prefix=$1" | grep -o '<Key>[^<]*' | sed 's/<Key>//' | sort; }
judge()
{
	local have manifest
	keys a/.cairn/manifests/run/step-1/ >"$TMP/records"
	keys a/run/step-1/ >"$TMP/have"
	have=$(grep -vc '/notes$' "$TMP/have")
	manifest=$(grep -c '/manifest.json$' "$TMP/records")
	[ "$manifest" = 0 ] || [ "$have" = "$objects" ] || die "$1: a manifest over $have of $objects objects"
	! grep '/\.metadata$' "$TMP/have" >/dev/null || [ "$have" = "$objects" ] || die "$1: a commit file over $have objects"
	[ "$have" = 0 ] || grep . "$TMP/records" >/dev/null || die "$1: $have objects, and nobody knows whose they are"
}
others() { [ "$(keys a/run/step-2/ | wc -l)" = "$objects" ] && [ -n "$(keys a/run/step-1/notes)" ] || die "$1: others are gone"; }
requests() { wc -l <"$TMP/fault/log"; }

expect 0 "$cairn" tier push -q "$src" "$t"
plain PUT "$url/bucket/a/run/step-1/notes" mine >/dev/null
before=$(requests)
expect 0 "$cairn" tier rm "$t" run/step-1
says out '^removed  run/step-1  .*files that it does not list stay there'
n=$(($(requests) - before))
judge "without a fault"
[ "$(cat "$TMP/have")" = a/run/step-1/notes ] && [ ! -s "$TMP/records" ] || die "left: $(cat "$TMP/have" "$TMP/records")"
others "without a fault"
expect 1 "$cairn" tier rm "$t" run/step-1
says err 'run/step-1: no checkpoint there'

failed=0
for at in $(seq "$n"); do
	# each second request by an answer, the others by none
	for fault in "$([ $((at % 2)) = 0 ] && echo 500 || echo lost) 1" "403 0"; do
		# shellcheck disable=SC2086
		set -- $fault
		s3_rule
		expect 0 "$cairn" tier push -q "$src" "$t" run/step-1
		s3_rule "$1" "$at" "$2"
		rc=0
		"$cairn" tier rm "$t" run/step-1 >"$TMP/out" 2>"$TMP/err" || rc=$?
		[ "$2" = 0 ] || [ $rc = 0 ] || die "one $1 at request $at: $(cat "$TMP/err")"
		judge "$1 from request $at on"
		[ $rc = 0 ] || {
			failed=$((failed + 1))
			[ -s "$TMP/err" ] || die "$1 from request $at on: failed, and says nothing"
			s3_rule
			expect 0 "$cairn" tier rm "$t" run/step-1
		}
		keys a/run/step-1/ >"$TMP/have"
		[ "$(cat "$TMP/have")" = a/run/step-1/notes ] || die "$1 from request $at on: left: $(cat "$TMP/have")"
		others "$1 from request $at on"
	done
done
[ $failed -gt 2 ] || die "nothing failed for good"
note "$n requests, each failed; $failed removals were told to have failed"
