#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# A directory with model.safetensors goes to the tier with what lies beside it (config.json, tokenizer.json): from a mount,
# from any directory, later ones later, and back. Not what cairnfs put there, unfinished files, or subdirectories. What is
# only added leaves the copy complete; what changed is sent again, what is removed goes.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier
mkdir "$t"
files() { (cd "$1" && find . -mindepth 1 | sort | tr '\n' ' '); }
manifest=$t/.cairn/manifests/model/manifest.json
listed() { python3 -c 'import json, sys; print(*[f["path"] for f in json.load(open(sys.argv[1]))["files"]])' "$manifest"; }
generation() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["generation"])' "$manifest"; }

# From a mount, as save_pretrained() writes.
start_mount "$s" "$m" "tier=$t"
mkdir "$m/model"
echo '{"model_type": "llama"}' >"$m/model/config.json"
cp "$assets/safetensors/model.safetensors" "$m/model"
echo '{}' >"$m/model/.hidden"
echo x >"$m/model/.cairn-x" 2>/dev/null || note "no such name on a mount"
echo x >"$m/model/tokenizer.json.tmp"
echo x >"$m/model/tmpab12"
mkdir "$m/model/runs"
echo x >"$m/model/runs/log"
mkfifo "$m/model/pipe"
ln -s nowhere "$m/model/dangling"
ln -s config.json "$m/model/link.json"
expect 0 "$cairn" wait --tier "$m/model"
[ "$(listed)" = "model/.hidden model/config.json model/link.json model/model.safetensors" ] || die "listed: $(listed)"
[ "$(files "$t/model")" = "./.hidden ./config.json ./link.json ./model.safetensors " ] || die "sent: $(files "$t/model")"
cmp "$m/model/config.json" "$t/model/config.json" || die "config.json"

# Not said to be there because the checkpoint beside it is.
for i in runs runs/log tmpab12 tokenizer.json.tmp; do
	expect 1 "$cairn" wait --tier --timeout 20 "$m/model/$i"
	says err "$i: .*could be in the tier"
done
expect 0 "$cairn" wait --tier "$m/model/config.json" "$m/model/link.json" "$m/model/model.safetensors"

# What comes later is sent later; the manifest is there all the time.
inode=$(stat -c %i "$t/model/model.safetensors")
python3 -c 'import os, sys, time
gone = 0
while not os.path.exists(sys.argv[2]):
    gone += not os.path.exists(sys.argv[1])
sys.exit(gone > 0)' "$manifest" "$TMP/stop" &
watcher=$!
echo '{"version": "1.0"}' >"$m/model/tokenizer.json"
expect 0 "$cairn" wait --tier "$m/model"
touch "$TMP/stop"
wait $watcher || die "the manifest was taken away for a file that was added"
cmp "$m/model/tokenizer.json" "$t/model/tokenizer.json" || die "tokenizer.json"
[ "$(stat -c %i "$t/model/model.safetensors")" = "$inode" ] || die "all was sent again"
has '"model/tokenizer.json"' "$manifest" || die "not listed: $(listed)"

# Changed, removed.
echo '{"model_type": "llama", "x": 1}' >"$m/model/config.json"
rm "$m/model/.hidden"
expect 0 "$cairn" wait --tier "$m/model"
cmp "$m/model/config.json" "$t/model/config.json" || die "config.json was changed"
[ ! -e "$t/model/.hidden" ] || die "what was removed is there"
expect 0 "$cairn" tier verify "$t"
says out '^4 ok, 0 missing'
before=$(generation)
stop_mount "$m"
expect 0 "$cairn" tier push "$s" "$t"
says out '^there    model  4 files'
[ "$(generation)" = "$before" ] || die "sent again: generation $(generation)"

# A new node: all that from_pretrained() reads.
mv "$s" "$TMP/old"
start_mount "$s" "$m" "tier=$t"
cmp "$m/.cairn/latest/config.json" "$TMP/old/model/config.json" || die "config.json through latest"
expect 0 "$cairn" fetch "$m/model"
same_file() { cmp "$m/model/$1" "$TMP/old/model/$1" || die "$1 after a fetch"; }
same_file config.json
same_file tokenizer.json
same_file model.safetensors
stop_mount "$m"

# An earlier version sent only the tensors: the next push adds the others.
mkdir -p "$TMP/src" "$TMP/tier2" "$TMP/back"
cp -r "$TMP/old/model" "$TMP/src"
rm "$TMP/src/model/pipe"
mkdir "$TMP/src/aside"
mv "$TMP/src/model"/*.json "$TMP/src/aside"
expect 0 "$cairn" tier push "$TMP/src" "$TMP/tier2"
says out '^sent     model  1 file,'
mv "$TMP/src/aside"/* "$TMP/src/model"
expect 0 "$cairn" tier push "$TMP/src" "$TMP/tier2"
says out '^sent     model  4 files,'
expect 0 "$cairn" tier fetch "$TMP/tier2" "$TMP/back"
cmp "$TMP/back/model/tokenizer.json" "$TMP/src/model/tokenizer.json" || die "fetched by hand"
expect 0 "$cairn" tier push "$TMP/src" "$TMP/tier2"
says out '^there    model  4 files,'
