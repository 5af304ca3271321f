#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 180
# set: rest
# A large file goes to a bucket in parts. Push, or the process that sends, is killed when some of them have arrived: the next
# push goes on with the same upload, and no part that the server had acknowledged is sent again. An upload whose file has
# changed is ended, one of somebody else is not; one that the server has no more is begun anew.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_fault_bucket
t=s3://bucket/a parts=5
mkdir -p "$s/run"
cp -r "$assets/dcp" "$s/run/step-1"
big=$s/run/step-1/__2_0.distcp
fresh() { head -c $((parts * 8388608 - 1000)) /dev/urandom >"$big"; }
uploads() { plain GET "$url/bucket?uploads" | grep -o '<UploadId>' | wc -l; }
arrived()	# arrived N: so many parts were acknowledged, and one waits
{
	python3 - "$TMP/fault/log" "$1" <<'PY'
import json, sys
log = [json.loads(line) for line in open(sys.argv[1])]
parts = [r for r in log if "partNumber" in r["query"]]
sys.exit(not (sum(r["status"] == 200 for r in parts) == int(sys.argv[2]) and any(r["status"] == "waits" for r in parts)))
PY
}
# in_mid_upload N WHO: push, killed (push, or cairn-tier) when N parts have arrived and the others are under way
in_mid_upload()
{
	s3_rule hang $(($1 + 1)) 0 partNumber
	: >"$TMP/fault/log"
	"$cairn" tier push -q "$s" "$t" >"$TMP/push" 2>&1 &
	local pid=$! victim=$! rc=0
	retry 60 arrived "$1" || die "not $1 parts: $(cat "$TMP/fault/log" "$TMP/push")"
	[ "$2" = push ] || victim=$(pgrep -x cairn-tier -P "$(pgrep -P $pid -d ,)") || die "no cairn-tier"
	kill -KILL "$victim"
	wait $pid || rc=$?
	[ "$2" = push ] || [ $rc = 1 ] || die "push without cairn-tier: $rc"
	[ "$2" = push ] || has 'cairn-tier has ended' "$TMP/push" || die "push: $(cat "$TMP/push")"
	cp "$TMP/fault/log" "$TMP/before"
	s3_rule
	: >"$TMP/fault/log"
}
for who in push cairn-tier; do
	for n in 0 1 3; do
		fresh
		in_mid_upload $n $who
		expect 0 "$cairn" tier push -q "$s" "$t"
		cp "$TMP/fault/log" "$TMP/after"
		python3 - "$TMP/before" "$TMP/after" $n $parts $who <<'PY' || die "see above"
import json, re, sys
before, after = ([json.loads(line) for line in open(path)] for path in sys.argv[1:3])
n, parts, who = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
def sent(log, status):
    return {int(re.search(r"partNumber=(\d+)", r["query"])[1]): r["bytes"] for r in log
            if "partNumber" in r["query"] and r["method"] == "PUT" and status(r["status"])
            and (r["fault"] != "hang" or r["status"] == "waits")}
def count(log, method, what):
    return sum(r["method"] == method and bool(re.search(what, r["query"])) for r in log)
there = sent(before, lambda s: s == 200)
under_way = sent(before, lambda s: s == "waits")
again = sent(after, lambda s: True)
assert len(there) == n, there
assert not set(there) & set(again), f"sent again, although it was there: {sorted(set(there) & set(again))}"
assert set(there) | set(again) == set(range(1, parts + 1)), (there, again)
assert count(before, "POST", "^uploads") == 1 and count(after, "POST", "^uploads") == 0, "not one upload"
assert count(after, "GET", "uploadId=") >= 1, f"its parts were not listed: {after}"
resent = sum(under_way.get(p, 0) for p in again)
assert resent <= sum(under_way.values())
print(f"# {who} killed, {n} of {parts} parts had arrived, {len(under_way)} were under way: {resent >> 20} MiB sent again")
PY
		expect 0 "$cairn" tier verify "$t"
		[ "$(uploads)" = 0 ] || die "uploads are left"
	done
done

# What is not ours stays; what is ours and of no use any more does not.
plain POST "$url/bucket/a/run/step-1/__2_0.distcp?uploads" >/dev/null
fresh
in_mid_upload 2 push
[ "$(uploads)" = 2 ] || die "$(uploads) uploads, not ours and another"
fresh
expect 0 "$cairn" tier push -q "$s" "$t"
[ "$(uploads)" = 1 ] || die "$(uploads) uploads, not the other one"
expect 0 "$cairn" tier verify "$t"

# The server has it no more: after a rule for its life, or by hand.
fresh
in_mid_upload 2 push
key=$(plain GET "$url/bucket/a/.cairn/manifests/run/step-1/begun.json" | sed -n 's/.*"upload": "\([^"]*\)".*/\1/p' | head -n 1)
[ -n "$key" ] || die "no upload in begun.json: $(plain GET "$url/bucket/a/.cairn/manifests/run/step-1/begun.json")"
plain DELETE "$url/bucket/a/run/step-1/__2_0.distcp?uploadId=$key" >/dev/null
expect 0 "$cairn" tier push -q "$s" "$t"
expect 0 "$cairn" tier verify "$t"

# The answer to what completes it is lost.
fresh
s3_rule lost 1 1 '^POST .*uploadId'
expect 0 "$cairn" tier push -q "$s" "$t"
expect 0 "$cairn" tier verify "$t"
mkdir "$TMP/back"
s3_rule
expect 0 "$cairn" tier fetch -q "$t" "$TMP/back"
same_tree "$s" "$TMP/back"
[ "$(uploads)" = 1 ] || die "uploads are left"
