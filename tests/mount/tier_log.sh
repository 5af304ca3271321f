#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# What changes beside model.safetensors (a log, config.json) does not take the copy in the tier back: a push is killed at
# each of its system calls, or the log replaced; the manifest is there all the time, and all that it lists. Nor does what
# changes in a subdirectory, unless that is a checkpoint; and in a directory of DCP, Megatron or Trainer what no commit file
# lists.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"

work_in_memory
printf 'echo more >>"$1.new"\ncat "$1" "$1.new" >"$1.tmp"\nmv "$1.tmp" "$1"\ntouch "$2"\n' >"$work/replace"
python3 - "$cairn" "$BUILD/tests/mount/at_call" "$assets" "$work" <<'END' || die "see above"
import json, os, shutil, subprocess, sys
cairn, at_call, assets, tmp = sys.argv[1:]
step = int(os.environ.get("TEST_ONE_OF", "1"))
store, tier, back = (os.path.join(tmp, d) for d in ("store", "tier", "back"))
model = os.path.join(store, "model")
log = os.path.join(model, "trainer_log.jsonl")
manifest = os.path.join(tier, ".cairn/manifests/model/manifest.json")

def run(want, *args):
    p = subprocess.run(args, capture_output=True, text=True)
    assert want is None or p.returncode == want, (p.returncode, p.stdout, p.stderr)
    return p

def write(path, text):
    with open(path, "w") as f:
        f.write(text)

def read(path):
    with open(path, "rb") as f:
        return f.read()

def listed():
    return {os.path.basename(f["path"]) for f in json.loads(read(manifest))["files"]}

def fresh():
    for d in store, tier:
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(d)
    shutil.copytree(os.path.join(assets, "safetensors"), model)
    write(os.path.join(model, "config.json"), "{}")
    write(os.path.join(model, "metadata.json"), "{}")
    write(os.path.join(model, "old.txt"), "old")
    write(log, "first\n")
    run(0, cairn, "tier", "push", store, tier)

def change():
    write(log, "first\nsecond\n")
    write(os.path.join(model, "metadata.json"), '{"step": 2}')
    os.unlink(os.path.join(model, "old.txt"))

def whole(when):
    assert os.path.exists(manifest), (when, "the copy was taken back")
    assert {"model.safetensors", "config.json"} <= listed(), (when, listed())
    p = run(None, cairn, "tier", "verify", tier)
    assert p.returncode == 0, (when, p.stdout, p.stderr)

def same():
    run(0, cairn, "tier", "push", store, tier)
    whole("pushed")
    assert not os.path.exists(os.path.join(tier, "model/old.txt")), "what was removed is there"
    names = set(os.listdir(model)) - {"trainer_log.jsonl.new"}
    assert names <= listed(), listed()
    for name in names:
        assert read(os.path.join(model, name)) == read(os.path.join(tier, "model", name)), name
    assert sorted(os.listdir(os.path.dirname(manifest))) == ["manifest.json"]
    shutil.rmtree(back, ignore_errors=True)
    os.mkdir(back)
    run(0, cairn, "tier", "fetch", tier, back)
    assert read(os.path.join(back, "model/trainer_log.jsonl")) == read(log)

def killed(change):
    n = 0
    while True:
        n += step
        fresh()
        change()
        p = run(None, at_call, str(n), "kill -KILL $PID", cairn, "tier", "push", store, tier)
        whole(n)
        if p.returncode != 137:
            assert p.returncode == 0, p
            break
        same()
    print(f"# killed at {n // step - 1} points")
    assert n > 40, n

killed(change)
killed(lambda: os.unlink(os.path.join(model, "old.txt")))

def removed():
    """What was left out is no push that is at work; what the tier has of it goes, too."""
    shutil.copytree(model, os.path.join(store, "newer"))
    os.utime(os.path.join(store, "newer/model.safetensors"), (2**31, 2**31))
    run(0, cairn, "tier", "push", store, tier, "newer")
    run(0, cairn, "tier", "rm", tier, "model")
    assert sorted(os.listdir(tier)) == [".cairn", "newer"], os.listdir(os.path.join(tier, "model"))
    assert not os.path.exists(os.path.dirname(manifest))
    run(0, cairn, "tier", "verify", tier)
    shutil.rmtree(os.path.join(store, "newer"))

# In a directory with a step the same holds for what lies in subdirectories, unless that is a checkpoint itself.
name = "run/step-3"
model = os.path.join(store, name)
log = os.path.join(model, "logs/trainer_log.jsonl")
manifest = os.path.join(tier, ".cairn/manifests", name, "manifest.json")

def plain():
    shutil.copytree(os.path.join(assets, "safetensors"), model)
    shutil.copytree(os.path.join(assets, "dcp"), os.path.join(model, "optimizer"))
    write(os.path.join(model, "optimizer/args.json"), "{}")
    return {"model.safetensors", ".metadata", "args.json"}

def nested(make=plain):
    global parts
    for d in store, tier:
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(d)
    parts = make()
    os.mkdir(os.path.join(model, "logs"))
    write(os.path.join(model, "logs/old.txt"), "old")
    write(log, "first\n")
    run(0, cairn, "tier", "push", store, tier)

