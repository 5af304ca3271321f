#!/bin/bash
# SPDX-License-Identifier: MIT
# MOUNT/.cairn/metrics: strictly in Prometheus's text format, each sample with the labels mount, store and host; what
# opens, closes and fsyncs took, and what is pending. promtool checks it too, where it is installed.
# modes: fast
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

start_mount "$s" "$m"
echo text >"$m/f"
python3 -c 'import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
os.write(fd, b"more")
os.fsync(fd)' "$m/f" || die "fsync"
expect 0 "$cairn" wait -q "$m"
taken() { [ "$(sed -n "s/^cairnfs_operation_duration_seconds_count{.*operation=\"$1\"} //p" "$m/.cairn/metrics")" -ge "$2" ]; }
for what in "open 2" "close 2" "fsync 1"; do
	# shellcheck disable=SC2086	# a word and a number
	retry 20 taken $what || die "counted less than $what: $(cat "$m/.cairn/metrics")"
done
[ "$(metric "$m" pending_bytes) $(metric "$m" pending_files) $(metric "$m" oldest_pending_seconds)" = "0 0 0" ] ||
	die "something is pending: $(cat "$m/.cairn/metrics")"
[ "$(metric "$m" keeper_alive)" = 1 ] || die "no keeper"

(map_and_hold "$m/mapped" "$TMP/ready") &
holder=$!
on_exit 'kill $holder 2>/dev/null'
retry 20 test -e "$TMP/ready" || die "no mapping"
[ "$(metric "$m" pending_files)" = 1 ] || die "pending_files: $(metric "$m" pending_files)"
age=$(metric "$m" oldest_pending_seconds)
sleep 0.1
python3 -c 'import sys
a, b = map(float, sys.argv[1:])
sys.exit(not 0 < a < b)' "$age" "$(metric "$m" oldest_pending_seconds)" || die "the oldest change does not age: $age"

cat "$m/.cairn/metrics" >"$TMP/metrics"
python3 - "$TMP/metrics" "$m" "$s" "$(hostname)" "$("$cairn" version)" <<'PY' || die "$(cat "$TMP/metrics")"
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()
assert text.endswith("\n")
kinds, samples, done, now, helped = {}, {}, set(), None, None
LABEL = r'([a-z]\w*)="((?:[^"\\\n]|\\[\\"n])*)"'
for line in text.splitlines():
    if m := re.fullmatch(r"# HELP (cairnfs_[a-z_]+) \S.*\.", line):
        helped = m[1]
        continue
    if m := re.fullmatch(r"# TYPE (cairnfs_[a-z_]+) (counter|gauge|histogram)", line):
        assert m[1] == helped and m[1] not in kinds, line     # HELP, TYPE, and all samples together
        now = m[1]
        kinds[now] = m[2]
        assert now.endswith("_total") == (m[2] == "counter"), line
        assert not re.search(r"_(ms|us|ns|kib|mib|millis\w*)(_|$)", now), line
        continue
    m = re.fullmatch(rf"(cairnfs_[a-z_]+)\{{({LABEL}(?:,{LABEL})*)\}} (-?[\d.]+(?:e[+-]?\d+)?)", line)
    assert m, line
    name, labels, value = m[1], dict(re.findall(LABEL, m[2])), float(m[m.lastindex])
    assert re.sub(r"_(bucket|sum|count)$", "", name) == now if kinds[now] == "histogram" else name == now, line
    assert labels["mount"] == sys.argv[2] and labels["store"] == sys.argv[3] and labels["host"] == sys.argv[4], line
    key = (name, *sorted(labels.items()))
    assert key not in samples, line
    samples[key] = value
    if kinds[now] != "gauge":
        assert value >= 0, line
assert any(k[0] == "cairnfs_build_info" and ("version", sys.argv[5].split()[1]) in k for k in samples)
histograms = {}
for key, value in samples.items():
    if key[0].endswith("_bucket"):
        rest = tuple(x for x in key[1:] if x[0] != "le")
        histograms.setdefault((key[0][:-7], rest), []).append((float(dict(key[1:])["le"]), value))
assert len(histograms) == 4
for (name, rest), buckets in histograms.items():
    assert buckets == sorted(buckets) and [b[1] for b in buckets] == sorted(b[1] for b in buckets), name
    assert buckets[-1][0] == float("inf") and buckets[-1][1] == samples[(name + "_count", *rest)], name
    assert (name + "_sum", *rest) in samples, name
PY
kill $holder
wait $holder 2>/dev/null
stop_mount "$m"
command -v promtool >/dev/null || { note "promtool is not installed: not asked"; exit 0; }
promtool check metrics <"$TMP/metrics" || die "promtool finds something"
