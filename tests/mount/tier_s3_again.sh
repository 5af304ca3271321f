#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# set: rest
# A bucket has 50 checkpoints, the store one more: a follower that begins anew sends that one before it asks for any of the
# others, also when it is killed again and again; and one that the bucket has lost counts as sent only when it is there again.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_fault_bucket
mkdir -p "$s/run"
for i in $(seq 50); do cp -r "$assets/dcp" "$s/run/step-$i"; done
start_mount "$s" "$m" tier=s3://bucket/a
expect 0 "$cairn" wait --tier "$m"
stop_mount "$m"

# asked LINE STEP: of what the bucket was asked from that line of the log on until STEP was complete, how often of which
# steps. Not counted: the manifests, which the process that lists the bucket reads.
asked()
{
	python3 - "$TMP/fault/log" "$1" "$2" <<'PY'
import collections, json, re, sys
log, line, step = sys.argv[1:]
count = collections.Counter()
for entry in map(json.loads, open(log).readlines()[int(line):]):
    if entry["method"] == "PUT" and entry["path"].endswith(f"/step-{step}/manifest.json"):
        print(*(f"step-{k}:{n}" for k, n in sorted(count.items())))
        sys.exit()
    found = re.search(r"/run/step-(\d+)/(.*)", entry["path"])
    if found and found[2] != "manifest.json":
        count[found[1]] += 1
sys.exit(1)
PY
}
runs() { [ "$(status_field "$m" tier.pid)" -gt 0 ]; }
is_asked() { asked "$@" >"$TMP/asked"; }

line=$(wc -l <"$TMP/fault/log")
cp -r "$assets/dcp" "$s/run/step-51"
start_mount "$s" "$m" tier=s3://bucket/a
retry 60 is_asked "$line" 51 || die "step-51 is not sent: $(status_field "$m" tier)"
has -x 'step-51:[0-9]*' "$TMP/asked" || die "asked before step-51 was sent: $(cat "$TMP/asked")"
for i in 52 53 54; do
	retry 60 runs || die "no follower"
	kill -KILL "$(status_field "$m" tier.pid)"
	cp -r "$assets/dcp" "$m/run/step-$i"
	retry 60 is_asked "$line" "$i" || die "step-$i is not sent: $(status_field "$m" tier)"
done
expect 0 "$cairn" wait --tier "$m"
stop_mount "$m"

# While it looks at those that were sent before, one more is saved: that comes before the rest of them.
s3_rule late 10 1 'HEAD /bucket/a/run/step-'
start_mount "$s" "$m" tier=s3://bucket/a
held() { has '"fault": "late", "status": "waits"' "$TMP/fault/log"; }
retry 60 held || die "it does not look at what was sent before"
took=$(($(date +%s%3N) - $(status_field "$m" tier.looked_ms)))
cp -r "$assets/dcp" "$m/run/step-55"
wait_durable "$m/run/step-55"
sleep $((took / 1000 + 2))	# CHECK_S in tools/cairn/tier/tier_follow.c, or as long as a look takes
line=$(wc -l <"$TMP/fault/log")
s3_rule
retry 60 is_asked "$line" 55 || die "step-55 is not sent: $(status_field "$m" tier)"
note "while it looked: $(cat "$TMP/asked")"
[ "$(wc -w <"$TMP/asked")" -le 3 ] || die "asked before step-55 was sent: $(cat "$TMP/asked")"
expect 0 "$cairn" wait --tier "$m"
stop_mount "$m"

for key in run/step-1/.metadata .cairn/manifests/run/step-2/manifest.json run/step-3/__0_0.distcp; do
	plain DELETE "$url/bucket/a/$key" >/dev/null
done
start_mount "$s" "$m" tier=s3://bucket/a
expect 0 "$cairn" wait --tier "$m"
stop_mount "$m"
expect 0 "$cairn" tier verify s3://bucket/a
says out '^165 ok, 0 missing'
