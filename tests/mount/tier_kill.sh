#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# cairn tier push is killed, or its checkpoint replaced, at each of its system calls: read with plain calls, the tier
# never has a commit file or a manifest without all that it lists, of one save; and the next push completes it.
# cairn tier fetch likewise: the store has all of the checkpoint, or nothing that commits it.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"

work_in_memory
cat >"$work/swap" <<'END'
# as a trainer that saves into the same directory again: what commits it goes first and comes last
set -e
touch "$1.swapped"
rm "$2/.metadata"
cp "$1"/*.* "$2"
cp "$1/.metadata" "$2"
END
cat >"$work/swap_in_place" <<'END'
# the same inodes and sizes, other bytes
set -e
touch "$1.swapped"
cp "$1"/*.* "$2"
cp "$1/.metadata" "$2"
END
python3 - "$cairn" "$BUILD/tests/mount/at_call" "$assets" "$work" <<'END' || die "see above"
import json, os, random, shutil, subprocess, sys
cairn, at_call, assets, tmp = sys.argv[1:]
step = int(os.environ.get("TEST_ONE_OF", "1"))
store, tier, old = (os.path.join(tmp, d) for d in ("store", "tier", "tier-old"))
ckpt = "run/step-10"
versions = {}

def read(path):
    with open(path, "rb") as f:
        return f.read()

def tree(top):
    return {name: read(os.path.join(top, name)) for name in os.listdir(top)}

for name, source in ("A", "dcp"), ("B", "dcp_safetensors"):
    shutil.copytree(os.path.join(assets, source), os.path.join(tmp, name))
    with open(os.path.join(tmp, name, "only-" + name + ".txt"), "w") as f:
        f.write(name * 1000)
    versions[name] = tree(os.path.join(tmp, name))
shutil.copytree(os.path.join(tmp, "A"), os.path.join(tmp, "C"))  # A's sizes, other bytes
for name, data in versions["A"].items():
    with open(os.path.join(tmp, "C", name), "wb") as f:
        f.write(data.replace(b"layers.", b"lAyers.") if name == ".metadata" else data[:-1] + b"C")
versions["C"] = tree(os.path.join(tmp, "C"))
assert versions["A"][".metadata"] != versions["C"][".metadata"]
assert versions["A"][".metadata"] != versions["B"][".metadata"]

def judge():
    """Which version is committed in the tier: A, B, or None; and whether it has its manifest."""
    top = os.path.join(tier, ckpt)
    there = tree(top) if os.path.isdir(top) else {}
    manifest = os.path.join(tier, ".cairn/manifests", ckpt, "manifest.json")
    listed = None
    if os.path.exists(manifest):
        files = json.loads(read(manifest))["files"]
        listed = {os.path.basename(f["path"]): f["size"] for f in files}
        assert ".metadata" in there, "a manifest without the commit file"
    if ".metadata" not in there:
        return None, False
    found = [v for v in versions if versions[v][".metadata"] == there[".metadata"]]
    assert found, "a torn .metadata"
    want = versions[found[0]]
    for name in want:
        assert name in there, f"committed without {name}"
        assert there[name] == want[name], f"{name} is of another save than what commits it"
    if listed is not None:
        assert listed == {n: len(b) for n, b in want.items()}, ("the manifest lists", listed)
    return found[0], listed is not None

def put(version):
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(os.path.join(tmp, version), os.path.join(store, ckpt))

def fresh(old_version):
    shutil.rmtree(tier, ignore_errors=True)
    os.mkdir(tier)
    if old_version:
        put(old_version)
        push(0)

def push(want, *before):
    p = subprocess.run([*before, cairn, "tier", "push", store, tier], capture_output=True, text=True)
    assert want is None or p.returncode == want, (p.returncode, p.stdout, p.stderr)
    return p

def complete(version):
    push(0)
    assert judge() == (version, True), judge()
    assert not os.listdir(os.path.join(tier, ".cairn/tmp")), "unfinished files are left"
    assert sorted(tree(os.path.join(tier, ckpt))) == sorted(versions[version]), "another version's files are left"
    assert not os.path.exists(os.path.join(tier, ".cairn/manifests", ckpt, "begun.json"))
    p = subprocess.run([cairn, "tier", "verify", tier], capture_output=True, text=True)
    assert p.returncode == 0, p.stdout

# The judge detects what it is to detect.
fresh("A")
for wrong in "__1_0.distcp", ".metadata", "only-A.txt":
    os.rename(os.path.join(tier, ckpt, wrong), os.path.join(tmp, "aside"))
    try:
        judge()
    except AssertionError:
        os.rename(os.path.join(tmp, "aside"), os.path.join(tier, ckpt, wrong))
    else:
        sys.exit(f"{wrong} is missing, and that is not found")
complete("A")

def killed(old_version, version):
    states, n = set(), 0
    while True:
        n += step
        fresh(old_version)
        put(version)
        p = push(None, at_call, str(n), "kill -KILL $PID")
        state = judge()
        if p.returncode != 137:
            assert p.returncode == 0 and state == (version, True), (p, state)
            break
        states.add(state)
        complete(version)
    print(f"# killed at {n // step - 1} points, from {old_version} to {version}: {sorted(map(str, states))}")
    assert {(old_version, bool(old_version)), (None, False), (version, True)} <= states, states
    return n - 1

points = killed(None, "A")
assert points > 40, points
points = killed("A", "B")

rng = random.Random(14)
for _ in range(30 // step):
    fresh(rng.choice([None, "A", "B"]))
    for _ in range(3):
        put(rng.choice("AB"))
        push(None, at_call, str(rng.randrange(20, points)), "kill -KILL $PID")
        judge()
    put("A")
    complete("A")

def replaced(old_version, version, by, script, then=""):
    noticed, n = 0, 0
    mark = os.path.join(tmp, by + ".swapped")
    while True:
        n += step
        fresh(old_version)
        put(version)
        p = push(None, at_call, str(n), f"bash {tmp}/{script} {tmp}/{by} {store}/{ckpt}{then}")
        state = judge()
        if not os.path.exists(mark):
            break
        os.unlink(mark)
        if p.returncode:
            noticed += "it changed while it was read" in p.stderr
            assert state in ((old_version, bool(old_version)), (None, False)), (n, p, state)
        else:
            assert state in ((version, True), (by, True), (old_version, bool(old_version)), (None, False)), (n, p, state)
        complete(by)
    print(f"# replaced at {n // step - 1} points, {version} by {by}: {noticed} pushes noticed it")
    assert noticed > 20 // step, noticed

replaced(None, "A", "B", "swap", f"; rm {store}/{ckpt}/only-A.txt")
replaced("A", "B", "A", "swap", f"; rm {store}/{ckpt}/only-B.txt")
replaced("B", "A", "C", "swap_in_place")

def fetch(*before):
    return subprocess.run([*before, cairn, "tier", "fetch", tier, store, ckpt], capture_output=True, text=True)

def fetched():
    p = fetch()
    assert p.returncode == 0, p
    assert tree(os.path.join(store, ckpt)) == versions["A"], "not what was pushed"
    assert os.listdir(os.path.join(store, "run")) == ["step-10"], os.listdir(os.path.join(store, "run"))

def fetch_killed(there):
    """there: files of the checkpoint that the store has before."""
    n, seen = 0, set()
    while True:
        n += step
        shutil.rmtree(store)
        os.mkdir(store)
        for name in there:
            os.makedirs(os.path.join(store, ckpt), exist_ok=True)
            shutil.copy(os.path.join(tmp, "A", name), os.path.join(store, ckpt))
        p = fetch(at_call, str(n), "kill -KILL $PID")
        top = os.path.join(store, ckpt)
        now = tree(top) if os.path.isdir(top) else {}
        assert ".metadata" not in now or now == versions["A"], (n, sorted(now))
        assert there or not now or now == versions["A"], (n, sorted(now))
        safe = subprocess.run([cairn, "latest", store], capture_output=True, text=True).stdout.strip()
        assert safe == (top if ".metadata" in now else ""), (n, safe)
        seen.add(len(now))
        if p.returncode != 137:
            assert p.returncode == 0, p
            break
        fetched()
    fetched()
    print(f"# fetch killed at {n // step - 1} points, {seen} files were there")
    assert n > 60 and len(versions["A"]) in seen, (n, seen)

fresh("A")
fetch_killed([])
fetch_killed(["__0_0.distcp"])
END
