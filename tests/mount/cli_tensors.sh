#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# cairn tensors, diff and check against what PyTorch and safetensors say of the same files: names,
# dtypes, shapes, and the bytes, gathered by the file and offset that cairn tells.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

gather()
{
	python3 - "$TMP/out" "$1" "$2" <<'PY' || die "cairn tensors $2 differs from $1"
import hashlib, io, itertools, json, os, sys, zipfile

SIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "int16": 2, "bool": 1,
        "uint16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}

def element_bytes(p, folder):
    with open(os.path.join(folder, p["file"]), "rb") as f:
        f.seek(p["at"])
        raw = f.read(p["bytes"])
    assert len(raw) == p["bytes"]
    if p["payload"] == "torch":     # a zip of its own, of a row-major tensor
        z = zipfile.ZipFile(io.BytesIO(raw))
        (name,) = [n for n in z.namelist() if n.endswith("/data/0")]
        raw = z.read(name)
    return raw

def row_major(shape):
    s, out = 1, []
    for n in reversed(shape):
        out.append(s)
        s *= n
    return out[::-1]

def whole(t, folder):
    size, strides = SIZE[t["dtype"]], row_major(t["shape"])
    total = 1
    for n in t["shape"]:
        total *= n
    out, seen = bytearray(total * size), 0
    for p in t["pieces"]:
        raw, inner = element_bytes(p, folder), p.get("stride") or row_major(p["shape"])
        for at in itertools.product(*map(range, p["shape"])):
            i = sum(a * s for a, s in zip(at, inner)) * size
            o = sum((a + b) * s for a, b, s in zip(at, p["offset"], strides)) * size
            out[o:o + size] = raw[i:i + size]
            seen += 1
    assert seen == total, (t["name"], seen, total)
    return bytes(out)

got = json.load(open(sys.argv[1], encoding="utf-8"))
want = json.load(open(sys.argv[2], encoding="utf-8"))
assert [t["name"] for t in got["tensors"]] == sorted(want, key=lambda s: s.encode()), got
for t in got["tensors"]:
    w = want[t["name"]]
    assert (t["dtype"], t["shape"]) == (w["dtype"], w["shape"]), (t, w)
    assert "problem" not in t, t
    assert hashlib.sha256(whole(t, sys.argv[3])).hexdigest() == w["sha256"], t["name"]
PY
}

for name in dcp dcp_local dcp_safetensors dcp_hf hf_index safetensors torch_save torchsnapshot; do
	expect 0 "$cairn" tensors --json "$assets/$name"
	gather "$assets/$name.json" "$assets/$name"
	expect 0 "$cairn" check "$assets/$name"
	says out 'complete;.* 0 bad$'
done

expect 0 "$cairn" tensors "$assets/dcp"
says out '^layers.0.columns  bfloat16 \[4, 6\]  1x2  48 B$'
says out '^    \[0, 3\] + \[4, 3\]  __1_0.distcp 2838+1577$'
says out '^5 tensors, 172 B, 1 other item$'
expect 0 "$cairn" tensors --bytes "$assets/torch_save/model.pt"
says out '^model.transposed  float32 \[4, 6\]  1x1  96  model.pt [0-9]*  strides \[1, 4\]$'
expect 0 "$cairn" tensors "$assets/torch_odd/odd.pt"
says out '^sparse .*not supported: _rebuild_sparse_tensor'
expect 1 "$cairn" tensors "$assets/torch_odd/old.pt"
says err 'old.pt: at 0: a torch.save file in the format before PyTorch 1.6'

# --- diff: however the two are cut ---------------------------------------------------------
same='^0 added, 0 removed, 0 reshaped, 0 changed'
expect 0 "$cairn" diff "$assets/dcp" "$assets/dcp_local"
says out "$same, 6 the same"
expect 1 "$cairn" diff "$assets/dcp_hf" "$assets/dcp_safetensors"
says out '^added     empty  float32 \[0, 2\]$'
says out '^1 added, 0 removed, 0 reshaped, 0 changed, 4 the same'
expect 0 "$cairn" diff "$assets/torch_save" "$assets/torch_save/model.pt"
says out "$same, 14 the same; 0 B read"	# one file: nothing to read

