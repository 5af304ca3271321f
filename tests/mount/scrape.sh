#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# docs/deploy/metrics: the handler answers a request on its stdin with a mount's metrics and nothing else, systemd takes
# the units, and what the alert rules and the dashboard ask for is there.
. "$(dirname "$0")/../lib/lib.sh"
need_tool python3
here=$LIB_TOP/docs/deploy/metrics s=$TMP/store m=$TMP/all/ckpt

# ask REQUEST STATUS: the answer's body in $TMP/body
ask()
{
	# shellcheck disable=SC2059	# the request has \r\n
	printf "$1" | PATH=$BUILD:$PATH within 30 "$here/serve.sh" "$TMP/all" >"$TMP/answer" || die "serve.sh: $1"
	python3 - "$TMP/answer" "$2" "$TMP/body" <<'END' || die "$1: $(head -c 500 "$TMP/answer")"
import sys
head, body = open(sys.argv[1], "rb").read().split(b"\r\n\r\n", 1)
status, *lines = head.decode().split("\r\n")
fields = dict(line.split(": ", 1) for line in lines)
assert status.split()[:2] == ["HTTP/1.0", sys.argv[2]], status
assert int(fields["Content-Length"]) == len(body) and fields["Connection"] == "close", fields
assert fields["Content-Type"].startswith("text/plain; version=0.0.4"), fields
open(sys.argv[3], "wb").write(body)
END
}

mkdir "$TMP/all"
start_mount "$s" "$m"
ask 'GET /metrics/ckpt HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n' 200
cp "$TMP/body" "$TMP/metrics"
tail -c 1 "$TMP/body" | od -c | has '\\n' || die "no newline at the end"
diff <(sed 's/ [^ ]*$//' <("$BUILD/cairn" metrics "$m")) <(sed 's/ [^ ]*$//' "$TMP/body") || die "other metrics than the mount's"
ask 'GET /metrics/ckpt HTTP/1.0\r\n\r\n' 200
mkdir "$TMP/secret" "$TMP/secret/.cairn"
echo secret >"$TMP/secret/.cairn/metrics"
for path in / /metrics /metrics/ /metrics/../secret /metrics/..%%2fsecret /metrics/.. '/metrics/ckpt/../../secret' '/metrics/*' \
	/etc/passwd "$TMP/secret"; do
	ask "GET $path HTTP/1.1\r\n\r\n" 404
	has secret <"$TMP/body" && die "$path is read"
done
ask 'GET /metrics/none HTTP/1.1\r\n\r\n' 503

# A worker that is stopped is answered for.
worker=$(worker_pid "$m")
on_exit 'kill -CONT $worker 2>/dev/null'
kill -STOP "$worker"
ask 'GET /metrics/ckpt HTTP/1.1\r\n\r\n' 200
state=$(sed 's/.*) //' "/proc/$worker/stat")
kill -CONT "$worker"
[[ $state == T* ]] || die "the worker was not stopped: $state"
has -x "cairnfs_up{mount=\"$m\"} 0" "$TMP/body" || die "of a stopped worker: $(cat "$TMP/body")"
ask 'GET /metrics/ckpt HTTP/1.1\r\n\r\n' 200
has -x "cairnfs_up{mount=\"$m\"} 1" "$TMP/body" || die "of one that continues: $(tail -3 "$TMP/body")"

# The example for the textfile collector.
mkdir "$TMP/textfile"
example=$(sed -n 's/^    \(cairn metrics .*\)/\1/p' "$LIB_TOP/docs/deploy/README.md")
[ -n "$example" ] || die "README has no example for the textfile collector"
d=$TMP/textfile PATH=$BUILD:$PATH bash -ec "${example//\/mnt\/ckpt/$m}" || die "the example: $example"
has -x "cairnfs_up{mount=\"$m\"} 1" "$TMP/textfile/cairnfs-ckpt.prom" || die "the example's file"

ask 'POST /metrics/ckpt HTTP/1.1\r\n\r\n' 405
ask '' 400
stop_mount "$m"
ask 'GET /metrics/ckpt HTTP/1.1\r\n\r\n' 503

python3 - "$TMP/metrics" "$here/alerts.yml" "$here/grafana.json" <<'END' || die "what is asked for"
import json, re, sys
there = set(re.findall(r"^(cairnfs_\w+)", open(sys.argv[1]).read(), re.M))
dashboard = json.load(open(sys.argv[3]))
asked = set()
for panel in dashboard["panels"]:
    for target in panel["targets"]:
        asked |= set(re.findall(r"cairnfs_\w+", target["expr"]))
assert len(dashboard["panels"]) == len({p["id"] for p in dashboard["panels"]}) and len(asked) > 8
rules = re.findall(r"expr: (.*)", open(sys.argv[2]).read())
assert len(rules) > 5
for rule in rules:
    asked |= set(re.findall(r"cairnfs_\w+", rule))
assert not asked - there, asked - there
try:
    import yaml
except ImportError:
    print("# no yaml for python3: the rules were not parsed")
else:
    for rule in yaml.safe_load(open(sys.argv[2]))["groups"][0]["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys(), rule
END
if command -v promtool >/dev/null; then
	promtool check rules "$here/alerts.yml" || die "promtool finds something"
else
	note "promtool is not installed: the rules were not checked by it"
fi

if command -v systemd-analyze >/dev/null; then
	mkdir "$TMP/units"
	cp "$here"/cairnfs-metrics* "$TMP/units"
	sed -i "s|/usr/local/lib/cairnfs/|$here/|" "$TMP/units/cairnfs-metrics@.service"
	cp "$TMP/units/cairnfs-metrics@.service" "$TMP/units/cairnfs-metrics@0.service"
	for unit in cairnfs-metrics.socket cairnfs-metrics@0.service; do
		SYSTEMD_UNIT_PATH=$TMP/units: systemd-analyze verify --man=no "$TMP/units/$unit" >"$TMP/said" 2>&1
		grep -F "$TMP/units" "$TMP/said" && die "$unit"
	done
else
	note "no systemd-analyze: the units were not checked"
fi
has '^ListenStream=127\.0\.0\.1:' "$here/cairnfs-metrics.socket" || die "not the loopback"
exit 0
