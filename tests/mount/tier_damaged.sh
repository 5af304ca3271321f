#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# A damaged newest checkpoint in the tier, of other bytes, a missing file or a wrong size: once a fetch, or for a directory the
# listing, found that, `latest` leads to the one before, also after a remount, and `fetch --latest` goes on to it by itself.
# Sent again it counts again. If all are damaged `latest` is an error, not nothing.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier
mkdir -p "$t" "$TMP/src/run"
for i in 1 2 3 4; do
	cp -r "$assets/dcp" "$TMP/src/run/step-$i"
	head -c 3M /dev/urandom >"$TMP/src/run/step-$i/__2_0.distcp"
	touch -d "$((20 - i)) days ago" "$TMP/src/run/step-$i"/{*,.metadata}
done
expect 0 "$cairn" tier push -q "$TMP/src" "$t"

rot()	# rot N: other bytes, the same size and time
{
	local f=$t/run/step-$1/__2_0.distcp
	cp -p "$f" "$TMP/time"
	printf rot | dd of="$f" bs=1 seek=1000000 conv=notrunc status=none
	touch -r "$TMP/time" "$f"
}
send_again()	# as SCALE says: remove the file, push
{
	rm -f "$t/run/step-$1/__2_0.distcp"
	expect 0 "$cairn" tier push -q "$TMP/src" "$t" "run/step-$1"
}
new_node()
{
	rm -rf --one-file-system "$s"
	start_mount "$s" "$m" "tier=$t"
}
log_has() { has -- "$1" "$s"/.cairn/*/log; }
leads_to() { [ "$(readlink "$m/.cairn/latest/run")" = "../../.cairn/tier/run/step-$1" ]; }
leads() { retry 120 leads_to "$1" || die "latest leads to $(readlink "$m/.cairn/latest/run"), not step-$1"; }

# A job reads: an error, and at its next start another checkpoint.
new_node
leads_to 4 || die "latest: $(readlink "$m/.cairn/latest/run")"
rot 4
leads_to 4 || die "it is not known yet"
[ "$(status_field "$m" fetch.damaged)" = 0 ] || die "status: $(status_field "$m" fetch)"
cat "$m/.cairn/latest/run/__2_0.distcp" >"$TMP/read" 2>"$TMP/err" && die "a damaged file was read"
says err 'Input/output error'
leads_to 3 || die "latest still leads to $(readlink "$m/.cairn/latest/run")"
expect 0 "$cairn" latest "$m"
says out 'tier/run/step-3$'
is_noted() { log_has 'run/step-4 is damaged in the tier: .*__2_0.distcp: not the bytes that its manifest lists'; }
retry 60 is_noted || die "not in the log: $(cat "$s"/.cairn/*/log)"
[ "$(status_field "$m" fetch.damaged) $(status_field "$m" fetch.damaged_path)" = "1 run/step-4" ] ||
	die "status: $(status_field "$m" fetch)"
expect 0 "$cairn" status "$m"
says out 'FETCH  *1 damaged in the tier, such as run/step-4'
[ "$(state "$m/.cairn/tier/run/step-4/.metadata") $(state "$m/.cairn/tier/run/step-3/.metadata")" = "damaged remote" ] ||
	die "state: $(state "$m/.cairn/tier/run/step-4/.metadata")"
expect 0 "$cairn" ls "$m/run"
says out '^damaged  *step-4/  dcp, step 4, .*incomplete: damaged in the tier'
says out '^remote  *step-3/  dcp, step 3, .*complete, '
[ "$(metric "$m" tier_damaged_checkpoints)" = 1 ] || die "metric"
cmp "$m/.cairn/latest/run/__2_0.distcp" "$TMP/src/run/step-3/__2_0.distcp" || die "step-3"

# The next mount of this store knows; a worker that was killed, too.
stop_mount "$m"
rm -rf --one-file-system "$s/run"
start_mount "$s" "$m" "tier=$t"
leads_to 3 || die "after a remount: $(readlink "$m/.cairn/latest/run")"
kill -KILL "$(worker_pid "$m")"
leads 3

