#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn ls and cairn latest of checkpoints: on a mount while they are written, and on the bare store.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

latest_is() { expect 0 "$cairn" latest "$1" && says out "^$1/$2\$"; }

start_mount "$s" "$m"
mkdir -p "$m/run/notes"
echo hello >"$m/run/notes/a.txt"
expect 1 "$cairn" latest "$m/run"
says err 'no checkpoint that is complete and durable'

cp -r "$assets/dcp" "$m/run/step-7"
wait_durable "$m/run/step-7"
expect 0 "$cairn" ls "$m/run"
says out '^durable    step-7/  dcp, step 7, 2/2 ranks, 3 files, 15.5 KiB, complete and durable, '
says out '^durable    notes/$'
latest_is "$m/run" step-7

# A newer one: its shards, then its metadata; it counts from the rename on.
mkdir "$m/run/step-8"
cp "$assets"/dcp/*.distcp "$m/run/step-8"
cp "$assets/dcp/.metadata" "$m/run/step-8/.metadata.tmp"
expect 0 "$cairn" ls "$m/run"
says out ' step-8/  dcp, step 8, .*writing: '
latest_is "$m/run" step-7
mv "$m/run/step-8/.metadata.tmp" "$m/run/step-8/.metadata"
wait_durable "$m/run/step-8"
latest_is "$m/run" step-8
expect 0 "$cairn" tensors "$m/run/step-8"
says out '^5 tensors, 172 B, 1 other item$'
expect 0 "$cairn" check "$m/run/step-8"
says out '; 3 checksums and 0 CRCs match, 0 files without a checksum; 0 bad$'
expect 0 "$cairn" diff "$m/run/step-7" "$m/run/step-8"
says out ' 6 the same; 0 B read$'	# equal checksums: nothing is read

# Overwritten in place: writing from the first truncated shard on, although .metadata stands.
exec 8>"$m/run/step-8/__0_0.distcp"
expect 0 "$cairn" ls "$m/run"
says out ' step-8/ .*, 1/2 ranks, .*writing: __0_0.distcp is open'
latest_is "$m/run" step-7
expect 0 "$cairn" latest -v "$m/run"
says err 'step-8: writing: __0_0.distcp is open'
expect 1 "$cairn" check "$m/run/step-8"
exec 8>&-
cp "$assets/dcp/__0_0.distcp" "$m/run/step-8"
wait_durable "$m/run"
latest_is "$m/run" step-8

# A loose file of tensors makes its directory a checkpoint, but not beside others, and hides none of those.
mkdir "$m/mixed"
cp "$assets/torch_save/model.pt" "$m/mixed/best.pt"
wait_durable "$m/mixed"
expect 0 "$cairn" ls "$m/mixed"
says out '^durable    ./  torch, 1 file, 4.3 KiB, complete and durable, '
says out '^durable    best.pt$'
expect 0 "$cairn" ls "$m"
says out '^durable    mixed/  torch, 1 file, 4.3 KiB, '
latest_is "$m" mixed
cp -r "$assets/dcp" "$m/mixed/step-9"
wait_durable "$m/mixed"
expect 0 "$cairn" ls "$m/mixed"
grep -F ' ./' "$TMP/out" && die "the directory of a run is a checkpoint"
says out '^durable    best.pt  torch, 4.3 KiB, complete and durable, '
says out '^durable    step-9/  dcp, step 9, 2/2 ranks, 3 files, 15.5 KiB, complete and durable, '
expect 0 "$cairn" ls "$m"
says out '^durable    mixed/$'
latest_is "$m/mixed" step-9

rm "$m/run/step-8/__1_0.distcp"
wait_durable "$m/run"
stop_mount "$m"

# --- the bare store ------------------------------------------------------------------------
cp -r "$assets/hf_index" "$s/run/hf"
cp "$assets/torch_save/model.pt" "$s/run/epoch=1-step=5.ckpt"
mkdir -p "$s/run/global_step1" "$s/run/global_step2"
for f in zero_pp_rank_{0,1}_mp_rank_00_optim_states.pt mp_rank_00_model_states.pt; do
	cp "$assets/torch_save/model.pt" "$s/run/global_step1/$f"
	cp "$assets/torch_save/model.pt" "$s/run/global_step2/$f"
done
rm "$s/run/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"
find "$s/run" -exec touch -h -d '1 hour ago' {} +
expect 0 "$cairn" ls "$s/run"
says out '^-          step-7/  dcp, step 7, 2/2 ranks, 3 files, 15.5 KiB, complete, 1:00:0. old$'
says out 'step-8/  .*, 1/2 ranks, .*incomplete: __1_0.distcp is missing, 1:00:'
says out 'hf/  safetensors, 3 files, .*, complete, '
says out 'epoch=1-step=5.ckpt  lightning, step 5, .*, complete, '
says out 'global_step1/  deepspeed, step 1, 2/2 ranks, .*, complete, '
says out 'global_step2/  deepspeed, step 2, 1/2 ranks, .*incomplete: 1 of 2 ranks, as many as the previous checkpoint has'
expect 0 "$cairn" ls -l "$s/run/step-8"
says out '^-          \./  dcp, .*incomplete'
says out ' __0_0.distcp  3 items$'
says out '^missing    __1_0.distcp  9082 bytes are listed$'
expect 0 "$cairn" latest "$s/run"	# what the shard was removed from is kept
says out '/\.cairn/previous/run%2Fstep-8\.'
rm -r "$s/.cairn/previous"/*
latest_is "$s/run" step-7
expect 0 "$cairn" ls --json "$s/run"
python3 - "$TMP/out" <<'PY' || die "ls --json: $(cat "$TMP/out")"
import json, sys
(d,) = json.load(open(sys.argv[1], encoding="utf-8"))
e = {x["name"]: x.get("checkpoint") for x in d["entries"]}
assert e["notes"] is None
c = e["step-7"]
assert (c["format"], c["step"], c["ranks"], c["ranks_expected"], c["state"], c["safe"], c["why"]) == \
    ("dcp", 7, 2, 2, "complete", True, None), c
assert (c["files"], c["bytes"]) == (3, 15879), c
c = e["step-8"]
assert c["state"] == "incomplete" and not c["safe"] and c["why"] == "__1_0.distcp is missing", c
PY

# bit rot is found by the checksum
printf X | dd of="$s/run/step-7/__0_0.distcp" bs=1 seek=100 conv=notrunc status=none
expect 1 "$cairn" check "$s/run/step-7"
says out '^__0_0.distcp: checksum: expected xxh3:'
