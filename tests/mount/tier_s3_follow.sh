#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# set: rest
# -o tier=s3://...: a mount pushes to a bucket of moto; the process that sends is killed, the server is gone and back, and
# refuses the credentials; what is told; the bucket is read with plain HTTP.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
. "$(dirname "$0")/s3.inc"
s3_serve
error_says() { status_field "$m" tier.error | has "$1"; }

start_mount "$s" "$m" tier=s3://bucket/a
save 1
wait_durable "$m/run/step-1"
retry 60 error_says '404 NoSuchBucket' || die "no bucket, and: $(status_field "$m" tier)"
s3_bucket
expect 0 "$cairn" wait --tier "$m/run/step-1"
plain GET "$url/bucket/a/.cairn/manifests/run/step-1/manifest.json" | has '"path": "run/step-1"' || die "no manifest"
kill -KILL "$(status_field "$m" tier.pid)"
save 2
expect 0 "$cairn" wait --tier "$m/run/step-2"

# The server is gone. What it had is gone with it: moto keeps it in memory. Of another server the bucket is gone.
if [ -n "$server" ]; then
	kill $server
	wait $server
else
	s3_real drop
fi
save 3
wait_durable "$m/run/step-3"
some_error() { [ "$(status_field "$m" tier.error)" != null ]; }
retry 90 some_error || die "the server is gone, and: $(status_field "$m" tier)"
s3_serve
s3_bucket
expect 0 "$cairn" wait --tier "$m/run/step-3"
expect 0 "$cairn" status "$m"
says out 'tier  *has all that is complete'
keys=$(plain GET "$url/bucket?list-type=2")
has 'a/run/step-3/.metadata' <<<"$keys" || die "step-3 is not there: $keys"
start=$(date +%s%N)
stop_mount "$m"
note "unmounted in $((($(date +%s%N) - start) / 1000000)) ms"
# A new node: an empty store reads what only the bucket has; as nothing there has a mode, it is for its user only.
rm -rf --one-file-system "$s"
start_mount "$s" "$m" tier=s3://bucket/a
[ "$(readlink "$m/.cairn/latest/run")" = ../../.cairn/tier/run/step-3 ] || die "latest: $(readlink "$m/.cairn/latest/run")"
cmp "$m/.cairn/latest/run/__0_0.distcp" "$assets/dcp/__0_0.distcp" || die "read from the bucket"
in_store() { [ -e "$s/run/step-3" ]; }
retry 20 in_store || die "not in the store after it was read"
diff -r "$m/run/step-3" "$assets/dcp" || die "fetched from the bucket"
[ "$(stat -c %a "$m/run/step-3" "$m/run/step-3/.metadata" | tr '\n' ' ')" = "700 600 " ] || die "open to others"
stop_mount "$m"

# A server that refuses the credentials: it is told what to do.
python3 - "$TMP/refuses" <<'PY' &
import http.server, sys
class Refuses(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>no</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET
s = http.server.HTTPServer(("127.0.0.1", 0), Refuses)
open(sys.argv[1] + ".new", "w").write(f"http://127.0.0.1:{s.server_port}")
__import__("os").rename(sys.argv[1] + ".new", sys.argv[1])
s.serve_forever()
PY
refuses=$!
on_exit 'kill $refuses 2>/dev/null'
retry 30 test -e "$TMP/refuses" || die "no server that refuses"
AWS_ENDPOINT_URL_S3=$(cat "$TMP/refuses") start_mount "$s" "$m" tier=s3://bucket/a
retry 60 error_says 'ExpiredToken.*credentials: see cairn-tier(7)' || die "refused, and: $(status_field "$m" tier)"
stop_mount "$m"
grep -r not-to-be-seen "$TMP/out" "$s"/.cairn/*/log "$s"/.cairn/*/tier && die "a secret was printed"
exit 0
