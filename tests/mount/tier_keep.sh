#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# set: rest
# waits: yes
# A mount with a tier: cairn wait --tier, ls, latest --tier, umount --tier; tier_keep=N removes from the store what is
# verified in the tier, and nothing else.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier
mkdir "$t"

gone() { [ ! -e "$m/run/step-$1" ]; }

start_mount "$s" "$m"
expect 2 "$cairn" wait --tier "$m"
says err 'this mount has no tier'
expect 1 "$cairn" latest --tier "$m"
says err 'what is in the tier is not known'
stop_mount "$m"

start_mount "$s" "$m" "tier=$t"
save 1
expect 0 "$cairn" wait --tier "$m/run/step-1"
[ -e "$t/.cairn/manifests/run/step-1/manifest.json" ] || die "wait --tier returned before it was there"
expect 0 "$cairn" wait --tier "$m/run" "$m" "$m/run/step-1/.metadata"
expect 0 "$cairn" ls "$m/run"
says out 'step-1/  dcp, step 1, .*complete and durable, in the tier, '
expect 0 "$cairn" latest --tier "$m"
says out 'run/step-1$'
mkdir "$m/notes"
expect 1 "$cairn" wait --tier "$m/notes"
says err 'no checkpoint there'

# The tier takes nothing: what is newer is not there.
mv "$t" "$TMP/away"
save 2
expect 3 "$cairn" wait --tier --timeout 3 "$m/run/step-2"
says err 'run/step-2 is not in the tier yet: .*No such file'
expect 0 "$cairn" ls "$m/run"
says out 'step-2/  dcp, step 2, .*complete and durable, not in the tier, '
expect 0 "$cairn" latest --tier "$m"
says out 'run/step-1$'
expect 0 "$cairn" latest "$m"
says out 'run/step-2$'
expect 3 "$cairn" umount --tier --timeout 2 "$m"
mv "$TMP/away" "$t"
expect 0 "$cairn" umount --tier "$m"
[ -e "$t/.cairn/manifests/run/step-2/manifest.json" ] || die "umount --tier did not wait"

# tier_keep: the newest two of run/ stay; what is not in the tier, or not there as it was sent, is not removed.
mkdir "$s/other"
cp -r "$assets/dcp" "$s/other/step-1"
cp -p "$t/run/step-1/__1_0.distcp" "$TMP/whole"
printf X | dd of="$t/run/step-1/__1_0.distcp" bs=1 seek=5000 conv=notrunc status=none
touch -r "$TMP/whole" "$t/run/step-1/__1_0.distcp" # with another time it were sent again
start_mount "$s" "$m" "tier=$t,tier_keep=2"
save 3
bad() { status_field "$m" tier.error | has 'step-1/__1_0.distcp: not the bytes that were sent; it stays in the store'; }
retry 60 bad || die "a bad copy is not told: $(status_field "$m" tier)"
gone 1 && die "removed, and its copy is bad"
stop_mount "$m"
cp -p "$TMP/whole" "$t/run/step-1/__1_0.distcp"
start_mount "$s" "$m" "tier=$t,tier_keep=2"
retry 60 gone 1 || die "step-1 stays: $(status_field "$m" tier)"
save 4
retry 60 gone 2 || die "step-2 stays: $(status_field "$m" tier)"
exec 8>>"$m/run/step-3/__0_0.distcp"	# it is being written again
save 5
expect 0 "$cairn" wait --tier "$m/run/step-5"
exec 8>&-
reaches tier.pending 0
expect 0 "$cairn" ls "$m/run"
[ -e "$m/run/step-4" ] && [ -e "$m/run/step-5" ] || die "the newest two do not stay: $(cat "$TMP/out")"
[ -e "$m/other/step-1" ] || die "the only one of a directory was removed"
for i in 1 2 3 4 5; do
	same_tree "$assets/dcp" "$t/run/step-$i"
done
expect 0 "$cairn" tier verify "$t"
[ "$(metric "$m" tier_removed_checkpoints_total)" -ge 2 ] || die "metric"
expect 0 "$cairn" umount "$m"
[ ! -e "$s/run/step-1" ] && [ ! -e "$s/run/step-2" ] || die "still in the store"

