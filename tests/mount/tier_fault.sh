#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 400
# set: rest
# A bucket whose server fails: each request of a push fails once, then the next push at the latest completes it; and from each
# one on for good, then push ends with an error that names what the server said, and nothing is committed out of order. The
# server answers 500, 403, 412, closes the connection before or after the request was carried out, or does not answer.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_fault_bucket
ref=$TMP/ref n=0
mkdir -p "$s/run" "$ref"
cp -r "$assets/dcp" "$ref/step-1"
head -c 9000000 /dev/urandom >"$ref/step-1/__2_0.distcp"	# in two parts
cp -r "$ref/step-1" "$s/run"

# state: what plain reads of the bucket find
state()
{
	local out
	out=$(python3 "$LIB_TOP/tests/lib/tier_judge.py" "$url/bucket/$n" "$ref" 2>&1) || die "$1: $out"
	is=${out#step-1 }
}
push() { rc=0; "$cairn" tier push -q "$s" "s3://bucket/$n" >"$TMP/push" 2>&1 || rc=$?; }

: >"$TMP/fault/log"
push
[ $rc = 0 ] || die "without a fault: $(cat "$TMP/push")"
state "without a fault"
[ "$is" = complete ] || die "without a fault: $is"
requests=$(wc -l <"$TMP/fault/log")

# The judge detects what it is to detect.
for gone in __0_0.distcp .metadata; do
	plain DELETE "$url/bucket/$n/run/step-1/$gone" >/dev/null
	python3 "$LIB_TOP/tests/lib/tier_judge.py" "$url/bucket/$n" "$ref" >"$TMP/out" 2>&1 && die "$gone is missing, and that is not found"
	has "$gone is not there" "$TMP/out" || die "the judge: $(cat "$TMP/out")"
	push
	[ $rc = 0 ] || die "push when $gone is gone: $(cat "$TMP/push")"
	state "$gone is back"
	[ "$is" = complete ] || die "$gone is gone, then push: $is"
done
[ "$requests" -ge 15 ] || die "only $requests requests"
kinds=(500 403 412 cut lost)

# Once.
failed=0
for round in 0 1 2 3 4; do
	[ $((round % ${TEST_ONE_OF:-2})) = 0 ] || continue
	for ((at = 1; at <= requests; at++)); do
		kind=${kinds[$(((at + round) % 5))]} n=$((n + 1))
		s3_rule $kind $at 1
		push
		state "request $at: $kind"
		[ $rc != 0 ] || [ "$is" = complete ] || die "request $at, $kind: push succeeded, and it is $is"
		if [ $rc != 0 ]; then
			failed=$((failed + 1))
			grep -qi 'server\|connection\|socket\|closed' "$TMP/push" ||
				die "request $at, $kind: $(cat "$TMP/push")"
			push
			[ $rc = 0 ] || die "request $at, $kind once, and the second push fails: $(cat "$TMP/push")"
			state "second push after request $at: $kind"
			[ "$is" = complete ] || die "second push after request $at, $kind: $is"
		fi
	done
done
note "once: $n pushes, of $requests requests each one failed; $failed of them ended with an error, and the next completed"

# For good, from that request on.
seen=''
for ((at = 1; at <= requests; at += 2)); do
	kind=${kinds[$((at / 2 % 4))]} n=$((n + 1))
	s3_rule $kind $at 0
	push
	state "from request $at on: $kind"
	# what removes begun.json, the last one, comes after the manifest
	[ $rc = 1 ] || [ "$is" = complete ] || die "from request $at on, $kind: exit code $rc, $is: $(cat "$TMP/push")"
	[ $rc = 0 ] || grep -qi 'server\|connection\|socket\|closed' "$TMP/push" || die "$kind: $(cat "$TMP/push")"
	[ $rc = 0 ] || [ "$kind" != 403 ] || has 'the server answers 403' "$TMP/push" || die "403: $(cat "$TMP/push")"
	seen="$seen $is"
	s3_rule
	push
	[ $rc = 0 ] || die "after request $at, $kind: $(cat "$TMP/push")"
	state "after request $at: $kind"
	[ "$is" = complete ] || die "after request $at, $kind: $is"
done
note "for good: $(tr ' ' '\n' <<<"$seen" | sort | uniq -c | tr -s '\n ' ' ')"
has none <<<"$seen" || die "nothing was ever missing:$seen"

# It does not answer: the library gives up after 30 seconds, and tries again.
n=$((n + 1))
s3_rule hang 1 1 'PUT .*__2_0'
push
state "no answer"
[ $rc = 1 ] || [ "$is" = complete ] || die "no answer: $rc, $is: $(cat "$TMP/push")"
note "no answer to one part: exit code $rc, $is, after $SECONDS s"
grep -r not-to-be-seen "$TMP/out" "$TMP/push" && die "a secret was printed"
expect 0 "$cairn" tier verify "s3://bucket/$n"
