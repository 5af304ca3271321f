#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# cairn export: the tensors of every kind of checkpoint, bit for bit as their writer's own library
# reads them; from a mount, a store, anywhere; whole or not at all.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

leaves_nothing() { [ -z "$(find "$1" -name '.*export*')" ] || die "left behind: $(find "$1")"; }

mkdir "$TMP/o"
for name in dcp dcp_local dcp_safetensors dcp_hf hf_index safetensors torch_save; do
	expect 0 "$cairn" export "$assets/$name" "$TMP/o/$name.safetensors"
	same_tensors "$TMP/o/$name.safetensors" "$assets/$name.json"
done
cmp "$TMP/o/dcp.safetensors" "$TMP/o/dcp_local.safetensors" || die "one model, two files"
expect 0 "$cairn" export --format safetensors -q "$assets/dcp" "$TMP/o/q"
[ ! -s "$TMP/out" ] || die "-q: $(cat "$TMP/out")"
says err '^cairn: left out, since they are no tensors: step$'
expect 0 "$cairn" export --sync "$assets/dcp" "$TMP/o/q"	# replaces it
cmp "$TMP/o/q" "$TMP/o/dcp.safetensors" || die "replaced by something else"
(cd "$TMP/o" && expect 0 "$cairn" export "$assets/dcp" here && cmp here q) || die "a bare name"
expect 0 "$cairn" export "$assets/torch_save/model.pt" "$TMP/o/one"
same_tensors "$TMP/o/one" "$assets/torch_save.json"
expect 0 "$cairn" check "$TMP/o/dcp.safetensors"
says out ': safetensors, complete; 5 tensors'
expect 0 "$cairn" diff "$TMP/o/torch_save.safetensors" "$assets/torch_save"
for name in dcp dcp_hf safetensors torch_save; do	# and as what torch.load() opens
	expect 0 "$cairn" export --format torch "$assets/$name" "$TMP/o/$name.pt"
	expect 0 "$cairn" diff "$TMP/o/$name.pt" "$TMP/o/$name.safetensors"
	says out '^0 added, 0 removed, 0 reshaped, 0 changed'
	expect 0 "$cairn" check "$TMP/o/$name.pt"
done
leaves_nothing "$TMP/o"

# --- what cannot be carried is refused by name, and OUT stays as it was ----------------------
echo before >"$TMP/o/keep"
expect 1 "$cairn" export "$assets/torch_odd/odd.pt" "$TMP/o/keep"
says err '^cairn: conj: '
cp -r "$assets/dcp" "$TMP/b"
truncate -s 4000 "$TMP/b/__0_0.distcp"
expect 1 "$cairn" export "$TMP/b" "$TMP/o/keep"
says err '__0_0.distcp has 4000 of 4731 bytes'
rm "$TMP/b/__0_0.distcp"
expect 1 "$cairn" export "$TMP/b" "$TMP/o/keep"
says err '__0_0.distcp'
mkdir "$TMP/hf"
cp "$assets"/dcp_hf/shard-00002* "$TMP/hf"
expect 1 "$cairn" export "$TMP/hf" "$TMP/o/keep"
says err 'pieces hold 12 of 24 elements'
cp -r "$assets/dcp" "$TMP/c"	# an item that is another than the metadata says
sed -i 's/BFloat16Storage/ComplexXStorage/' "$TMP/c"/*.distcp
expect 1 "$cairn" export "$TMP/c" "$TMP/o/keep"
says err '^cairn: .* in __[01]_0.distcp: '
[ "$(cat "$TMP/o/keep")" = before ] || die "OUT was touched"
for bad in "$assets"/should-fail/dcp/* "$assets"/should-fail/pickle/*; do
	cp "$bad" "$TMP/b/.metadata"
	expect 1 "$cairn" export "$TMP/b" "$TMP/o/keep"
done
expect 1 "$cairn" export "$assets/dcp" "$TMP/nowhere/x"
says err 'No such file'
expect 2 "$cairn" export "$assets/dcp"
expect 2 "$cairn" export "$assets/dcp" "$TMP/o"
says err 'there already, and no file'
expect 2 "$cairn" export --format onnx "$assets/dcp" "$TMP/o/x"
says err onnx
expect 1 "$cairn" export --format torch "$assets/torch_odd/odd.pt" "$TMP/o/x"
says err "^cairn: conj: "
expect 2 "$cairn" export "$TMP/missing" "$TMP/o/x"
expect 2 "$cairn" export --nonsense a b
expect 0 "$cairn" help export
leaves_nothing "$TMP/o"

# --- from a mount, staged and durable, onto the mount, and from the store ----------------------
start_mount "$TMP/store" "$TMP/m"
cp -r "$assets/dcp" "$TMP/m/step-1"
expect 0 "$cairn" export "$TMP/m/step-1" "$TMP/m/staged.safetensors"
cmp "$TMP/m/staged.safetensors" "$TMP/o/dcp.safetensors" || die "from a mount"
wait_durable "$TMP/m"
cmp "$TMP/store/staged.safetensors" "$TMP/o/dcp.safetensors" || die "on a mount"
expect 0 "$cairn" export "$TMP/store/step-1" "$TMP/o/stored"
cmp "$TMP/o/stored" "$TMP/o/dcp.safetensors" || die "from a store"

# --- a large one: its memory ---------------------------------------------------------------
python3 "$assets/make_big_dcp.py" --ranks 4 --mib 300 --columns "$TMP/big" || die "make_big_dcp.py"
expect 0 python3 - "$cairn" "$TMP/big" "$TMP/o/big" <<'PY'
import resource, subprocess, sys
subprocess.run([sys.argv[1], "export", *sys.argv[2:]], check=True)
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("peak KiB", kib)
sys.exit(kib > 64 << 10)
PY
note "$(grep peak "$TMP/out")"
python3 "$assets/make_big_dcp.py" --check "$TMP/o/big" || die "the large one differs"
