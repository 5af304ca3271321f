#!/bin/bash
# SPDX-License-Identifier: MIT
# timeout: 240
# A checkpoint that is overwritten in place is kept until the new one is complete and durable, through
# kills of everything, and can be put back.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/../lib/overwrite.inc"
need_root

s=$TMP/store m=$TMP/mnt cairn=$BUILD/cairn
kept() { find "$s/.cairn/previous" -mindepth 1 -maxdepth 1; }
one_kept() { [ "$(kept | wc -l)" = 1 ] || die "$1: kept: $(kept)"; }
none_kept() { [ -z "$(kept)" ] || die "$1: still kept: $(kept)"; }
no_notice() { ! has -e 'cannot be kept' -e conflict "$m/.cairn/status.json" || die "$1: $(status_field "$m" notices)"; }

begin() # a generation whose trainer dies after its first shard
{
	part __0_0.distcp "$2" >"$1/__0_0.distcp"
	wait_durable "$1"
}

start_mount "$s" "$m"
save "$m/run/ckpt" 1
wait_durable "$m"
none_kept "a first save"
# What is only added replaces nothing.
echo 1 >"$m/run/ckpt/note"
wait_durable "$m"
none_kept "an added file"
[ "$(status_field "$m" previous.kept)" = 0 ] || die "status: $(status_field "$m" previous)"

begin "$m/run/ckpt" 2
one_kept "a shard of the next generation"
is_whole "$(kept)" 1 || die "what is kept is not the first generation"
is_whole "$s/run/ckpt" 1 && die "nothing was overwritten"
[[ "$(kept)" == */run%2Fckpt.* ]] || die "its name: $(kept)"
[ "$(stat -c %h "$m/run/ckpt/__1_0.distcp")" = 1 ] || die "a file that is kept shows its other name"
[ "$(status_field "$m" previous.kept)" = 1 ] && [ "$(status_field "$m" previous.bytes)" -ge 4096 ] &&
	[ "$(status_field "$m" previous.checkpoint)" = run%2Fckpt ] || die "status: $(status_field "$m" previous)"
[ "$(metric "$m" previous_kept)" = 1 ] || die "metrics"
COLUMNS=200 "$cairn" status "$m" | has 'previous *1 checkpoint kept' || die "$("$cairn" status "$m")"

# Killed: it is still kept, and nothing puts it back while staging may hold more.
kill -KILL "$(worker_pid "$m")"
retry 20 eval '[ "$(status_field "$m" previous.kept)" = 1 ]' || die "forgotten by the next worker"
[ "$(stat -c %h "$m/run/ckpt/__1_0.distcp")" = 1 ] || die "the next worker shows the other name"
"$cairn" restore-previous "$m/run/ckpt" 2>"$TMP/err" && die "restored through a mount"
has "cairn umount $m" "$TMP/err" || die "$(cat "$TMP/err")"
"$cairn" restore-previous "$s/run/ckpt" 2>"$TMP/err" && die "restored in a mounted store"
has 'is mounted' "$TMP/err" || die "$(cat "$TMP/err")"
kill_mount "$m"
# the helpers of what was killed hold the store's lock for a moment more
left() { ! "$cairn" restore-previous "$s/run/ckpt" 2>"$TMP/err" && has 'staging .* may have changes' "$TMP/err"; }
retry 10 left || die "restored with staging left: $(cat "$TMP/err")"
start_mount "$s" "$m"
one_kept "a start"
is_whole "$(kept)" 1 || die "after a start"
stop_mount "$m"
one_kept "an unmount"

# The tools lead to it, and put it back.
found=$("$cairn" latest "$s" 2>"$TMP/err") || die "latest: $(cat "$TMP/err")"
[ "$found" = "$(kept)" ] || die "latest: $found instead of $(kept)"
has 'was being overwritten' "$TMP/err" || die "latest does not say so: $(cat "$TMP/err")"
found=$("$cairn" latest "$s/run" 2>/dev/null)
[ "$found" -ef "$(kept)" ] || die "latest of a directory: $found"
"$cairn" restore-previous "$s/run/ckpt" >"$TMP/out" || die "restore-previous"
is_whole "$s/run/ckpt" 1 || die "it is not back"
none_kept "it is back"
"$cairn" restore-previous "$s/run/ckpt" >"$TMP/out" || die "a second time"
has 'nothing is kept' "$TMP/out" || die "$(cat "$TMP/out")"
"$cairn" restore-previous "$s/run" 2>/dev/null && die "a directory that is no checkpoint"
[ "$("$cairn" latest "$s")" = "$s/run/ckpt" ] || die "latest afterwards"
"$cairn" check -q "$s/run/ckpt" >/dev/null || die "check: $("$cairn" check -q "$s/run/ckpt")"

