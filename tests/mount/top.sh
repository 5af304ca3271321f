#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# cairn top: each checkpoint and rank that is not durable, with what it waits for; 80 and 40 columns; JSON.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

# asked FIELD: of rank 1 of run/step-1
asked()
{
	python3 - "$TMP/out" "$1" <<'PY'
import json, sys
found = {c["path"]: {r["rank"]: r for r in c["ranks"]} for c in json.load(open(sys.argv[1]))["checkpoints"]}
print(found["run/step-1"]["rank 1"][sys.argv[2]])
PY
}
# fits COLUMNS: no line is longer, and the file and its rank are there
fits()
{
	expect 0 env COLUMNS="$1" "$cairn" top --once "$m"
	says out step-1
	says out 'rank 1'
	says out writer
	[ "$(wc -L <"$TMP/out")" -le "$1" ] || die "more than $1 columns: $(cat "$TMP/out")"
}

start_mount "$s" "$m"
expect 0 "$cairn" top --once "$m"
says out 'no file waits to be durable'
mkdir -p "$m/run/step-1"
on_exit 'exec 8>&-'
exec 8>"$m/run/step-1/__1_0.distcp"
head -c 3M /dev/zero >&8
fits 80
fits 40
expect 0 "$cairn" top --json "$m"
[ "$(asked bytes)" = $((3 << 20)) ] || die "bytes: $(cat "$TMP/out")"
[ "$(asked waits_for)" = writer ] || die "waits_for: $(cat "$TMP/out")"
expect 2 "$cairn" top --fast "$m"
exec 8>&-
wait_durable "$m"
expect 0 "$cairn" top --json "$m"
says out '"checkpoints":\s*\[\s*\]'