# Sent again: it counts.
send_again 4
leads 4
[ "$(state "$m/.cairn/tier/run/step-4/.metadata")" = remote ] || die "state: $(state "$m/.cairn/tier/run/step-4/.metadata")"
stop_mount "$m"

# By itself: the newest is damaged, the one before it lacks a file, the third is good.
new_node
rot 4
rm "$t/run/step-3/__2_0.distcp"
expect 0 "$cairn" fetch --latest "$m/run"
says err 'run/step-4 is damaged in the tier: the one before it is fetched'
says out '^fetched  run/step-2 '
same_tree "$TMP/src/run/step-2" "$m/run/step-2"
[ "$(ls -d "$m"/run/step-*)" = "$m/run/step-2" ] || die "in the store: $(ls "$m/run")"
expect 1 "$cairn" fetch "$m/run/step-4"
says err 'not the bytes'
expect 1 "$cairn" fetch --json "$m/run/step-4"
says out '"action": "damaged"'
expect 0 "$cairn" fetch --latest "$m/run"
says out '^there .*run/step-2'
expect 1 "$cairn" fetch "$m/run/step-3"
says err 'step-3/__2_0.distcp: missing, and its manifest lists it'
stop_mount "$m"

# A directory's listing sees what is missing or has another size, before anybody reads it.
new_node
leads 4
truncate -s 1M "$t/run/step-4/__2_0.distcp"
leads 2
retry 60 log_has 'run/step-[34] is damaged in the tier' || die "not in the log"
stop_mount "$m"

# All of them: no job begins from scratch.
for i in 1 2 4; do
	rm -f "$t/run/step-$i/__2_0.distcp"
done
new_node
ls "$m/.cairn/latest/run" 2>"$TMP/err" && die "latest of damaged ones"
says err 'Input/output error'
[ "$(ls "$m/.cairn/latest")" = run ] || die ".cairn/latest lists: $(ls "$m/.cairn/latest")"
ls "$m/.cairn/latest/another" 2>"$TMP/err" && die "latest of another run"
says err 'No such file'		# that job may begin
mkdir -p "$m/another"
ls "$m/.cairn/latest/another" 2>"$TMP/err" && die "latest of another run"
says err 'No such file'
expect 1 "$cairn" latest "$m"
says err 'Input/output error'
expect 1 "$cairn" fetch --latest "$m/run"
says err 'no checkpoint that is not damaged'
stop_mount "$m"

# Without a mount.
for i in 1 2 3 4; do
	send_again $i
done
rot 4
rm "$t/run/step-3/__2_0.distcp"
mkdir "$TMP/dir"
expect 0 "$cairn" tier fetch --latest "$t" "$TMP/dir"
says err 'run/step-4/__2_0.distcp: not the bytes that its manifest lists; it is damaged'
says err 'tier/run/step-4 is damaged: the one before it is fetched'
says err 'run/step-3/__2_0.distcp: missing, and its manifest lists it'
says out '^fetched  run/step-2 '
[ "$(ls "$TMP/dir/run")" = step-2 ] || die "in the directory: $(ls "$TMP/dir/run")"
expect 0 "$cairn" tier fetch --json --latest "$t" "$TMP/dir"
says out '"action": "damaged"'
says out '"damaged": 2'
expect 1 "$cairn" tier fetch "$t" "$TMP/dir"
says out '^fetched  run/step-1 '
echo '{"version": 1' >"$t/.cairn/manifests/run/step-4/manifest.json"
expect 0 "$cairn" tier fetch --latest "$t" "$TMP/dir"
says err 'run/step-4: its manifest: damaged'
says out '^there  *run/step-2 '
rm -r "$t/run/step-1" "$t/run/step-2" "$TMP/dir"
mkdir "$TMP/dir"
expect 1 "$cairn" tier fetch --latest "$t" "$TMP/dir"
says err 'no complete checkpoint in this tier that is not damaged'
