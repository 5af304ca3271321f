#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# -o tier=DIR: what becomes durable and complete gets to the tier by itself; the worker and the process that sends are
# killed; the tier cannot be written, is replaced, and is back; unmount while sending; what status and metrics say. The
# tier is read all the time with plain calls: no commit file and no manifest before what it lists.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier ref=$TMP/ref

expect 1 "$BUILD/cairnfs" "$TMP" "$TMP" -o tier=relative
says err 'tier= takes a directory'
mkdir -p "$s" "$m"
expect 1 "$BUILD/cairnfs" "$s" "$m" -o "tier=$s/x"
says err 'is in the store or the mount'
expect 1 "$BUILD/cairnfs" "$s" "$m" -o tier_rate=1M
says err 'give tier='
expect 1 "$BUILD/cairnfs" "$s" "$m" -o "tier=$t,tier_rate=fast"
says err 'not a rate'

mkdir -p "$t" "$ref"
python3 - "$t" "$ref" "$TMP/judge-ends" >"$TMP/judged" 2>&1 <<'PY' &
import json, os, sys, time
tier, ref, end = sys.argv[1:]
fd = os.open(tier, os.O_RDONLY)
tier = f"/proc/self/fd/{fd}" # also while it is elsewhere
def same(a, b):
    try:
        return open(a, "rb").read() == open(b, "rb").read()
    except FileNotFoundError:
        return False
looks = committed = 0
last = False
while not last:
    last = os.path.exists(end)
    for step in sorted(os.listdir(ref)):
        have = [os.path.exists(f"{tier}/.cairn/manifests/run/{step}/manifest.json"),
                os.path.exists(f"{tier}/run/{step}/.metadata")]
        if not any(have):
            continue
        # read in the other order than written: what commits was there before the files are looked at
        for name in os.listdir(f"{ref}/{step}"):
            assert same(f"{ref}/{step}/{name}", f"{tier}/run/{step}/{name}"), f"{step}: committed {have}, not {name}"
        if have[0]:
            m = json.load(open(f"{tier}/.cairn/manifests/run/{step}/manifest.json"))
            assert sorted(f["path"] for f in m["files"]) == sorted(f"run/{step}/{n}" for n in os.listdir(f"{ref}/{step}"))
        committed += 1
    looks += 1
    time.sleep(0.01)
print(f"{looks} looks, {committed} committed")
PY
judge=$!
on_exit "kill $judge 2>/dev/null"

# save N [MIB]: a checkpoint, through the mount
save()
{
	cp -r "$assets/dcp" "$TMP/new"
	head -c "${2:-1}M" /dev/urandom >"$TMP/new/__2_0.distcp"
	mv "$TMP/new" "$ref/step-$1"
	mkdir -p "$m/run/step-$1"
	cp "$ref/step-$1"/*.distcp "$m/run/step-$1"
	cp "$ref/step-$1/.metadata" "$m/run/step-$1"
}
has_all() { [ -e "$t/.cairn/manifests/run/step-$1/manifest.json" ]; }
in_tier() { retry 60 has_all "$1" || die "step-$1 is not in the tier: $(cat "$s"/.cairn/*/tier/status.json)"; }
follower() { status_field "$m" tier.pid; }
runs() { [ "$(follower)" -gt 0 ]; }