expect 0 "$cairn" diff "$assets/torch_odd/odd.pt" "$assets/torch_odd/odd.pt"
says out "$same, 3 the same; 0 B read"	# what cannot be read, but is the same file
cp "$assets/torch_odd/odd.pt" "$TMP/odd.pt"
expect 1 "$cairn" diff "$assets/torch_odd/odd.pt" "$TMP/odd.pt"
says out '^unknown   sparse  sparse: an unknown dtype$'
says out ' 1 the same, 2 cannot be compared'

cp -r "$assets/dcp" "$TMP/b"
at=$("$cairn" tensors "$TMP/b" | awk '/^layers.0.columns/ { getline; sub(/\+.*/, "", $NF); print $NF }')
python3 - "$TMP/b/__0_0.distcp" "$at" <<'PY'
import sys, zipfile, io
path, at = sys.argv[1], int(sys.argv[2])
b = bytearray(open(path, "rb").read())
z = zipfile.ZipFile(io.BytesIO(bytes(b[at:at + 1577])))
i = z.getinfo("archive/data/0")
raw = z.read("archive/data/0")
j = bytes(b).index(raw, at + i.header_offset)
b[j + 5] ^= 1
open(path, "wb").write(b)
PY
expect 1 "$cairn" diff "$assets/dcp" "$TMP/b"
says out '^changed   layers.0.columns  bfloat16 \[4, 6\]$'
says out ' 1 changed, 5 the same'
expect 1 "$cairn" diff --json "$assets/dcp" "$TMP/b"
python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert d["changed"] == 1 and d["differences"][0]["name"] == "layers.0.columns", d' "$TMP/out" || die "diff --json"
expect 1 "$cairn" check "$TMP/b"
says out '^__0_0.distcp: at [0-9]*: archive/data/0: CRC is '
expect 0 "$cairn" check --quick "$TMP/b"

