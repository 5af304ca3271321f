#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# .cairn/views: each kind of checkpoint as other files, staged and durable; what is not whole, not
# readable for the caller, or hostile has none; a version that is gone is not mixed with the next.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

others=
[ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && others=allow_other
start_mount "$TMP/store" "$TMP/m" "$others"
m=$TMP/m v=$TMP/m/.cairn/views

for name in dcp dcp_local dcp_safetensors dcp_hf hf_index safetensors torch_odd torchsnapshot; do
	cp -r "$assets/$name" "$m/$name"
	"$cairn" export -q "$assets/$name" "$TMP/$name" 2>/dev/null
done
cp -r "$assets/torch_save" "$m"
# nothing in these says that all was written: only that nobody has for a while
touch -d '1 hour ago' "$m/torch_save/model.pt" "$m/torch_save" "$m/torch_odd"/* "$m/torch_odd" "$m/dcp_hf"/* "$m/dcp_hf"
"$cairn" export -q "$assets/torch_save" "$TMP/torch_save"

# --- read in every way ------------------------------------------------------------------------
all()
{
	for name in dcp dcp_local dcp_safetensors dcp_hf hf_index safetensors torch_save torchsnapshot; do
		cmp "$v/$name/model.safetensors" "$TMP/$name" || die "$1: $name"
		same_tensors "$v/$name/model.safetensors" "$assets/$name.json"
		same_tensors "$v/$name"/split-5G/model-*.safetensors "$assets/$name.json"
	done
}
all staged
wait_durable "$m"
all durable
cp "$v/dcp/model.safetensors" "$TMP/copy" && cmp "$TMP/copy" "$TMP/dcp" || die "cp"
[ "$(stat -c %s "$v/dcp/model.safetensors")" = "$(stat -c %s "$TMP/dcp")" ] || die "size"
[ "$(stat -c %Y "$v/dcp/model.safetensors")" = "$(stat -c %Y "$m"/dcp/__*.distcp "$m/dcp/.metadata" | sort -n | tail -1)" ] ||
	die "mtime"
[ "$(ls "$v/dcp")" = "$(printf '%s\n' model.safetensors reshard split-5G tensors)" ] || die "ls: $(ls "$v/dcp")"
[ "$(ls "$v/dcp/tensors")" = "$(printf '%s\n' empty.npy layers.0.{columns,uneven,weight}.npy scalar.npy)" ] ||
	die "tensors: $(ls "$v/dcp/tensors")"
[ -z "$(ls "$v/dcp/reshard")" ] || die "reshard is listed"
ls -A "$m" | has cairn && die ".cairn is listed"
ls "$m/.cairn" | has -x views || die "views is not listed in .cairn"

python3 - "$v" "$TMP" "$assets" <<'PY' || die "python"
import errno, json, mmap, os, random, struct, sys

views, tmp, assets = sys.argv[1:]

def read(path):
    with open(path, "rb") as f:
        return f.read()

def header(data):
    (n,) = struct.unpack("<Q", data[:8])
    h = json.loads(data[8:8 + n])
    del h["__metadata__"]
    return {k: (t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for k, t in h.items()}

# mapped, and at random
for name in ("dcp", "dcp_hf", "torch_save"):
    want, path = read(f"{tmp}/{name}"), f"{views}/{name}/model.safetensors"
    with open(path, "rb") as f:
        for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            with mmap.mmap(f.fileno(), 0, flags, mmap.PROT_READ) as m:
                assert m[:] == want, name
        rng = random.Random(1)
        for _ in range(200):
            off = rng.randrange(len(want) + 1)
            n = rng.randrange(len(want))
            assert os.pread(f.fileno(), n, off) == want[off:off + n], (name, off, n)
        assert os.lseek(f.fileno(), 0, os.SEEK_DATA) == 0
        assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == len(want)
        assert os.fstat(f.fileno()).st_ino == os.stat(path).st_ino

# resharded: torch.chunk's rows, one after the other the whole
whole = header(read(f"{tmp}/dcp"))
for ranks in (1, 2, 4, 5, 100):
    parts = [header(read(f"{views}/dcp/reshard/{ranks}/rank-{r}.safetensors")) for r in range(min(ranks, 8))]
    for name, (shape, data) in whole.items():
        if not shape:
            assert all(p[name] == (shape, data) for p in parts)
            continue
        each = -(-shape[0] // ranks)
        rows = [max(0, min(each, shape[0] - each * r)) for r in range(len(parts))]
        assert [p[name][0] for p in parts] == [[n] + shape[1:] for n in rows], (name, ranks)
        assert b"".join(p[name][1] for p in parts) == data, (name, ranks)
for bad in ("0", "65537", "01", "x", "1/rank-1.safetensors", "2/rank-01.safetensors", "2/rank-x.safetensors", "2/a"):
    assert not os.path.exists(f"{views}/dcp/reshard/{bad}"), bad
assert os.path.exists(f"{views}/dcp/reshard/65536/rank-65535.safetensors")
assert not os.path.exists(f"{views}/dcp/split-5G/model-00001-of-00002.safetensors")

# NumPy's format, read by hand
for name, (shape, data) in whole.items():
    npy = read(f"{views}/dcp/tensors/{name}.npy")
    assert npy[:8] == b"\x93NUMPY\x01\x00"
    (n,) = struct.unpack("<H", npy[8:10])
    d = eval(npy[10:10 + n], {})
    assert list(d["shape"]) == shape and not d["fortran_order"] and (10 + n) % 64 == 0, d
    assert d["descr"] == ("<u2" if "columns" in name else "<f4"), d
    assert npy[10 + n:] == data, name

# nothing can be changed
model = f"{views}/dcp/model.safetensors"
def refused(fn, *want):
    try:
        fn()
    except OSError as e:
        assert e.errno in want, e
    else:
        raise AssertionError(fn)
for fn in (lambda: open(model, "r+b"), lambda: open(model, "wb"), lambda: os.unlink(model),
           lambda: open(f"{views}/dcp/new", "w"), lambda: os.mkdir(f"{views}/new"), lambda: os.chmod(model, 0o644),
           lambda: os.truncate(model, 0), lambda: os.rename(model, f"{views}/dcp/x"),
           lambda: os.utime(model), lambda: os.symlink("a", f"{views}/dcp/a"), lambda: os.rmdir(f"{views}/dcp/tensors")):
    refused(fn, errno.EROFS, errno.EACCES, errno.EPERM)
PY

# --- names -----------------------------------------------------------------------------------
mkdir -p "$m/runs/a b"
python3 - "$m/runs/a b" <<'PY'
import json, os, struct, sys
h = json.dumps({"a/b%c": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                "n" * 300: {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}}).encode()
h += b" " * (-len(h) % 8)
with open(os.path.join(sys.argv[1], "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(h)) + h + b"xyz")
PY
[ "$(ls "$v/runs")" = "a b" ] || die "runs: $(ls "$v/runs")"
[ "$(ls "$v/runs/a b/tensors")" = "a%2Fb%25c.npy" ] || die "names: $(ls "$v/runs/a b/tensors")"
[ "$(tail -c 2 "$v/runs/a b/tensors/a%2Fb%25c.npy")" = xy ] || die "a name with a slash"
[ ! -e "$v/runs/model.safetensors" ] || die "a directory of checkpoints has a view"
[ ! -e "$v/missing" ] && [ ! -e "$v/dcp/.metadata" ] || die "what is not there"

# --- what cannot be served says why --------------------------------------------------------------
mkdir "$m/odd"
cp "$assets/torch_odd/odd.pt" "$m/odd"
touch -d '1 hour ago' "$m/odd/odd.pt" "$m/odd"
grep -q '^conj: ' "$v/odd/refused" || die "odd: $(cat "$v/odd/refused")"
[ "$(ls "$v/odd")" = "$(printf 'refused\ntensors')" ] || die "odd: $(ls "$v/odd")"
[ "$(tail -c 24 "$v/odd/tensors/plain.npy" | od -An -tu8 -w24 | tr -s ' ')" = ' 0 1 2' ] || die "plain.npy"
cat "$v/odd/tensors/sparse.npy" 2>/dev/null && die "sparse.npy"
[ ! -e "$v/odd/model.safetensors" ] || die "a part shown as the whole"
grep -q '^old.pt: at 0: ' "$v/torch_odd/refused" || die "torch_odd"
mkdir "$m/7"
echo '{}' >"$m/7/_CHECKPOINT_METADATA"
touch "$m/7/manifest.ocdbt"
[ "$(ls "$v/7")" = refused ] || die "orbax: $(ls "$v/7")"
grep -q Orbax "$v/7/refused" || die "orbax: $(cat "$v/7/refused")"
i=0
for bad in "$assets"/should-fail/dcp/* "$assets"/should-fail/pickle/*; do
	i=$((i + 1))
	mkdir "$m/bad$i"
	cp "$bad" "$m/bad$i/.metadata"
	cp "$assets"/dcp/__* "$m/bad$i"
	ls "$v/bad$i" >"$TMP/ls" || die "$bad"
	grep -q model "$TMP/ls" && die "$bad has a model"
	[ ! -e "$v/bad$i/refused" ] || [ "$(wc -l <"$v/bad$i/refused")" = 1 ] || die "$bad: $(cat "$v/bad$i/refused")"
done
for bad in "$assets"/should-fail/safetensors/*; do
	i=$((i + 1))
	mkdir "$m/bad$i"
	cp "$bad" "$m/bad$i/model.safetensors"
	[ ! -e "$v/bad$i/model.safetensors" ] || die "$bad has a model"
done
mkdir "$m/up"	# metadata that names a file outside
sed 's|__0_0.distcp|../dcp/__00|' "$assets/dcp/.metadata" >"$m/up/.metadata"
cp "$assets"/dcp/__* "$m/up"
[ ! -e "$v/up/model.safetensors" ] || die "a file outside"
mkdir "$m/huge"		# more metadata than the daemon reads; as large as it says, without a byte
truncate -s 200M "$m/huge/.metadata"
cp "$assets"/dcp/__* "$m/huge"
grep -q 'more than .* of metadata' "$v/huge/refused" || die "huge: $(ls "$v/huge")"

# --- incomplete, being written, overwritten, changed ---------------------------------------------
mkdir "$m/part"
cp "$assets/dcp/.metadata" "$assets/dcp/__0_0.distcp" "$m/part"
[ ! -e "$v/part/model.safetensors" ] || die "incomplete"
cp "$assets/dcp/__1_0.distcp" "$m/part"
retry 10 cmp -s "$v/part/model.safetensors" "$TMP/dcp" || die "complete now"
exec 7<"$v/part/model.safetensors"
exec 8>"$m/part/__1_0.distcp"		# in place, as DCP does
retry 10 test ! -e "$v/part/model.safetensors" || die "being written"
cat "$assets/dcp/__1_0.distcp" >&8
exec 8>&-
retry 10 cmp -s "$v/part/model.safetensors" "$TMP/dcp" || die "written again"
cat <&7 >"$TMP/old" && ! cmp -s "$TMP/old" "$TMP/dcp" && die "an old view of new bytes"
exec 7<&-

cp -r "$m/dcp" "$m/step"
old=$(stat -c %i "$v/step/model.safetensors")
[ "$(stat -c %i "$v/step/model.safetensors")" = "$old" ] || die "the inode number moves"
python3 - "$m/step" "$v/step/model.safetensors" <<'PY' || die "replaced under a mapping"
import mmap, os, shutil, sys
step, model = sys.argv[1:]
with open(model, "rb") as f:
    before = f.read()
    kept = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    shutil.copytree(step, step + ".new")
    for name in os.listdir(step + ".new"):  # other bytes of the same size
        if name.endswith(".distcp"):
            with open(f"{step}.new/{name}", "r+b") as g:
                data = g.read()
                at = data.index(b"\x00\x00\xa0\x40") if b"\x00\x00\xa0\x40" in data else -1
                if at >= 0:
                    g.seek(at)
                    g.write(b"\x00\x00\x80\x40")  # the scalar: 4, not 5
    shutil.rmtree(step)
    os.rename(step + ".new", step)
    for _ in range(100):
        with open(model, "rb") as h:
            after = h.read()
        if after != before:
            break
        import time
        time.sleep(0.1)
    assert len(after) == len(before) and after != before
    assert kept[:] == before        # what was mapped and read stays
PY

# --- who may read it -------------------------------------------------------------------------
if [ -n "$others" ]; then
	chmod 755 "$TMP"
	as() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@" 2>/dev/null; }
	may() { retry 10 as cat "$v/step/$1" >/dev/null || die "65534 cannot read $1"; }
	may_not() { retry 10 eval "! as cat '$v/step/$1' >/dev/null" || die "65534 can read $1"; }
	as ls "$m" >/dev/null || die "65534 does not reach the mount"
	may model.safetensors
	chmod 600 "$m/step/__1_0.distcp"
	may_not model.safetensors
	may_not tensors/scalar.npy
	shows() { [ "$(stat -c %a "$v/step/model.safetensors")" = "$1" ]; }
	retry 10 shows 400 || die "mode: $(stat -c %a "$v/step/model.safetensors")"
	chmod 644 "$m/step/__1_0.distcp"
	may model.safetensors
	chown 65534 "$m/step/.metadata"
	chmod 600 "$m/step/.metadata"
	may_not model.safetensors		# it is root's shards, and his metadata
	chmod 644 "$m/step/.metadata"
	may model.safetensors
	chmod 700 "$m/step"
	may_not model.safetensors
	may_not reshard/2/rank-0.safetensors
fi

# --- removed: its bytes leave the disk when nobody has it open ------------------------------------
"$BUILD/cairn" wait "$m" || die "wait"
pid=$(worker_pid "$m")
exec 7<"$v/hf_index/model.safetensors"
head -c 300 <&7 >/dev/null
rm -r "$m/hf_index"
retry 10 test ! -e "$v/hf_index" || die "removed, and still there"
exec 7<&-
"$BUILD/cairn" wait "$m" || die "wait"
gone() { ! ls -l "/proc/$pid/fd" | has 'hf_index.*deleted'; }
retry 10 gone || die "kept open: $(ls -l "/proc/$pid/fd" | grep deleted)"

# --- a new worker: open again ----------------------------------------------------------------
kill -KILL "$pid"
retry 20 cmp -s "$v/dcp/model.safetensors" "$TMP/dcp" || die "after the worker's death"
stop_mount "$m"
