#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# cairn tier rm: what its manifest lists, that first; not the newest that is whole, nor what a push has begun, without --force.
# Killed at each of its system calls there is no manifest over files that are missing, and the next one completes it.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
work_in_memory
src=$TMP/src t=$TMP/tier
mkdir -p "$src/run" "$src/other" "$t"
for i in 1 2 3 4; do
	cp -r "$assets/dcp" "$src/run/step-$i"
done
cp -r "$assets/torchsnapshot" "$src/other/step-1"	# files in subdirectories
cp "$assets/torch_save/model.pt" "$src/other/a.ckpt"
expect 0 "$cairn" tier push -q "$src" "$t"
is_gone() { [ ! -e "$t/$1" ] && [ ! -e "$t/.cairn/manifests/$1" ] || die "$1 is left: $(find "$t/$1" "$t/.cairn/manifests/$1")"; }

expect 2 "$cairn" tier rm
expect 2 "$cairn" tier rm "$t"
says err 'rm from what tier, which checkpoint?'
expect 2 "$cairn" tier rm "$src" run/step-1
says err 'not a tier'
[ ! -e "$src/.cairn" ] || die "rm made a tier"
expect 2 "$cairn" tier rm "$t" ../x
expect 2 "$cairn" tier push --force "$src" "$t"
expect 1 "$cairn" tier rm "$t" run
says err 'run: no checkpoint there'
expect 1 "$cairn" tier rm "$t" "$t"
expect 1 "$cairn" tier rm "$t" run/step-9
says err 'run/step-9: no checkpoint there'

# The newest of its directory stays, unless forced; another one goes. What no manifest lists stays.
expect 1 "$cairn" tier rm "$t" run/step-4
says err 'run/step-4: the newest of its directory that is whole; not removed without --force'
expect 0 "$cairn" tier verify "$t"
echo mine >"$t/run/step-2/notes"
expect 0 "$cairn" tier rm "$t" run/step-1 "$t/run/step-2"
says out '^removed  run/step-1  3 files, '
says out '^removed  run/step-2  3 files, .*files that it does not list stay there'
is_gone run/step-1
[ "$(ls -A "$t/run/step-2")" = notes ] || die "step-2: $(ls -A "$t/run/step-2")"
expect 0 "$cairn" tier ls "$t"
[ "$(grep -c complete "$TMP/out")" = 4 ] || die "ls: $(cat "$TMP/out")"
# that lacks a file: the one before it is the newest that is whole
rm "$t/run/step-4/__0_0.distcp"
expect 1 "$cairn" tier rm "$t" run/step-3
expect 0 "$cairn" tier rm --json "$t" run/step-4
says out '"action": "removed"'
is_gone run/step-4
expect 0 "$cairn" tier rm --force "$t" run/step-3 other/step-1 other/a.ckpt
is_gone run/step-3
is_gone other/step-1
is_gone other/a.ckpt
[ -z "$(ls -A "$t/.cairn/tmp")" ] || die "unfinished files are left"

# What a push has begun may be at work; a manifest that is damaged lists nothing.
expect 0 "$cairn" tier push -q "$src" "$t" run/step-1 run/step-2
mv "$t/.cairn/manifests/run/step-1/manifest.json" "$t/.cairn/manifests/run/step-1/begun.json"
expect 1 "$cairn" tier rm "$t" run/step-1
says err 'run/step-1: a push sends it, or was killed'
[ -e "$t/run/step-1/.metadata" ] || die "it was removed"
expect 0 "$cairn" tier rm --force "$t" run/step-1
is_gone run/step-1
echo '{' >"$t/.cairn/manifests/run/step-2/manifest.json"
expect 1 "$cairn" tier rm --force "$t" run/step-2
says err 'its manifest is damaged'
[ -e "$t/run/step-2/.metadata" ] || die "it was removed"

# A directory that became a checkpoint later has the files of those below it, too: what another one needs stays.
mkdir -p "$TMP/nested/d" "$TMP/tier2"
cp -r "$assets/dcp" "$TMP/nested/d/step-1"
expect 0 "$cairn" tier push -q "$TMP/nested" "$TMP/tier2"
cp -r "$assets/dcp/." "$TMP/nested/d"
expect 0 "$cairn" tier push -q "$TMP/nested" "$TMP/tier2"
expect 1 "$cairn" tier rm --force "$TMP/tier2" d/step-1
says err 'd/step-1: d, which is in the tier, has its files, too; remove that first'
expect 0 "$cairn" tier verify "$TMP/tier2"
mv "$TMP/tier2/.cairn/manifests/d/manifest.json" "$TMP/manifest"
cp "$TMP/manifest" "$TMP/tier2/.cairn/manifests/d/begun.json"	# a push of it was killed
expect 1 "$cairn" tier rm --force "$TMP/tier2" d/step-1
rm "$TMP/tier2/.cairn/manifests/d/begun.json"
echo '{' >"$TMP/tier2/.cairn/manifests/d/manifest.json"
expect 1 "$cairn" tier rm --force "$TMP/tier2" d/step-1
says err 'the manifest of d is damaged'
mv "$TMP/manifest" "$TMP/tier2/.cairn/manifests/d/manifest.json"
expect 0 "$cairn" tier rm --force "$TMP/tier2" d
says out '^removed  d  3 files, .*; 3 files of other checkpoints (d/step-1) stay there'
[ "$(ls -A "$TMP/tier2/d")" = step-1 ] || die "d: $(ls -A "$TMP/tier2/d")"
expect 0 "$cairn" tier verify "$TMP/tier2"
expect 0 "$cairn" tier rm --force "$TMP/tier2" d/step-1
[ ! -e "$TMP/tier2/d/step-1" ] || die "d/step-1 is left"