# --- what is broken gets one line with file and offset -------------------------------------------
truncate -s 4000 "$TMP/b/__0_0.distcp"
touch -d '1 hour ago' "$TMP/b" "$TMP/b"/* "$TMP/b/.metadata"
expect 1 "$cairn" check "$TMP/b"
says out '^__0_0.distcp: at 4000: truncated: 4731 bytes are listed$'
says out ': dcp, incomplete: __0_0.distcp has 4000 of 4731 bytes;'
rm "$TMP/b/__0_0.distcp"
touch -d '1 hour ago' "$TMP/b"
expect 1 "$cairn" check "$TMP/b"
says out '^__0_0.distcp: missing$'
truncate -s 100 "$TMP/b/.metadata"
expect 1 "$cairn" check "$TMP/b"
says out '^.metadata: at [0-9]*: truncated'

mkdir "$TMP/st"
head -c 480 "$assets/safetensors/model.safetensors" >"$TMP/st/model.safetensors"
expect 1 "$cairn" check "$TMP/st"
says out '^model.safetensors: at 480: truncated: 64 bytes of data, the header says 70$'
for bad in "$assets"/should-fail/safetensors/*; do
	cp "$bad" "$TMP/st/model.safetensors"
	expect 1 "$cairn" tensors "$TMP/st"
	says err '^cairn: model.safetensors: '
done
for bad in "$assets"/should-fail/dcp/* "$assets"/should-fail/pickle/*; do
	cp "$bad" "$TMP/b/.metadata"
	expect 1 "$cairn" check "$TMP/b"
done
# An index: a file that is missing is one finding, not one for each of its tensors; volumes add up.
cp -r "$assets/hf_index" "$TMP/index"
rm "$TMP/index/model-00002-of-00002.safetensors"
expect 1 "$cairn" check "$TMP/index"
says out '^model-00002-of-00002.safetensors: missing$'
says out '; 1 bad$'
cp "$assets/hf_index"/* "$TMP/index"
sed -i 's/"total_size": 112/"total_size": 113/' "$TMP/index/model.safetensors.index.json"
expect 1 "$cairn" check "$TMP/index"
says out ": the index's total_size is 113, its tensors have 112 bytes$"
sed -i 's/"total_size": 113/"total_size": 113.5/' "$TMP/index/model.safetensors.index.json"
expect 0 "$cairn" check "$TMP/index"	# some writers estimate it

mkdir "$TMP/hf"
cp "$assets"/dcp_hf/shard-00002* "$TMP/hf"
expect 1 "$cairn" check "$TMP/hf"
says out 'layers.0.weight: pieces hold 12 of 24 elements'

# a link that leads out of the checkpoint is no part of it
mkdir "$TMP/link"
sed 's|__0_0.distcp|x/000.distcp|' "$assets/dcp/.metadata" >"$TMP/link/.metadata"
mkdir "$TMP/out.d"
ln -s "$TMP/out.d" "$TMP/link/x"
cp "$assets/dcp/__0_0.distcp" "$TMP/out.d/000.distcp"
cp "$assets/dcp/__1_0.distcp" "$TMP/link"
expect 1 "$cairn" check "$TMP/link"
rm "$TMP/link/x"
mv "$TMP/out.d" "$TMP/link/x"	# a directory in it is
expect 0 "$cairn" check "$TMP/link"
says out ': dcp, complete; 5 tensors'

expect 2 "$cairn" tensors "$TMP/missing"
expect 2 "$cairn" tensors /proc/self
says err 'not a known checkpoint'
expect 2 "$cairn" tensors
expect 2 "$cairn" diff "$assets/dcp"
expect 2 "$cairn" check
for sub in tensors check diff latest; do
	expect 2 "$cairn" $sub --nonsense x
	expect 0 "$cairn" help $sub
done

# --- how long a large one takes: information, decides nothing ---------------------------------
mkdir "$TMP/big"
python3 "$assets/make_big_metadata.py" 100000 1 "$TMP/big/.metadata" || die "make_big_metadata.py"
start=$(date +%s%N)
expect 0 "$cairn" tensors "$TMP/big"
note "cairn tensors of 100,000 tensors: $((($(date +%s%N) - start) / 1000000)) ms"
says out '^100000 tensors, '

# An item that is no tensor has a CRC, too: each part of it that is zeroed is found.
for at in 0 200 600 1100; do
	rm -rf "$TMP/zeroed"
	cp -r "$assets/dcp" "$TMP/zeroed"
	dd if=/dev/zero of="$TMP/zeroed/__1_0.distcp" bs=1 seek=$at count=120 conv=notrunc status=none
	expect 1 "$cairn" check "$TMP/zeroed"
	says out '^__1_0.distcp: at '
done

# A commit file that cannot be read is a fault, whatever byte of it is wrong.
python3 - "$cairn" "$assets/dcp" "$TMP/flipped" <<'PY' || die "a flipped bit in .metadata"
import os, shutil, subprocess, sys
cairn, whole, folder = sys.argv[1:4]
shutil.copytree(whole, folder)
path = os.path.join(folder, ".metadata")
with open(path, "rb") as f:
    good = f.read()
for bit in range(0, len(good) * 8, 37):
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    with open(path, "wb") as f:
        f.write(bad)
    r = subprocess.run([cairn, "check", "-q", "--quick", folder], capture_output=True, check=False)
    if r.returncode == 0 and b" 5 tensors " not in r.stdout:
        sys.exit(f"bit {bit}: {r.stdout.decode(errors='replace')}")
PY
