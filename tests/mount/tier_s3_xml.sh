#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# A bucket whose server writes XML as others do: characters of keys as entities, + for a space, tokens with an &. What is listed,
# in several answers, is all there.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
[ -z "${CAIRN_S3-}" ] || skip "the requests are changed after they were signed"
export MOTO_S3_DEFAULT_MAX_KEYS=2
s3_fault_bucket
t=s3://bucket/a ref=$TMP/ref
mkdir "$ref"
names=('a&b-3' 'c d-4' 'e+f-5' "g'<h>\"-6" 'i%20j-7' 'k&amp;l-8')
for name in "${names[@]}"; do
	cp -r "$assets/dcp" "$ref/$name"
done
s3_rule xml 1 0
expect 0 "$cairn" tier push "$ref" "$t"
says out '^sent     a&b-3  3 files'
expect 0 "$cairn" tier ls "$t"
for name in "${names[@]}"; do
	grep -qF "complete  $name  dcp" "$TMP/out" || die "$name is not listed: $(cat "$TMP/out")"
done
expect 0 "$cairn" tier push "$ref" "$t"
says out '^there    a&b-3  3 files'
has 'continuation-token=[^"]*%26%26' "$TMP/fault/log" || die "no token with an &: $(cat "$TMP/fault/log")"
mkdir "$TMP/back"
expect 0 "$cairn" tier fetch "$t" "$TMP/back"
same_tree "$ref" "$TMP/back"
