#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 60
# A log beside model.safetensors has changed, and the server does not take it: the copy in the bucket is complete without it.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_fault_bucket
t=s3://bucket/p
listed() { plain GET "$url/bucket/p/.cairn/manifests/model/manifest.json" | python3 -c 'import json, sys
print(*sorted(f["path"] for f in json.load(sys.stdin)["files"]))'; }
has_all() { [ "$(listed)" = "$1" ] || die "listed: $(listed)"; expect 0 "$cairn" tier verify "$t"; }

mkdir -p "$s/model"
cp "$assets/safetensors/model.safetensors" "$s/model"
echo first >"$s/model/log.jsonl"
expect 0 "$cairn" tier push "$s" "$t"
has_all "model/log.jsonl model/model.safetensors"
echo second >>"$s/model/log.jsonl"
s3_rule 403 1 0 'PUT .*log.jsonl'
expect 1 "$cairn" tier push "$s" "$t"
has_all "model/model.safetensors"
expect 0 "$cairn" tier fetch --latest "$t" "$TMP"
cmp "$TMP/model/model.safetensors" "$s/model/model.safetensors" || die "fetched meanwhile"
s3_rule
expect 0 "$cairn" tier push "$s" "$t"
has_all "model/log.jsonl model/model.safetensors"
[ "$(plain GET "$url/bucket/p/model/log.jsonl" | head -n 2)" = "$(cat "$s/model/log.jsonl")" ] || die "the log"
rm "$s/model/log.jsonl"
expect 0 "$cairn" tier push "$s" "$t"
has_all "model/model.safetensors"