start_mount "$s" "$m" "tier=$t"
save 1
wait_durable "$m/run/step-1"
in_tier 1
reaches tier.pending 0
reaches tier.last run/step-1
[ "$(metric "$m" tier_running) $(metric "$m" tier_pending_checkpoints)" = "1 0" ] || die "metrics"
expect 0 "$cairn" status "$m"
says out 'tier  *has all that is complete, the last: run/step-1'
"$cairn" metrics "$m" | has '^cairnfs_tier_sent_checkpoints_total{.*} 1$' || die "no metric of what was sent"
has '"path": "run/step-1", "state": "sent"' "$s"/.cairn/*/tier/status.json || die "status.json of the follower"
expect 0 "$cairn" tier verify "$t"

# The follower is killed: another one sends only what is not there. So is the worker.
ino=$(stat -c %i "$t/run/step-1/__2_0.distcp")
kill -KILL "$(follower)"
save 2
in_tier 2
kill -KILL "$(worker_pid "$m")"
save 3
in_tier 3
[ "$(stat -c %i "$t/run/step-1/__2_0.distcp")" = "$ino" ] || die "step-1 was sent again"
[ "$(status_field "$m" tier.starts)" -ge 2 ] || die "the follower was not started again"

# Saved again with the same size and time: the bytes tell.
mkdir "$m/again"
cp "$assets/safetensors/model.safetensors" "$TMP/one"
n=$(stat -c %s "$TMP/one")
for byte in A B; do
	printf $byte | dd of="$TMP/one" bs=1 seek=$((n - 1)) conv=notrunc status=none
	touch -d '2026-01-02 03:04:05' "$TMP/one"
	cp -p "$TMP/one" "$m/again/model.safetensors"
	wait_durable "$m/again/model.safetensors"
	retry 60 cmp -s "$TMP/one" "$t/again/model.safetensors" || die "what was saved again is not sent: $byte"
done

# What is not complete is not sent.
mkdir "$m/run/step-4"
cp "$assets/dcp/__0_0.distcp" "$assets/dcp/.metadata" "$m/run/step-4"
save 5
in_tier 5
[ ! -e "$t/run/step-4" ] || die "an incomplete checkpoint was sent"
# ... and it is told what is missing, as cairn ls does. It is as if nobody had written to it for a while.
touch -d '6 minutes ago' "$m/run/step-4"/*.distcp
touch -d '5 minutes ago' "$m/run/step-4/.metadata" "$m/run/step-4"
cp -rp "$m/run/step-4" "$m/run/.cairn-fetch.step-9"	# as a killed fetch leaves it: that does not count
expect 3 "$cairn" wait --tier --timeout 20 "$m/run/step-4"
says err 'step-4 is not in the tier: incomplete: __1_0.distcp is missing; waiting for that'
says err 'step-4 is not in the tier yet: incomplete: __1_0.distcp is missing'
expect 0 "$cairn" ls "$m/run"
says out 'step-4/  .*, incomplete: __1_0.distcp is missing, not in the tier'
expect 0 "$cairn" status "$m"
says out 'TIER  *1 incomplete checkpoint not sent, the oldest unchanged for .*: run/step-4: incomplete: __1_0.distcp is missing'
rm -r "$m/run/.cairn-fetch.step-9"
expect 0 "$cairn" wait --tier "$m"
# The shard comes, with a save that is whole.
"$cairn" wait --tier --timeout 60 "$m/run/step-4" 2>"$TMP/waited" &
waits=$!
retry 30 has 'waiting for that' "$TMP/waited" || die "not told: $(cat "$TMP/waited")"
cp -r "$assets/dcp" "$ref/step-4"
cp "$assets/dcp"/*.distcp "$m/run/step-4"
cp "$assets/dcp/.metadata" "$m/run/step-4"
wait $waits || die "wait --tier, when it is complete: $(cat "$TMP/waited")"
expect 0 "$cairn" status "$m"
has TIER "$TMP/out" && die "status: $(cat "$TMP/out")"

# The tier is gone: another directory is in its place. Nothing is written there, saves go on, and it is told.
mv "$t" "$TMP/away"
mkdir "$t"
save 6
wait_durable "$m/run/step-6"
not_same() { status_field "$m" tier.error | has 'is its filesystem mounted'; }
retry 60 not_same || die "another directory was taken for the tier: $(find "$t")"
[ -z "$(ls -A "$t")" ] || die "written to another directory: $(ls -A "$t")"
expect 0 "$cairn" status "$m"
says out 'TIER  *nothing is sent, for .*next try in'
# The worker logs what the status shows already, a moment later.
retry 60 has 'is its filesystem mounted' "$s"/.cairn/*/log || die "not logged"
n=$(grep -c 'is its filesystem mounted' "$s"/.cairn/*/log)
[ "$n" = 1 ] || die "logged $n times"
rmdir "$t"
mv "$TMP/away" "$t"
in_tier 6
reaches tier.error null
retry 60 has 'the tier takes checkpoints again' "$s"/.cairn/*/log || die "it was not logged that it is back"

# Unmount while it sends: clean, at once, and what is not there is told. The next mount sends the rest.
stop_mount "$m"
start_mount "$s" "$m" "tier=$t,tier_rate=10K"
runs || retry 60 runs || die "no follower"
save 7 8
wait_durable "$m/run/step-7"
reaches tier.sending run/step-7
pid=$(follower)
stop_mount "$m"
[ ! -d "/proc/$pid" ] || die "the follower is there after the unmount"
has_all 7 && die "8 MiB at 10 KiB/s were sent at once"
has '1 complete checkpoints (8 MiB) are not in the tier' "$s"/.cairn/*/log || die "what is not there was not told"
start_mount "$s" "$m" "tier=$t"
in_tier 7
stop_mount "$m"

touch "$TMP/judge-ends"
wait $judge || die "the tier: $(cat "$TMP/judged")"
note "$(cat "$TMP/judged")"
for step in 1 2 3 5 6 7; do
	same_tree "$ref/step-$step" "$t/run/step-$step"
done
expect 0 "$cairn" tier verify "$t"
