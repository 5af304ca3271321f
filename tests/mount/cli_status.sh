#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn status: valid JSON, a person's text, the mount found from any path on it.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

start_mount "$s" "$m"
mkdir -p "$m/a/b"
echo text >"$m/a/b/f"

expect 0 "$cairn" status --json "$m"
python3 - "$TMP/out" "$m" "$s" "$LIB_TOP/docs/man/cairnfs.8" <<'PY' || die "status --json: $(cat "$TMP/out")"
import json, os, sys
d = json.load(open(sys.argv[1]))
assert os.path.samefile(d["store"], sys.argv[3]), d["store"]
assert os.path.realpath(d["mountpoint"]) == os.path.realpath(sys.argv[2])
for k in ("version", "pid", "keeper_pid", "store_id", "engine", "passthrough", "fsync", "restarts",
          "staging", "versions", "log", "opens", "bytes", "dedup", "previous", "queue_depth", "waits", "errors",
          "halted", "waiting_mapped", "notices", "recovered"):
    assert k in d, k
assert d["halted"] is None

manual = open(sys.argv[4], encoding="utf-8").read()
manual = manual[manual.index("The keys of"):manual.index(".Ss Extended attributes")].replace(",", " ").split()
for k, v in d.items():
    for name in [k, *(v if isinstance(v, dict) else ())]:
        assert name in manual, f"cairnfs(8) does not tell of {k}: {name}"
PY

expect 0 "$cairn" status "$m"
says out "$m on"
expect 0 "$cairn" status "$m/a/b/f"	# any path on it
says out "$m on"
cd "$m/a" && expect 0 "$cairn" status
says out "$m on"
cd /

expect 2 "$cairn" status "$s"
says err "not on a mount"

# each second: two documents, each on a line
timeout 2.5 "$cairn" status --watch --json "$m" >"$TMP/watch"
head -n 2 "$TMP/watch" | while read -r line; do
	python3 -m json.tool <<<"$line" >/dev/null || die "--watch --json: $line"
done
[ "$(wc -l <"$TMP/watch")" -ge 2 ] || die "--watch wrote $(wc -l <"$TMP/watch") lines"

# a bind mount of a directory is the same mount
mkdir "$TMP/bind"
if mount --bind "$m/a" "$TMP/bind"; then
	on_exit 'umount "$TMP/bind" 2>/dev/null'
	expect 0 "$cairn" status "$TMP/bind/b"
	says out "$m on"
	umount "$TMP/bind"
fi

# Two mounts' metrics, scraped as one: each sample is one of a kind, whatever the mountpoint is called.
odd=$TMP/$'other "q" \\ mount'
start_mount "$TMP/store2" "$odd"
cat "$m/.cairn/metrics" "$odd/.cairn/metrics" >"$TMP/both"
python3 - "$TMP/both" "$m" "$odd" <<'PY' || die "metrics: $(cat "$TMP/both")"
import re, sys
seen, mounts = set(), set()
for line in open(sys.argv[1], encoding="utf-8"):
    if line.startswith("#"):
        continue
    sample = re.fullmatch(r'(cairnfs_\w+\{mount="((?:[^"\\]|\\.)*)"(?:,\w+="[^"]*")*\}) [-+.\de]+\n', line)
    assert sample and sample[1] not in seen, line
    seen.add(sample[1])
    mounts.add(re.sub(r"\\(.)", r"\1", sample[2]))
assert mounts == set(sys.argv[2:]), mounts
PY
stop_mount "$odd"
stop_mount "$m"