python3 - "$cairn" "$BUILD/tests/mount/at_call" "$assets/dcp" "$work" <<'END' || die "see above"
import json, os, shutil, subprocess, sys
cairn, at_call, dcp, tmp = sys.argv[1:]
step = int(os.environ.get("TEST_ONE_OF", "1"))
src, tier, whole = (os.path.join(tmp, d) for d in ("src", "tier", "whole"))
for name in "step-1", "step-2":
    shutil.copytree(dcp, os.path.join(src, "run", name))
os.mkdir(whole)

def run(*args):
    p = subprocess.run([cairn, "tier", *args], capture_output=True, text=True)
    assert p.returncode == 0, (args, p.returncode, p.stdout, p.stderr)
    return p.stderr

begun = os.path.join(tier, ".cairn/manifests/run/step-1/begun.json")

def age(path):
    """As if its process had last said so an hour ago."""
    if os.path.exists(path):
        m = json.load(open(path))
        m["time_s"] -= 3600
        json.dump(m, open(path, "w"))

def judge():
    """What is left: complete, manifest gone, commit file gone, or nothing."""
    files = set(os.listdir(os.path.join(tier, "run/step-1"))) if os.path.isdir(os.path.join(tier, "run/step-1")) else set()
    records = os.path.join(tier, ".cairn/manifests/run/step-1")
    records = set(os.listdir(records)) if os.path.isdir(records) else set()
    if "manifest.json" in records:
        assert len(files) == 3, ("a manifest over missing files", files)
        return "complete"
    assert ".metadata" not in files or len(files) == 3, ("a commit file over missing files", files)
    assert not files or "begun.json" in records, ("nobody knows whose it is", files)
    return "no manifest" if ".metadata" in files else "no commit file" if files else "nothing"

run("push", src, whole)
states, n = set(), 0
while True:
    n += step
    shutil.rmtree(tier, ignore_errors=True)
    shutil.copytree(whole, tier, copy_function=shutil.copy2)
    p = subprocess.run([at_call, str(n), "kill -KILL $PID", cairn, "tier", "rm", tier, "run/step-1"], capture_output=True, text=True)
    states.add(judge())
    if p.returncode == 0:
        break
    if judge() == "nothing" and not os.path.exists(os.path.join(tier, ".cairn/manifests/run/step-1/begun.json")):
        assert not os.path.exists(os.path.join(tier, "run/step-1")), "nobody removes its directory"
        continue
    if n % 2:
        run("rm", tier, "run/step-1")  # goes on
        assert judge() == "nothing"
    else:
        before = judge()
        out = run("push", src, tier)  # who knows that it was killed?
        assert before == "complete" and not os.path.exists(begun) or ("run/step-1: is being removed there" in out and judge() == before), out
        age(begun)
        run("push", src, tier)  # takes what is left for its own
        assert judge() == "complete"
        run("verify", tier)
assert states == {"complete", "no manifest", "no commit file", "nothing"}, states
print("killed at", n, "calls")

# A removal that was held up for so long that a push took it for killed stops with the phase it is in (one that takes longer
# looks every 30 s): of the three files the commit file, or the two others, may be missing then, never all.
taken = 0
for i in range(step, n, step):
    shutil.rmtree(tier, ignore_errors=True)
    shutil.copytree(whole, tier, copy_function=shutil.copy2)
    script = os.path.join(tmp, "take")
    with open(script, "w") as f:
        f.write(f"""sed -i 's/"time_s": *[0-9]*/"time_s": 1/' {begun} || exit 0
{cairn} tier push {src} {tier} run/step-1 >{tmp}/push.out 2>&1 && : >{tmp}/pushed
""")
    p = subprocess.run([at_call, str(i), f"/bin/sh {script} 2>/dev/null", cairn, "tier", "rm", tier, "run/step-1"], capture_output=True, text=True)
    if not os.path.exists(tmp + "/pushed"):
        continue  # it had not begun, or had ended
    os.remove(tmp + "/pushed")
    taken += 1
    left = os.listdir(os.path.join(tier, "run/step-1"))
    assert p.returncode == 1 and left, (i, p.returncode, left, p.stdout, p.stderr)
    run("push", src, tier)
    run("verify", tier)
assert taken or step > 1
END
