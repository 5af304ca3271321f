#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn rm: what it removes, and what it never does; on a mount and on the bare store.
# modes: fast relay
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

there() { [ "$(ls -A "$1" | tr '\n' ' ')" = "$2 " ] || die "$1 has $(ls -A "$1" | tr '\n' ' ') and not $2"; }

expect 2 "$cairn" rm "$TMP"
says err 'give --keep-last N, --keep-every K, or both'
expect 2 "$cairn" rm --keep-last 0 "$TMP"
expect 2 "$cairn" rm --keep-last 2x "$TMP"
expect 2 "$cairn" rm --keep-last 1
expect 2 "$cairn" rm --keep-last 1 "$TMP/missing"

start_mount "$s" "$m"
mkdir -p "$m/run/notes" "$m/run/final"
echo hello >"$m/run/notes/a.txt"
cp "$assets/safetensors/model.safetensors" "$m/run/final"
cp "$assets/torch_save/model.pt" "$m/run/loose.pt"

# Nothing is safe: nothing goes.
mkdir "$m/run/step-5"
cp "$assets"/dcp/*.distcp "$m/run/step-5"
wait_durable "$m/run"
find "$m/run/step-5" -depth -exec touch -c -d '1 hour ago' {} +
wait_durable "$m/run"
expect 1 "$cairn" rm --keep-last 1 "$m/run"
says err 'nothing is removed'
there "$m/run" "final loose.pt notes step-5"

for i in 10 20 30 40 50 70; do
	cp -r "$assets/dcp" "$m/run/step-$i"
done
# Cut off, and not committed. Never complete: else the store might keep what they had before.
mkdir "$m"/run/step-{6,8}0
cp "$assets/dcp/__0_0.distcp" "$assets/dcp/.metadata" "$m/run/step-60"
cp "$assets"/dcp/*.distcp "$m/run/step-80"
wait_durable "$m/run"
find "$m"/run/step-{6,8}0 -depth -exec touch -c -d '1 hour ago' {} +
wait_durable "$m/run"
exec 8>>"$m/run/step-10/__0_0.distcp"		# being written
all="final loose.pt notes step-10 step-20 step-30 step-40 step-5 step-50 step-60 step-70 step-80"
there "$m/run" "$all"

expect 0 "$cairn" rm --keep-last 2 --keep-every 20 --dry-run "$m/run"
says out '^keep    step-80  .*newer than any safe one$'
says out '^keep    step-70  complete, .*the newest safe one$'
says out '^remove  step-60  incomplete, .*__1_0.distcp is missing$'
says out '^keep    step-50  .*one of the last$'
says out '^keep    step-40  .*every so many steps$'
says out '^remove  step-30  .*older$'
says out '^keep    step-10  writing, .*being written$'
says out '^would remove 3 of 9, '
there "$m/run" "$all"
expect 0 "$cairn" rm --keep-last 2 --keep-every 20 --dry-run --json "$m/run"
python3 - "$TMP/out" <<'PY' || die "rm --json: $(cat "$TMP/out")"
import json, sys
d = json.load(open(sys.argv[1], encoding="utf-8"))
gone = [c["step"] for c in d["checkpoints"] if c["action"] == "remove"]
assert d["dry_run"] and d["removed"] == 3 and gone == [60, 30, 5], d
assert [c["step"] for c in d["checkpoints"] if c["safe"]] == [70, 50, 40, 30, 20], d
PY
expect 0 "$cairn" rm --keep-last 2 --keep-every 20 "$m/run"
says out '^removed 3 of 9, '
there "$m/run" "final loose.pt notes step-10 step-20 step-40 step-50 step-70 step-80"
exec 8>&-
wait_durable "$m/run"

# A live cairnfs: the store is not to be changed beside it.
expect 1 "$cairn" rm --keep-last 1 "$s/run"
says err 'a cairnfs serves this store'
there "$s/run" "final loose.pt notes step-10 step-20 step-40 step-50 step-70 step-80"
stop_mount "$m"

# In the bare store, one that is half removed is none, and is taken up again.
find "$s/run" -exec touch -d '1 hour ago' {} +
mv "$s/run/step-20" "$s/run/.cairn-removed.step-20"
[ "$("$cairn" latest "$s/run")" = "$s/run/step-70" ] || die "latest in the store"
expect 0 "$cairn" rm --keep-every 1000 "$s/run"
there "$s/run" "final loose.pt notes step-70 step-80"

# Nothing is there at all after the mount was started again.
start_mount "$s" "$m"
there "$m/run" "final loose.pt notes step-70 step-80"
[ "$(readlink "$m/.cairn/latest/run")" = ../../run/step-70 ] || die "latest is $(readlink "$m/.cairn/latest/run")"
