#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# cairn export: the tensors of every kind of checkpoint, bit for bit as their writer's own library
# reads them; from a mount, a store, anywhere; whole or not at all.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

leaves_nothing() { [ -z "$(find "$1" -name '.*export*')" ] || die "left behind: $(find "$1")"; }

mkdir "$TMP/o"
for name in dcp dcp_local dcp_safetensors dcp_hf hf_index safetensors torch_save torchsnapshot; do
	expect 0 "$cairn" export "$assets/$name" "$TMP/o/$name.safetensors"
	same_tensors "$TMP/o/$name.safetensors" "$assets/$name.json"
done
cmp "$TMP/o/dcp.safetensors" "$TMP/o/dcp_local.safetensors" || die "one model, two files"
expect 0 "$cairn" export --format safetensors -q "$assets/dcp" "$TMP/o/q"
[ ! -s "$TMP/out" ] || die "-q: $(cat "$TMP/out")"
says err '^cairn: left out, because they are not tensors: step$'
expect 0 "$cairn" export "$assets/dcp" "$TMP/o/q"	# replaces it
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

# --- as a DCP checkpoint: the same tensors, and what is none is carried --------------------------
for name in dcp dcp_local dcp_safetensors dcp_hf hf_index safetensors torch_save torchsnapshot; do
	expect 0 "$cairn" export --format dcp "$assets/$name" "$TMP/o/$name.dcp"
	[ "$(ls -A "$TMP/o/$name.dcp" | tr '\n' ' ')" = ".metadata __0_0.distcp " ] || die "$(ls -A "$TMP/o/$name.dcp")"
	expect 0 "$cairn" check "$TMP/o/$name.dcp"
	says out ': dcp, complete; '
	expect 0 "$cairn" diff "$TMP/o/$name.dcp" "$assets/$name"
	says out '^0 added, 0 removed, 0 reshaped, 0 changed'
	expect 0 "$cairn" export "$TMP/o/$name.dcp" "$TMP/o/back"
	cmp "$TMP/o/back" "$TMP/o/$name.safetensors" || die "$name: there and back"
done
expect 0 "$cairn" tensors "$TMP/o/dcp.dcp"
says out '^5 tensors, 172 B, 1 other item$'
mkdir "$TMP/o/empty"
expect 0 "$cairn" export --format dcp -q "$assets/dcp" "$TMP/o/empty"
[ ! -s "$TMP/out" ] && [ ! -s "$TMP/err" ] || die "-q: $(cat "$TMP/out" "$TMP/err")"
diff -r "$TMP/o/empty" "$TMP/o/dcp.dcp" || die "into an empty directory: something else"

# in the way
for out in "$TMP/o/empty" "$TMP/o/q" /dev/null; do
	expect 2 "$cairn" export --format dcp "$assets/safetensors" "$out"
	says err "^cairn export: $out: exists and is not an empty directory; see"
	[ "$(wc -l <"$TMP/err")" = 1 ] || die "more than one line: $(cat "$TMP/err")"
done
diff -r "$TMP/o/empty" "$TMP/o/dcp.dcp" || die "what was in the way was touched"

# --- damaged objects are not copied -----------------------------------------------------------
cp -r "$assets/dcp" "$TMP/damaged"
dd if=/dev/zero of="$TMP/damaged/__1_0.distcp" bs=1 count=600 conv=notrunc status=none	# of "step"
expect 1 "$cairn" export --format dcp "$TMP/damaged" "$TMP/o/damaged.dcp"
[ ! -e "$TMP/o/damaged.dcp/.metadata" ] || die "a damaged object was exported"

# --- what other programs saved, as a DCP checkpoint --------------------------------------------
expect 0 "$cairn" import "$assets/safetensors/model.safetensors" "$TMP/i1"
says out '^.*/i1: 6 tensors, '
expect 0 "$cairn" export "$TMP/i1" "$TMP/o/back"
same_tensors "$TMP/o/back" "$assets/safetensors.json"
expect 0 "$cairn" import "$assets/hf_index" "$TMP/i2"
expect 0 "$cairn" export "$TMP/i2" "$TMP/o/back"
same_tensors "$TMP/o/back" "$assets/hf_index.json"
cp "$assets/torch_save/model.pt" "$TMP/any name"	# known by its content
expect 0 "$cairn" import "$TMP/any name" "$TMP/i3"
says out '^.*/i3: 14 tensors, 4 other items, '
expect 0 "$cairn" check "$TMP/i1" "$TMP/i2" "$TMP/i3"
expect 0 "$cairn" export "$TMP/i3" "$TMP/o/back"
same_tensors "$TMP/o/back" "$assets/torch_save.json"
# nested stays nested, also on the way through another checkpoint
expect 0 "$cairn" export --format dcp "$TMP/i3" "$TMP/i4"
cmp "$TMP/i3/.metadata" "$TMP/i4/.metadata" || die "another metadata"
python3 - "$TMP" "$LIB_TOP/tools" <<'PY' || die "import"
import pickle, sys, zipfile, collections, io
top = sys.argv[1]

