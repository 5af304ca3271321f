#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 180
# A checkpoint that others lie in (a .ckpt, an optimizer of DCP, DeepSpeed's below Trainer's) is one, for all commands: in
# the tier it is whole, latest leads to it, ls, rm, tier rm and fetch agree. It is not complete before these are. The
# directory of a run is none.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier
mkdir "$t"
checkpoints() { "$cairn" tier ls --json "$t" | python3 -c 'import json, sys
print(*sorted(c["path"] for c in json.load(sys.stdin)["checkpoints"]))'; }
there_are() { [ "$(checkpoints)" = "$1" ] || die "in the tier: $(checkpoints), not $1"; }
latest_is()
{
	[ "$(readlink "$m/.cairn/latest/$1")" = "../../$2" ] || die "latest/$1 leads to $(readlink "$m/.cairn/latest/$1"), not to $2"
	expect 0 "$cairn" latest "$m/$1"
	says out "^$m/$2\$"
	expect 0 "$cairn" latest --tier "$m/$1"
	says out "^$m/$2\$"
}
model() { mkdir -p "$1" && cp "$assets/safetensors/model.safetensors" "$1"; }
torch=$(cd "$assets/torch_save" && find . -name '*.pt' | head -n 1)
pt() { cp "$assets/torch_save/$torch" "$1"; }

start_mount "$s" "$m" "tier=$t"

# A .ckpt in it.
model "$m/run/step-3"
echo '{}' >"$m/run/step-3/config.json"
pt "$m/run/step-3/state.ckpt"
pt "$m/run/final.pt"
echo step-5 >"$m/run/latest"
expect 0 "$cairn" wait --tier "$m/run"
there_are run/step-3
same_tree "$m/run/step-3" "$t/run/step-3"
latest_is run run/step-3
expect 0 "$cairn" ls "$m/run"
says out 'step-3/  safetensors, step 3, 3 files, .*complete and durable, in the tier'
says out ' final.pt  torch, .*not in the tier: no checkpoint'
expect 1 "$cairn" wait --tier "$m/run/final.pt"
says err 'final.pt: no checkpoint there that could be in the tier'
expect 0 "$cairn" ls "$m"
grep -q 'run/  torch' "$TMP/out" && die "the directory of a run is a checkpoint: $(cat "$TMP/out")"

# An optimizer of DCP in it: it is complete when that is.
mkdir -p "$m/run/step-4/optimizer"
cp "$assets"/dcp/*.distcp "$m/run/step-4/optimizer"
model "$m/run/step-4"
echo '{}' >"$m/run/step-4/optimizer/args.json"
wait_durable "$m"
latest_is run run/step-3
expect 0 "$cairn" ls "$m/run"
says out 'step-4/  safetensors, step 4, .*optimizer: .metadata is missing'
there_are run/step-3
cp "$assets/dcp/.metadata" "$m/run/step-4/optimizer"
expect 0 "$cairn" wait --tier "$m/run"
there_are "run/step-3 run/step-4"
same_tree "$m/run/step-4" "$t/run/step-4"
latest_is run run/step-4
expect 0 "$cairn" ls "$m/run/step-4"
says out ' ./  safetensors, step 4, 5 files, .*complete and durable, in the tier'
grep -q 'optimizer/  dcp' "$TMP/out" && die "a part is a checkpoint: $(cat "$TMP/out")"
[ "$(status_field "$m" tier.pending)" = 0 ] || die "it waits for the tier: $(status_field "$m" tier)"

# Trainer with DeepSpeed, and its final model in the directory of the run; a tracker is not sent with that.
model "$m/out/checkpoint-500"
mkdir "$m/out/checkpoint-500/global_step500"
pt "$m/out/checkpoint-500/global_step500/mp_rank_00_model_states.pt"
echo global_step500 >"$m/out/checkpoint-500/latest"
echo '{}' >"$m/out/checkpoint-500/trainer_state.json"
expect 0 "$cairn" wait --tier "$m/out"
there_are "out/checkpoint-500 run/step-3 run/step-4"
same_tree "$m/out/checkpoint-500" "$t/out/checkpoint-500"
latest_is out out/checkpoint-500
model "$m/out"
echo '{}' >"$m/out/config.json"
echo '{}' >"$m/out/trainer_state.json"
echo checkpoint-500 >"$m/out/latest"
expect 0 "$cairn" wait --tier "$m/out"
there_are "out out/checkpoint-500 run/step-3 run/step-4"
[ "$(cd "$t/out" && echo *)" = "checkpoint-500 config.json model.safetensors trainer_state.json" ] || die "out: $(ls "$t/out")"
latest_is out out/checkpoint-500
expect 0 "$cairn" ls "$m/out"
says out ' ./  safetensors, .*in the tier'
says out 'checkpoint-500/  hf-trainer, step 500, .*in the tier'
expect 0 "$cairn" tier verify "$t"
stop_mount "$m"

# A new node.
mv "$s" "$TMP/old"
start_mount "$s" "$m" "tier=$t"
[ "$(readlink "$m/.cairn/latest/run")" = ../../.cairn/tier/run/step-4 ] || die "$(readlink "$m/.cairn/latest/run")"
expect 0 "$cairn" fetch --latest "$m/run"
same_tree "$TMP/old/run/step-4" "$m/run/step-4"
expect 0 "$cairn" fetch "$m/run" "$m/out"
same_tree "$TMP/old/run/step-3" "$m/run/step-3"
same_tree "$t/out" "$m/out"
expect 0 "$cairn" wait --tier "$m"
latest_is run run/step-4
expect 0 "$cairn" rm --keep-last 1 "$m/run"
[ "$(ls "$m/run")" = step-4 ] || die "after rm: $(ls "$m/run")"
expect 0 "$cairn" tier rm "$t" run/step-3
expect 0 "$cairn" tier rm --force "$t" out
there_are "out/checkpoint-500 run/step-4"
[ ! -e "$t/run/step-3" ] && [ "$(ls "$t/out")" = checkpoint-500 ] || die "after tier rm: $(find "$t/run" "$t/out")"
expect 0 "$cairn" tier verify "$t"
stop_mount "$m"

# An earlier version sent only a part: what is whole counts, in a listing, too.
mkdir -p "$TMP/part/run/step-4" "$TMP/tier2" "$TMP/back"
cp -r "$TMP/old/run/step-4/optimizer" "$TMP/part/run/step-4"
t=$TMP/tier2
expect 0 "$cairn" tier push "$TMP/part" "$t"
there_are run/step-4/optimizer
cp -p "$TMP/old/run/step-4/model.safetensors" "$TMP/part/run/step-4"
expect 0 "$cairn" tier push "$TMP/part" "$t"
there_are "run/step-4 run/step-4/optimizer"
expect 0 "$cairn" tier fetch --latest "$t" "$TMP/back"
same_tree "$TMP/part/run" "$TMP/back/run"
rm -rf --one-file-system "$s"
start_mount "$s" "$m" "tier=$t"
[ "$(readlink "$m/.cairn/latest/run")" = ../../.cairn/tier/run/step-4 ] || die "a part: $(readlink "$m/.cairn/latest/run")"

# The shards that a model was made of, as torchtitan leaves them: time alone tells of such, and the model is whole at once.
mkdir -p "$m/hf/step-6/sharded"
cp "$assets"/hf_index/* "$m/hf/step-6"
cp "$assets/safetensors/model.safetensors" "$m/hf/step-6/sharded/shard-00001-model-00001-of-00001.safetensors"
wait_durable "$m"
expect 0 "$cairn" check "$m/hf/step-6"
[ "$(readlink "$m/.cairn/latest/hf")" = ../../hf/step-6 ] || die "latest/hf leads to $(readlink "$m/.cairn/latest/hf")"
stop_mount "$m"
