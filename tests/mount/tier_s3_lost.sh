#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# set: rest
# -o tier=s3://...: a bucket that was emptied, or removed and made again, while the mount is up gets everything again, and
# nothing says meanwhile that it is there.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_serve
s3_bucket
export COLUMNS=400
m1=a/.cairn/manifests/run/step-1/manifest.json
keys() { plain GET "$url/bucket?list-type=2" | grep -o '<Key>[^<]*' | sed 's/<Key>//'; }
empty() { local key; for key in $(keys); do plain DELETE "$url/bucket/$key" >/dev/null; done; }
# what is sent meanwhile is removed, too
bucket_gone() { empty; plain DELETE "$url/bucket" >/dev/null 2>&1; }
has_error() { status_field "$m" tier.error | has '404 NoSuchBucket'; }

start_mount "$s" "$m" tier=s3://bucket/a
mkdir "$m/run"
cp -r "$assets/dcp" "$m/run/step-1"
expect 0 "$cairn" wait --tier "$m"
keys | sort >"$TMP/keys"
has -x "$m1" "$TMP/keys" || die "not sent"

empty
expect 0 "$cairn" wait --tier "$m/run/step-1"
keys | sort | cmp - "$TMP/keys" || die "emptied, and has: $(keys)"

retry 20 bucket_gone || die "the bucket is not empty: $(keys)"
expect 3 "$cairn" wait --tier --timeout 1 "$m/run/step-1"
retry 60 has_error || die "no bucket, and: $(status_field "$m" tier)"
s3_bucket
expect 0 "$cairn" wait --tier "$m/run/step-1"
keys | sort | cmp - "$TMP/keys" || die "made again, and has: $(keys)"
stop_mount "$m"
expect 0 "$cairn" tier verify s3://bucket/a
