#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# set: rest
# A bucket whose newest checkpoint cannot be fetched: a server that refuses, fails or cuts the connection says nothing of the
# checkpoint; an object that is missing, ends early or has other bytes does: `latest` leads to the one before then.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_fault_bucket
t=s3://bucket/a ref=$TMP/ref file=__2_0.distcp
mkdir -p "$ref/run"
for i in 1 2 3; do
	cp -r "$assets/dcp" "$ref/run/step-$i"
	head -c 20M /dev/urandom >"$ref/run/step-$i/$file"
	touch -d "$((20 - i)) days ago" "$ref/run/step-$i"/{*,.metadata}
done
expect 0 "$cairn" tier push -q "$ref" "$t"
new_node()
{
	rm -rf --one-file-system "$s"
	start_mount "$s" "$m" "tier=$t,tier_wait=3"
}
leads_to() { [ "$(readlink "$m/.cairn/latest/run")" = "../../.cairn/tier/run/step-$1" ]; }
is_damaged() { [ "$(state "$m/.cairn/tier/run/step-$1/.metadata")" = damaged ]; }

# By hand: a failing server is told, and nothing older is fetched. So if only a manifest cannot be read.
mkdir "$TMP/dir"
for fault in 403 500; do
	for what in "step-3/$file" step-3/manifest; do
		s3_rule $fault 1 0 "GET .*$what"
		expect 1 "$cairn" tier fetch --latest "$t" "$TMP/dir"
		says err 'the server answers\|internal server error'
		[ -z "$(ls "$TMP/dir/run" 2>/dev/null)" ] || die "$fault of $what: fetched: $(ls "$TMP/dir/run")"
	done
done

# Through a mount.
s3_rule
new_node
leads_to 3 || die "latest: $(readlink "$m/.cairn/latest/run")"
for fault in 403 500 cut; do
	s3_rule $fault 1 0 "GET .*step-3/$file"
	cat "$m/.cairn/tier/run/step-3/$file" >"$TMP/read" 2>"$TMP/err" && die "$fault: read"
	expect 1 "$cairn" fetch --latest "$m/run"
	! grep 'damaged' "$TMP/err" || die "$fault is taken for damage"
	leads_to 3 || die "$fault: latest leads to $(readlink "$m/.cairn/latest/run")"
	is_damaged 3 && die "$fault is taken for damage"
done
s3_rule
stop_mount "$m"	# with what is still tried again
new_node
plain PUT "$url/bucket/a/run/step-3/$file" short >/dev/null
cat "$m/.cairn/tier/run/step-3/$file" >"$TMP/read" 2>"$TMP/err" && die "read, and it is too short"
leads_to 2 || die "too short: latest leads to $(readlink "$m/.cairn/latest/run")"
retry 60 is_damaged 3 || die "too short: state"
plain DELETE "$url/bucket/a/run/step-2/$file" >/dev/null
expect 0 "$cairn" fetch --latest "$m/run"
says err 'run/step-2 is damaged in the tier: the one before it is fetched'
says out '^fetched  run/step-1 '
diff -r "$ref/run/step-1" "$m/run/step-1" || die "step-1"
stop_mount "$m"
expect 0 "$cairn" tier fetch --latest "$t" "$TMP/dir"
says err 'run/step-3/__2_0.distcp: not the bytes that its manifest lists; it is damaged'
says err 'run/step-2/__2_0.distcp: missing, and its manifest lists it'
says out '^fetched  run/step-1 '

# Sent again, it counts at once for who had found it damaged.
start_mount "$s" "$m" "tier=$t,tier_wait=3"
is_damaged 3 || die "not known after a remount"
plain DELETE "$url/bucket/a/run/step-3/$file" >/dev/null
expect 0 "$cairn" tier push -q "$ref" "$t" run/step-3
retry 120 leads_to 3 || die "sent again: latest leads to $(readlink "$m/.cairn/latest/run")"
cmp "$m/.cairn/latest/run/$file" "$ref/run/step-3/$file" || die "step-3"
stop_mount "$m"
