#!/bin/bash
# SPDX-License-Identifier: MIT
# Each writer's directory, stage by stage as it writes it: incomplete at each, complete at the last.
# modes: fast
. "$(dirname "$0")/../lib/lib.sh"

start_mount "$TMP/store" "$TMP/mnt"
stop_mount "$TMP/mnt"
python3 - "$BUILD/cairn" "$LIB_TOP/tests/assets" "$TMP/store" <<'PY' || die "a writer's directory is judged wrongly"
import io, json, os, pickle, shutil, subprocess, sys, time, zipfile

cairn, assets, store = sys.argv[1:]
failed = 0

def age(top, seconds):
    t = time.time() - seconds
    for d, dirs, files in os.walk(top, topdown=False):
        for f in files:
            os.utime(os.path.join(d, f), (t, t))
        os.utime(d, (t, t))

def ask(run, name):
    out = subprocess.run([cairn, "ls", "--json", run], capture_output=True, check=True).stdout
    for e in json.loads(out)[0]["entries"]:
        if e["name"] == name:
            return e.get("checkpoint")
    return None

def cut(data):
    return data[:len(data) // 2]

def a(path):
    return open(os.path.join(assets, path), "rb").read()

def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)

def check(what, run, name, state, fmt, say="", ranks=None, seconds=3600):
    global failed
    age(run, seconds)
    c = ask(run, name) or {}
    latest = subprocess.run([cairn, "latest", run], capture_output=True).stdout.decode().strip()
    want = os.path.join(run, name) if state == "complete" else ""
    ok = (c.get("state"), c.get("format")) == (state, fmt) and say in (c.get("why") or "") and latest == want and \
        (ranks is None or (c["ranks"], c["ranks_expected"]) == ranks)
    if not ok:
        failed += 1
        print(f"{what}: want {fmt} {state} '{say}' {ranks}: {c}, latest '{latest}'")

def writer(fmt, name, stages, ranks=None, folder=None):
    """stages: (file, bytes, what is said then); None in bytes: rename file to the third; '' says complete."""
    run = os.path.join(store, folder or fmt)
    for i, (f, data, say) in enumerate(stages):
        top = os.path.join(run, name)
        if callable(data):
            data(top)
        else:
            put(os.path.join(top, f) if f else top, data)
        if say is None:
            continue
        last = say == ""
        check(f"{fmt} stage {i} ({f})", run, name, "complete" if last else "incomplete", fmt, say, ranks if last else None)
        if not last:
            check(f"{fmt} stage {i} ({f}), now", run, name, "writing", fmt, say, seconds=1)

def move(old, new, unlink=False):
    def go(top):
        if unlink and os.path.exists(os.path.join(top, new)):
            os.unlink(os.path.join(top, new))
        os.rename(os.path.join(top, old), os.path.join(top, new))
    return go

def dcp(more=()):
    return [("__0_0.distcp", a("dcp/__0_0.distcp"), ".metadata is missing"),
            ("__1_0.distcp", cut(a("dcp/__1_0.distcp")), ".metadata is missing"),
            (".metadata", a("dcp/.metadata"), "__1_0.distcp has"),	# as another host may see it
            (".metadata", lambda top: os.unlink(os.path.join(top, ".metadata")), ".metadata is missing"),
            ("__1_0.distcp", a("dcp/__1_0.distcp"), ".metadata is missing"),
            (".metadata.tmp", cut(a("dcp/.metadata")), ".metadata is missing"),
            (".metadata.tmp", a("dcp/.metadata"), ".metadata is missing"),
            ("rename", move(".metadata.tmp", ".metadata"), "" if not more else more[0][2])] + list(more[1:])

writer("dcp", "ckpt_7", dcp(), (2, 2))
writer("dcp", "step-7", dcp(), (2, 2), "torchtitan")
writer("megatron", "iter_0000007",
       [("common.pt", a("torch_save/model.pt"), ".metadata is missing")] +
       dcp([(None, None, "metadata.json is missing"), ("metadata.json", b'{"sharded_backend": "torch_dist"}', "")]), (2, 2))
writer("dcp-local", "step_7",
       [("__0_0.distcp", a("dcp_local/__0_0.distcp"), None),
        ("__0.metadata.tmp", a("dcp_local/__0.metadata"), "__0.metadata.tmp still exists"),
        ("rename", move("__0.metadata.tmp", "__0.metadata"), "pieces hold"),
        ("__1_0.distcp", a("dcp_local/__1_0.distcp"), "pieces hold"),
        ("__1.metadata.tmp", a("dcp_local/__1.metadata"), "pieces hold"),
        ("rename", move("__1.metadata.tmp", "__1.metadata"), "")], (2, 2))
st1, st2 = a("hf_index/model-00001-of-00002.safetensors"), a("hf_index/model-00002-of-00002.safetensors")
index = a("hf_index/model.safetensors.index.json")
writer("safetensors", "hf-7",
       [("model-00001-of-00002.safetensors", cut(st1), "model-00001-of-00002.safetensors"),
        ("model-00001-of-00002.safetensors", st1, "1 of 2 model-*.safetensors files exist"),
        ("model-00002-of-00002.safetensors", st2, "model.safetensors.index.json is missing"),
        ("", lambda top: os.unlink(os.path.join(top, "model-00002-of-00002.safetensors")), None),
        ("model.safetensors.index.json", index, "model-00002-of-00002.safetensors is missing"),
        ("model-00002-of-00002.safetensors", cut(st2), "model-00002-of-00002.safetensors"),
        ("model-00002-of-00002.safetensors", st2, "")])