def nested_killed(change, stays, make=plain):
    n = back = 0
    while True:
        n += step
        nested(make)
        change()
        p = run(None, at_call, str(n), "kill -KILL $PID", cairn, "tier", "push", store, tier)
        back += not os.path.exists(manifest)
        if stays:
            whole_at(n)
        if p.returncode != 137:
            break
        run(0, cairn, "tier", "push", store, tier)
        assert sorted(os.listdir(os.path.dirname(manifest))) == ["manifest.json"]
        assert not os.path.exists(os.path.join(tier, name, "logs/old.txt")) or not stays
        assert read(log) == read(os.path.join(tier, name, "logs/trainer_log.jsonl"))
    run(0, cairn, "tier", "verify", tier)
    assert stays == (not back) or step > 1, back

def whole_at(n):
    assert os.path.exists(manifest), (n, "the copy was taken back")
    assert parts <= listed(), (n, listed())
    run(0, cairn, "tier", "verify", tier)

def change_nested():
    write(log, "first\nsecond\n")
    os.unlink(os.path.join(model, "logs/old.txt"))

nested_killed(change_nested, True)
nested_killed(lambda: write(os.path.join(model, "optimizer/args.json"), '{"x": 1}'), False)

# What commits it says what its parts are.
def dcp():
    shutil.copytree(os.path.join(assets, "dcp"), model)
    write(os.path.join(model, "config.json"), "{}")
    return {".metadata", "__0_0.distcp", "__1_0.distcp", "config.json"}

def megatron():
    dcp()
    shutil.copy(os.path.join(assets, "torch_save/model.pt"), os.path.join(model, "common.pt"))
    write(os.path.join(model, "metadata.json"), "{}")
    return {".metadata", "__0_0.distcp", "common.pt", "metadata.json"}

def trainer():
    shutil.copytree(os.path.join(assets, "safetensors"), model)
    shutil.copytree(os.path.join(assets, "dcp"), os.path.join(model, "optimizer_0"))
    shutil.copy(os.path.join(assets, "torch_save/model.pt"), os.path.join(model, "optimizer.pt"))
    for f in "trainer_state.json", "config.json", "optimizer_0/args.json":
        write(os.path.join(model, f), "{}")
    return {"model.safetensors", "optimizer.pt", "trainer_state.json", ".metadata", "args.json"}

def at(new):
    global name, model, log, manifest
    name, model = new, os.path.join(store, new)
    log = os.path.join(model, "logs/trainer_log.jsonl")
    manifest = os.path.join(tier, ".cairn/manifests", name, "manifest.json")

for new, make, part in (("run/step-9", dcp, "__0_0.distcp"), ("run/iter_0000009", megatron, "metadata.json"),
                        ("run/checkpoint-9", trainer, "optimizer_0/args.json")):
    at(new)
    nested_killed(change_nested, True, make)
    def replace():
        with open(os.path.join(model, part), "ab") as f:
            f.write(b"{}")
        if os.path.exists(os.path.join(model, ".metadata")):
            os.utime(os.path.join(model, ".metadata"))
    nested(make)
    replace()
    run(0, cairn, "tier", "push", store, tier)
    whole_at("replaced")
    assert read(os.path.join(model, part)) == read(os.path.join(tier, name, part)), new

name, model = "model", os.path.join(store, "model")
log = os.path.join(model, "trainer_log.jsonl")
manifest = os.path.join(tier, ".cairn/manifests/model/manifest.json")

n, mark, left = 0, os.path.join(tmp, "replaced"), 0
while True:
    n += step
    fresh()
    change()
    p = run(None, at_call, str(n), f"bash {tmp}/replace {log} {mark}", cairn, "tier", "push", store, tier)
    whole(n)
    if not os.path.exists(mark):
        break
    os.unlink(mark)
    assert p.returncode == 0, (n, p)
    left_out = "trainer_log.jsonl" not in listed()
    left += left_out
    if left_out and left % 2:
        removed()
        continue
    same()
print(f"# replaced at {n // step - 1} points; left out {left} times")
assert left or step > 1, "it was never changed while it was read"
END

# From a mount: a log that is written all the time.
t=$TMP/tier
mkdir "$t"
manifest=$t/.cairn/manifests/model/manifest.json
generation() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["generation"])' "$manifest"; }
start_mount "$s" "$m" "tier=$t"
mkdir "$m/model"
cp "$assets/safetensors/model.safetensors" "$m/model"
expect 0 "$cairn" wait --tier "$m/model"
for i in $(seq 100); do
	echo "$i" >>"$m/model/trainer_log.jsonl"
	[ -e "$manifest" ] || die "the copy was taken back"
	sleep 0.1
done
mkdir -p "$m/run/step-9/logs"
cp "$assets"/dcp/*.distcp "$m/run/step-9"
cp "$assets/dcp/.metadata" "$m/run/step-9"
expect 0 "$cairn" wait --tier "$m/run/step-9"
for i in $(seq 60); do
	echo "$i" >>"$m/run/step-9/logs/train.log"
	[ -e "$t/.cairn/manifests/run/step-9/manifest.json" ] || die "a log took a checkpoint of DCP back"
	sleep 0.1
done
expect 0 "$cairn" wait --tier "$m/run/step-9"
cmp "$m/run/step-9/logs/train.log" "$t/run/step-9/logs/train.log" || die "the log beside a checkpoint of DCP"
[ "$(generation)" -lt 8 ] || die "sent again and again: generation $(generation)"
expect 0 "$cairn" wait --tier "$m/model"
cmp "$m/model/trainer_log.jsonl" "$t/model/trainer_log.jsonl" || die "the log's last line"
expect 0 "$cairn" tier verify "$t"
stop_mount "$m"