def save(name, obj, protocol=2):
    with zipfile.ZipFile(f"{top}/{name}.pt", "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps(obj, protocol))

class Odd:
    pass

save("plain", {"a": {"b": 1, "c": [1, (2.5, None)]}, "big": 1 << 100, "none": {}})
save("odd", {"trainer": {"state": Odd()}})
save("set", {"seen": {1, 2}})
save("bytes", {"raw": b"x"})
save("key", {"a": {2.5: 1}})
save("list", [1, 2])
save("twice", {"a.b": 1, "a": {"b": 2}})
save("lost", {"a": [{}, 1]})
save("step7", {"step": 7}, 4)
save("step8", {"step": 8})
loop = {}
loop["a"] = loop
save("loop", loop)
PY
expect 0 "$cairn" import "$TMP/plain.pt" "$TMP/i5"
says err '^cairn: left out, as in DCP: none (empty)$'
expect 0 "$cairn" tensors "$TMP/i5"
says out '^a.b  bytes'
says out '^a.c  bytes'
# What torch.load(weights_only=True) makes of them without running anything.
expect 0 "$cairn" import "$TMP/set.pt" "$TMP/i6"
expect 0 "$cairn" tensors "$TMP/i6"
says out '^seen  bytes'
expect 0 "$cairn" import "$TMP/bytes.pt" "$TMP/i7"
expect 0 "$cairn" tensors "$TMP/i7"
says out '^raw  bytes'
refuses() # NAME MESSAGE
{
	expect 1 "$cairn" import "$TMP/$1.pt" "$TMP/no"
	says err "$2"
	[ "$(wc -l <"$TMP/err")" = 1 ] || die "more than one line: $(cat "$TMP/err")"
	[ ! -e "$TMP/no" ] || die "$1: something was left"
}
for step in 7 8; do
	expect 0 "$cairn" import "$TMP/step$step.pt" "$TMP/step$step"
done
refuses odd 'trainer.state: made by __main__.Odd, neither a tensor nor a plain value$'
refuses key 'a: a dict with a float as a key$'
refuses list 'not a dict'
refuses twice 'a.b: two items would have this name$'
refuses lost 'a.0: an empty dict in a list'
refuses loop 'nested too deep$'
for file in "$assets/torch_odd/odd.pt" "$assets/torch_odd/old.pt"; do
	expect 1 "$cairn" import "$file" "$TMP/no"
	[ ! -e "$TMP/no" ] || die "$file: something was left"
done
says err 'a torch.save file in the format before PyTorch 1.6'
# Another one commits a checkpoint in the same directory just before: its .metadata stays.
if helper at_call 1 true /bin/true; then
	for n in $(seq 200); do
		rm -rf "$TMP/beside"
		helper at_call "$n" "[ -e '$TMP/beside/.metadata.tmp' ] && [ ! -e '$TMP/beside/.metadata' ] && echo mine >'$TMP/beside/.metadata' && touch '$TMP/came'" \
			"$cairn" import -q "$assets/safetensors/model.safetensors" "$TMP/beside" 2>"$TMP/err"
		rc=$?
		if [ ! -e "$TMP/came" ] && [ -z "${came:-}" ]; then
			continue
		fi
		[ -e "$TMP/came" ] || break
		came=1
		rm "$TMP/came"
		[ "$rc" = 1 ] || die "call $n: exit code $rc"
		[ "$(cat "$TMP/beside/.metadata")" = mine ] || die "call $n: another one's .metadata was replaced"
	done
	[ -n "${came:-}" ] || die "never came"
else
	note "no ptrace here"
fi
expect 2 "$cairn" import "$assets/dcp" "$TMP/no"
says err 'export --format dcp'
expect 2 "$cairn" import "$assets/safetensors/model.safetensors" "$TMP/i1"
says err '^cairn import: .*/i1: exists and is not an empty directory'
expect 2 "$cairn" import "$assets/safetensors/model.safetensors"
expect 2 "$cairn" import "$TMP/missing" "$TMP/no"
expect 2 "$cairn" import --nonsense a b
expect 2 "$cairn" import "$0" "$TMP/no"
expect 0 "$cairn" import "$assets/safetensors/model.safetensors" "$TMP/above/out/i"	# with what is missing above
expect 0 "$cairn" diff "$TMP/above/out/i" "$TMP/i1"
expect 1 "$cairn" import "$TMP/any name" "$TMP/any name/i"
says err 'any name: Not a directory'
# of one state, whoever pickled the values that are no tensors
expect 1 "$cairn" diff "$assets/dcp" "$TMP/step7"
says out '^0 added, 5 removed, 0 reshaped, 0 changed, 1 the same'
expect 1 "$cairn" diff "$assets/dcp" "$TMP/step8"
says out '^changed   step  bytes$'
expect 0 "$cairn" diff "$assets/torch_save/model.pt" "$TMP/i3"
says out '^0 added, 0 removed, 0 reshaped, 0 changed, 18 the same'
expect 0 "$cairn" help import

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
for bad in "$TMP/c" "$TMP/b" "$TMP/hf" "$assets/torch_odd/odd.pt"; do
	expect 1 "$cairn" export --format dcp "$bad" "$TMP/no"
	[ ! -e "$TMP/no" ] || die "$bad: something was left"
	expect 1 "$cairn" export --format dcp "$bad" "$TMP/no/x/y"
	[ ! -e "$TMP/no" ] || die "$bad: directories were left"
	mkdir "$TMP/no"		# one that was there stays, empty
	expect 1 "$cairn" export --format dcp "$bad" "$TMP/no"
	rmdir "$TMP/no" || die "$bad: something was left"
done
expect 0 "$cairn" export "$assets/dcp" "$TMP/o/above/out/x"
cmp "$TMP/o/above/out/x" "$TMP/o/dcp.safetensors" || die "below a directory that was made"
expect 2 "$cairn" export "$assets/dcp"
expect 2 "$cairn" export "$assets/dcp" "$TMP/o"
says err 'exists and is not a file'
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
most=$((64 << 10))
grep -qs . "$BUILD/sanitizer" && most=$((most * 4))	# which take memory of their own
python3 "$assets/make_big_dcp.py" --ranks 4 --mib 300 --columns "$TMP/big" || die "make_big_dcp.py"
expect 0 python3 - "$most" "$cairn" "$TMP/big" "$TMP/o/big" <<'PY'
import resource, subprocess, sys
subprocess.run([sys.argv[2], "export", *sys.argv[3:]], check=True)
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("peak KiB", kib)
sys.exit(kib > int(sys.argv[1]))
PY
note "$(grep peak "$TMP/out")"
python3 "$assets/make_big_dcp.py" --check "$TMP/o/big" || die "the large one differs"
for f in "$TMP"/big/*; do	# what the page cache does not have is read past it
	dd if="$f" iflag=nocache count=0 status=none
done
expect 0 "$cairn" export "$TMP/big" "$TMP/o/cold"
cmp "$TMP/o/cold" "$TMP/o/big" || die "the large one differs when it is not cached"
rm "$TMP/o/cold"
cp -r "$TMP/big" "$TMP/m/big"
expect 0 "$cairn" export "$TMP/m/big" "$TMP/m/big.safetensors"
cmp "$TMP/store/big.safetensors" "$TMP/o/big" || die "the large one differs on the mount, or is not in the store"
rm -r "$TMP/m/big" "$TMP/m/big.safetensors"
expect 0 python3 - "$most" "$cairn" "$TMP/big" "$TMP/big.dcp" <<'PY'
import resource, subprocess, sys
subprocess.run([sys.argv[2], "export", "--format", "dcp", *sys.argv[3:]], check=True)
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("peak KiB", kib)
sys.exit(kib > int(sys.argv[1]))
PY
note "dcp: $(grep peak "$TMP/out")"
expect 0 "$cairn" export "$TMP/big.dcp" "$TMP/o/back"
cmp "$TMP/o/back" "$TMP/o/big" || die "the large one differs after a DCP checkpoint"
rm -r "$TMP/big.dcp"

# --- of more files than stay open at once -------------------------------------------------------
python3 "$assets/make_big_dcp.py" --ranks 256 --mib 64 "$TMP/many" || die "make_big_dcp.py"
expect 0 "$cairn" export "$TMP/many" "$TMP/o/many"
python3 "$assets/make_big_dcp.py" --check "$TMP/o/many" || die "that of many files differs"
rm -r "$TMP/many" "$TMP/o/many"

# --- ended half way: never something that looks whole -----------------------------------------
limited() { (ulimit -c 0 && ulimit -f 1000 && "$cairn" export -q --format dcp "$TMP/big" "$1"); }
expect 153 limited "$TMP/killed"	# by SIGXFSZ, which nobody catches
[ "$(ls -A "$TMP/killed")" = __0_0.distcp ] || die "$(ls -A "$TMP/killed")"
expect 1 "$cairn" check "$TMP/killed"
expect 2 "$cairn" export --format dcp "$TMP/big" "$TMP/killed"
expect 1 bash -c 'trap "" XFSZ && ulimit -f 1000 && "$@"' - "$cairn" export -q --format dcp "$TMP/big" "$TMP/no"
says err '^cairn: .*/no: File too large$'
[ ! -e "$TMP/no" ] || die "left behind: $(ls -A "$TMP/no")"
expect 1 bash -c 'trap "" XFSZ && ulimit -f 1000 && "$@"' - "$cairn" export -q "$TMP/big" "$TMP/no/x/y"
[ ! -e "$TMP/no" ] || die "left behind: $(find "$TMP/no")"
for signal in KILL TERM; do
	rm -rf "$TMP/killed"
	"$cairn" export -q --format dcp "$TMP/big" "$TMP/killed" &
	pid=$!
	retry 30 test -e "$TMP/killed"
	kill -$signal $pid 2>/dev/null
	wait $pid 2>/dev/null
	if [ -e "$TMP/killed/.metadata" ]; then
		note "$signal came late"
		expect 0 "$cairn" diff "$TMP/killed" "$TMP/big"
	elif [ $signal = TERM ] && [ -e "$TMP/killed" ]; then
		die "left behind: $(ls -A "$TMP/killed")"
	fi
done