shutil.rmtree(os.path.join(store, "safetensors"))
writer("safetensors", "one-7", [("model.safetensors", cut(a("safetensors/model.safetensors")), "model.safetensors"),
                                ("model.safetensors", a("safetensors/model.safetensors"), "")])
s1, s2 = (a(f"dcp_hf/shard-0000{i}-model-00001-of-00001.safetensors") for i in (1, 2))
writer("hf-shards", "shards-7",
       [("shard-00001-model-00001-of-00001.safetensors", cut(s1), "shard-00001"),
        ("shard-00001-model-00001-of-00001.safetensors", s1, None),
        ("shard-00002-model-00001-of-00001.safetensors", cut(s2), "shard-00002"),
        ("shard-00002-model-00001-of-00001.safetensors", s2, "")], (2, 2))
# no marker, and the tensors grow with each shard: not before it is quiet, nor with fewer than before
run = os.path.join(store, "hf-shards")
check("hf-shards, just written", run, "shards-7", "writing", "hf-shards", "changed", seconds=1)
age(run, 3600)
put(os.path.join(run, "step-8", "shard-00001-model-00001-of-00001.safetensors"), s1)
os.rename(os.path.join(run, "shards-7"), os.path.join(run, "step-7"))
age(run, 3600)
c = ask(run, "step-8")
if c["state"] != "incomplete" or "1 of 2 ranks, as many" not in c["why"]:
    failed += 1
    print("hf-shards, fewer than before:", c)
pt = a("torch_save/model.pt")
writer("hf-trainer", "checkpoint-7",
       [("model.safetensors", a("safetensors/model.safetensors"), "trainer_state.json is missing"),
        ("optimizer.pt", cut(pt), "optimizer.pt"),
        ("optimizer.pt", pt, "trainer_state.json is missing"),
        ("rng_state_0.pth", pt, "trainer_state.json is missing"),
        ("rng_state_1.pth", pt, "trainer_state.json is missing"),
        ("trainer_state.json", b"{}", "")], (2, 2))
run = os.path.join(store, "hf-trainer-renamed")
for f, d in (("model.safetensors", a("safetensors/model.safetensors")), ("trainer_state.json", b"{}")):
    put(os.path.join(run, "tmp-checkpoint-7", f), d)
check("hf-trainer, temporary", run, "tmp-checkpoint-7", "incomplete", "hf-trainer", "temporary name")
os.rename(os.path.join(run, "tmp-checkpoint-7"), os.path.join(run, "checkpoint-7"))
check("hf-trainer, renamed", run, "checkpoint-7", "complete", "hf-trainer")

writer("deepspeed", "global_step7",
       [("zero_pp_rank_0_mp_rank_00_optim_states.pt", cut(pt), "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", pt, "no *_model_states.pt exists"),
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", cut(pt), "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", pt, "no *_model_states.pt exists"),
        ("mp_rank_00_model_states.pt", pt, "")], (2, 2))
run = os.path.join(store, "deepspeed")
check("deepspeed, just written", run, "global_step7", "writing", "deepspeed", "changed", seconds=1)
put(os.path.join(run, "global_step8", "zero_pp_rank_0_mp_rank_00_optim_states.pt"), pt)
put(os.path.join(run, "global_step8", "mp_rank_00_model_states.pt"), pt)
age(run, 3600)
c = ask(run, "global_step8")
if c["state"] != "incomplete" or "1 of 2 ranks, as many" not in c["why"]:
    failed += 1
    print("deepspeed, fewer than before:", c)
# its model states say how many ranks there are: no checkpoint before is needed
states = io.BytesIO()
with zipfile.ZipFile(states, "w") as z:
    z.writestr("archive/data.pkl", pickle.dumps({"param_shapes": [], "dp_world_size": 2}, protocol=2))
shutil.rmtree(run)
writer("deepspeed", "global_step9",
       [("mp_rank_00_model_states.pt", states.getvalue(), "0 of 2 ranks"),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", pt, "1 of 2 ranks"),
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", cut(pt), "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", pt, "")], (2, 2))

run = os.path.join(store, "orbax")
tmp = "7.orbax-checkpoint-tmp-1700000000"
os.makedirs(os.path.join(run, tmp))
check("orbax, empty", run, tmp, "incomplete", "orbax", "temporary name")
put(os.path.join(run, tmp, "default", "manifest.ocdbt"), b"x")
put(os.path.join(run, tmp, "_CHECKPOINT_METADATA"), b"{}")
check("orbax, written", run, tmp, "incomplete", "orbax", "temporary name")
os.rename(os.path.join(run, tmp), os.path.join(run, "7"))
check("orbax, renamed", run, "7", "complete", "orbax")
os.makedirs(os.path.join(run, "7", "default.orbax-checkpoint-tmp-1"))
check("orbax, an item that is not committed", run, "7", "incomplete", "orbax", "still exists")

writer("torch", "pt-7", [("model.pt", b"", "model.pt"), ("model.pt", cut(pt), "model.pt"), ("model.pt", pt, "")])
writer("lightning", "epoch=1-step=7.ckpt", [("", cut(pt), "epoch=1-step=7.ckpt"), ("", pt, "")])

# A .metadata that is none: said of the file, in words.
run = os.path.join(store, "foreign")
put(os.path.join(run, "step-7", "__0_0.distcp"), b"x" * 100)
put(os.path.join(run, "step-7", ".metadata"), b"step 7, 4 ranks\n")
check("a text .metadata", run, "step-7", "incomplete", "dcp", "not written by DCP (not a pickle)")
sys.exit(failed != 0)
PY