# Another store has sent its own bytes under the same path, with the same sizes: this store's are nowhere else.
rm -rf --one-file-system "$s" "$TMP/tier3" "$TMP/theirs"
mkdir -p "$TMP/tier3" "$TMP/theirs/run"
cp -r "$assets/dcp" "$TMP/theirs/run/step-1"
printf theirs | dd of="$TMP/theirs/run/step-1/__1_0.distcp" bs=1 seek=5000 conv=notrunc status=none
start_mount "$s" "$m" "tier=$TMP/tier3,tier_keep=2"
save 1
save 2
# Not `cairn wait --tier`: it has the tier listed once more, and while theirs is replaced, step-1 would seem to be gone.
retry 60 test -e "$TMP/tier3/.cairn/manifests/run/step-2/manifest.json" || die "not sent: $(status_field "$m" tier)"
reaches tier.sent 2
expect 0 "$cairn" tier push -q "$TMP/theirs" "$TMP/tier3"
same_tree "$TMP/theirs/run/step-1" "$TMP/tier3/run/step-1"
save 3
theirs() { status_field "$m" tier.error | has "step-1/__1_0.distcp: other bytes than the store's"; }
retry 60 theirs || die "bytes of another store are not told: $(status_field "$m" tier)"
same_tree "$assets/dcp" "$m/run/step-1"
stop_mount "$m"

# A directory with one file that is the checkpoint, and what lies beside and below it, is removed, too; not one that has what
# was not sent.
rm -rf --one-file-system "$s"
start_mount "$s" "$m" "tier=$TMP/tier4,tier_keep=2"
mkdir "$TMP/tier4"
for i in 1 2 3 4; do
	mkdir -p "$m/st/step-$i"
	cp "$assets/safetensors/model.safetensors" "$m/st/step-$i"
	echo '{}' >"$m/st/step-$i/config.json"
	mkdir "$m/st/step-$i/runs"
	echo x >"$m/st/step-$i/runs/log"
	[ $i != 2 ] || echo x >"$m/st/step-2/runs/half.tmp"
	expect 0 "$cairn" wait --tier "$m/st/step-$i"
done
retry 60 test ! -e "$m/st/step-1" || die "a checkpoint of one file and its config.json stays: $(status_field "$m" tier)"
[ -e "$m/st/step-2/runs/half.tmp" ] || die "what was not sent is removed"
[ -e "$TMP/tier4/st/step-1/runs/log" ] || die "what is below it is nowhere"
stop_mount "$m"

# What was fetched stays: somebody reads it. It is told by its directory, which is older than its name.
rm -rf --one-file-system "$s" "$TMP/src" "$TMP/tier2"
mkdir -p "$TMP/src/run" "$TMP/tier2"
for i in 1 2; do
	cp -r "$assets/dcp" "$TMP/src/run/step-$i"
	find "$TMP/src/run/step-$i" -exec touch -d '2 days ago' {} +
done
expect 0 "$cairn" tier push -q "$TMP/src" "$TMP/tier2"
start_mount "$s" "$m" "tier=$TMP/tier2,tier_keep=1"
expect 0 "$cairn" fetch -q "$m/run"
expect 0 "$cairn" wait --tier "$m/run/step-1"
expect 0 "$cairn" wait --tier "$m/run/step-2"
looked() { [ "$(status_field "$m" tier.looked_ms)" -gt "$last" ]; }
for _ in 1 2; do
	last=$(status_field "$m" tier.looked_ms)
	retry 60 looked || die "it does not look any more"
done
[ "$(status_field "$m" tier.removed)" = 0 ] && [ -e "$m/run/step-1/.metadata" ] || die "what was fetched is removed"
touch "$m/run/step-1"
save 3
retry 60 gone 1 || die "one that is not taken for fetched stays: $(ls "$m/run")"
[ -e "$m/run/step-2/.metadata" ] || die "what was fetched is removed"
stop_mount "$m"