# A restore that was killed continues: some files are back, the .metadata is not.
start_mount "$s" "$m"
part .metadata 2 >"$m/run/ckpt/.metadata.tmp" # of a save that ended half-way
wait_durable "$m"
begin "$m/run/ckpt" 3
rm "$m/run/ckpt/.metadata"
wait_durable "$m"
stop_mount "$m"
one_kept "without .metadata"
ln "$(kept)/__0_0.distcp" "$s/run/ckpt/.cairn-restored"
"$cairn" restore-previous "$s/run/ckpt" >/dev/null || die "continued"
is_whole "$s/run/ckpt" 1 || die "continued, it is not back"
[ ! -e "$s/run/ckpt/.cairn-restored" ] || die "its scratch name stays"
[ "$("$cairn" latest "$s")" = "$s/run/ckpt" ] || die "what was put back is not complete: $("$cairn" latest -v "$s" 2>&1)"

# The next complete generation ends it; twice at once, and by kills at each point.
start_mount "$s" "$m"
save "$m/run/ckpt" 4
save "$m/run/ckpt" 5
wait_durable "$m"
retry 20 eval '[ -z "$(kept)" ]' || die "still kept: $(kept)"
is_whole "$s/run/ckpt" 5 || die "generation 5"
[ "$(status_field "$m" previous.kept)" = 0 ] && [ "$(status_field "$m" previous.bytes)" = 0 ] ||
	die "status: $(status_field "$m" previous)"
begin "$m/run/ckpt" 6
kill_mount "$m"
start_mount "$s" "$m"
mv "$m/run" "$m/moved" # it follows the directory
save "$m/moved/ckpt" 7
wait_durable "$m"
retry 20 eval '[ -z "$(kept)" ]' || die "renamed, still kept: $(kept)"
is_whole "$s/moved/ckpt" 7 || die "generation 7"

# Killed between the new checkpoint and the end of the old one: the next start removes it.
begin "$m/moved/ckpt" 8
cp -a "$(kept)" "$TMP/copy"
name=$(basename "$(kept)")
save "$m/moved/ckpt" 8
wait_durable "$m"
stop_mount "$m"
none_kept "generation 8"
cp -a "$TMP/copy" "$s/.cairn/previous/$name"
start_mount "$s" "$m"
retry 20 eval '[ -z "$(kept)" ]' || die "the next start keeps $(kept)"
is_whole "$s/moved/ckpt" 8 || die "generation 8"

# Removed with its directory.
begin "$m/moved/ckpt" 9
one_kept "generation 9"
rm -r "$m/moved/ckpt"
wait_durable "$m"
retry 20 eval '[ -z "$(kept)" ]' || die "removed, still kept: $(kept)"
no_notice "all of this"
stop_mount "$m"

start_mount "$s" "$m" noprevious
save "$m/off" 1
wait_durable "$m"
begin "$m/off" 2
none_kept "noprevious"
stop_mount "$m"

# No room for both: a save goes on, and that is told.
make_disk small ext4 96M
s=$TMP/small/store
start_mount "$s" "$m"
save "$m/ckpt" 1 20000000
wait_durable "$m"
for f in $SHARDS; do
	part "$f" 2 20000000 >"$m/ckpt/$f" || die "no space for $f"
	wait_durable "$m"
done
head -c 24000000 /dev/zero >"$m/more" || die "no space for more: $(status_field "$m" previous)"
save_metadata "$m/ckpt" 2
wait_durable "$m"
is_whole "$s/ckpt" 2 20000000 || die "generation 2 on the small store"
has 'overwritten, and what it has now cannot be kept.*the store is full' "$m/.cairn/status.json" ||
	die "not told: $(status_field "$m" notices) $(status_field "$m" previous)"
retry 20 eval '[ -z "$(kept)" ]' || die "still kept: $(kept)"
stop_mount "$m"
