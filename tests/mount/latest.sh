#!/bin/bash
# SPDX-License-Identifier: MIT
# .cairn/latest/DIR: the newest checkpoint that is complete and durable, and never anything less.
. "$(dirname "$0")/../lib/lib.sh"

cairn=$BUILD/cairn assets=$LIB_TOP/tests/assets s=$TMP/store m=$TMP/mnt

# Both ways to ask must say the same; "" is none.
latest_is()
{
	local dir=$1 want=$2 got
	got=$(cd "$m/.cairn/latest/$dir" 2>/dev/null && pwd -P)
	[ "$got" = "${want:+$m/$want}" ] || die ".cairn/latest/$dir leads to '$got', not to '$want'"
	got=$("$cairn" latest "$m/$dir" 2>/dev/null)
	[ "$got" = "${want:+$m/$want}" ] || die "cairn latest $dir says '$got', not '$want'"
}

start_mount "$s" "$m"
mkdir "$m/run"
ls "$m/.cairn/latest" >"$TMP/out" || die "ls .cairn/latest"
ls -l "$m/.cairn" >"$TMP/out" || die "ls -l .cairn"
latest_is run ""
[ ! -L "$m/.cairn/latest/run" ] || die "a symlink to nothing"
ls "$m" | has . && [ "$(ls -A "$m")" = run ] || die "the root lists: $(ls -A "$m")"

# DCP: shards, .metadata.tmp, rename. It counts when it is whole and durable.
mkdir "$m/run/step-7"
cp "$assets"/dcp/*.distcp "$m/run/step-7"
latest_is run ""
cp "$assets/dcp/.metadata" "$m/run/step-7/.metadata.tmp"
wait_durable "$m/run"
latest_is run ""
mv "$m/run/step-7/.metadata.tmp" "$m/run/step-7/.metadata"
wait_durable "$m/run"
latest_is run run/step-7
[ "$(readlink "$m/.cairn/latest/run")" = ../../run/step-7 ] || die "$(readlink "$m/.cairn/latest/run")"
cmp "$m/.cairn/latest/run/__0_0.distcp" "$assets/dcp/__0_0.distcp" || die "read through the symlink"
cp -r "$m/.cairn/latest/run/." "$TMP/copy" || die "copied through the symlink"
diff -r "$TMP/copy" "$assets/dcp" || die "the copy differs"
[ "$(ls "$m/.cairn/latest")" = run ] || die ".cairn/latest lists: $(ls "$m/.cairn/latest")"

# The newest by step, not by time; what is open, cut off or not committed is passed over.
cp -r "$assets/dcp" "$m/run/step-9"
cp -r "$assets/dcp" "$m/run/step-8"
wait_durable "$m/run"
latest_is run run/step-9
truncate -s 100 "$m/run/step-9/__1_0.distcp"
wait_durable "$m/run"
latest_is run run/step-8

# Overwritten in place: from the first truncated shard on until .metadata is written again,
# though every file is closed, durable and large enough between.
size=$(stat -c %s "$assets/dcp/__0_0.distcp")
exec 8>"$m/run/step-8/__0_0.distcp"
latest_is run run/step-7
head -c "$size" /dev/urandom >&8
exec 8>&-
wait_durable "$m/run"
latest_is run run/step-7
"$cairn" ls "$m/run" >"$TMP/out"
grep -q 'step-8/ .*writing: __0_0.distcp was overwritten later than .metadata' "$TMP/out" ||
	die "ls of an overwritten one: $(cat "$TMP/out")"
cp "$assets/dcp/__0_0.distcp" "$m/run/step-8"	# the committed bytes again: whole again
wait_durable "$m/run"
latest_is run run/step-8
head -c "$size" /dev/urandom >"$m/run/step-8/__0_0.distcp"
cp "$assets/dcp/__1_0.distcp" "$m/run/step-8"
wait_durable "$m/run"
latest_is run run/step-7
cp "$assets/dcp/.metadata" "$m/run/step-8/.metadata.tmp"
rm "$m/run/step-8/.metadata"
mv "$m/run/step-8/.metadata.tmp" "$m/run/step-8/.metadata"
wait_durable "$m/run"
latest_is run run/step-8

# The same where the shards are written beside and renamed over, in whatever state the new one is.
cp "$m/run/step-8/__0_0.distcp" "$TMP/committed"
cp "$TMP/committed" "$m/run/step-8/same"
mv "$m/run/step-8/same" "$m/run/step-8/__0_0.distcp"	# the committed bytes
wait_durable "$m/run"
latest_is run run/step-8
head -c "$size" /dev/urandom >"$m/run/step-8/new"
mv "$m/run/step-8/new" "$m/run/step-8/__0_0.distcp"
latest_is run run/step-7
wait_durable "$m/run"
latest_is run run/step-7
"$cairn" ls "$m/run" >"$TMP/out"
grep -q 'step-8/ .*writing: __0_0.distcp was overwritten later than .metadata' "$TMP/out" ||
	die "ls of one with a shard renamed over: $(cat "$TMP/out")"
getfattr -d "$m/run/step-8/__0_0.distcp" 2>/dev/null | grep -q cairn && die "the mark is listed"
cp "$TMP/committed" "$m/run/step-8/new"
wait_durable "$m/run"
mv "$m/run/step-8/new" "$m/run/step-8/__0_0.distcp"	# durable before; the committed bytes again
wait_durable "$m/run"
latest_is run run/step-8
head -c "$size" /dev/urandom >"$m/run/step-8/new"
wait_durable "$m/run"
mv "$m/run/step-8/new" "$m/run/step-8/__0_0.distcp"
"$cairn" ls "$m/run" >"$TMP/out"
grep -q 'step-8/ .*writing: __0_0.distcp was overwritten' "$TMP/out" || die "at once: $(cat "$TMP/out")"
wait_durable "$m/run"
latest_is run run/step-7
exec 8>"$m/run/step-8/new"
mv "$m/run/step-8/new" "$m/run/step-8/__1_0.distcp"
head -c "$size" /dev/urandom >&8
exec 8>&-
cp "$TMP/committed" "$m/run/step-8/__0_0.distcp"
wait_durable "$m/run"
latest_is run run/step-7
cp "$assets/dcp/__1_0.distcp" "$m/run/step-8"
cp "$assets/dcp/.metadata" "$m/run/step-8/.metadata.tmp"
mv "$m/run/step-8/.metadata.tmp" "$m/run/step-8/.metadata"
wait_durable "$m/run"
latest_is run run/step-8

# Removed, renamed: at once.
mv "$m/run/step-8" "$m/run/step-20"
wait_durable "$m/run"
latest_is run run/step-20
rm "$m/run/step-20/.metadata"
latest_is run run/step-7
rm -r "$m/run/step-20"
latest_is run run/step-7

# Written beside the mount, by another host of the cluster.
cp -r "$assets/dcp" "$s/run/step-30"
latest_is run run/step-30
rm -r "$s/run/step-30"
latest_is run run/step-7

# Further down: a directory to go on in.
mkdir -p "$m/all/a" "$m/all/b"
cp -r "$assets/dcp" "$m/all/a/step-1"
cp -r "$assets/hf_index" "$m/all/b/hf"
cp "$assets/torch_save/model.pt" "$m/all/b/epoch=1-step=5.ckpt"
touch -d '1 hour ago' "$m/all/b/hf"
wait_durable "$m/all"
latest_is all/a all/a/step-1
[ -d "$m/.cairn/latest/all" ] && [ ! -L "$m/.cairn/latest/all" ] || die "latest/all is no directory"
[ "$(ls "$m/.cairn/latest/all" | tr '\n' ' ')" = "a b " ] || die "latest/all lists $(ls "$m/.cairn/latest/all")"
got=$("$cairn" latest "$m/all/b") && [ "${got##*/}" = "epoch=1-step=5.ckpt" ] || die "a Lightning file: $got"
latest_is nothing ""
mkdir "$m/models"		# files of tensors at the top do not hide the runs beside them
cp "$assets/safetensors/model.safetensors" "$m/models"
wait_durable "$m"
latest_is run run/step-7

# Nothing can be changed there.
for cmd in "touch $m/.cairn/latest/x" "mkdir $m/.cairn/latest/x" "rm $m/.cairn/latest/run" "mv $m/.cairn/latest/run $m/x"; do
	$cmd 2>/dev/null && die "$cmd: succeeded"
done

# Many who ask do not keep the mount from answering, and a new worker knows as much.
for ((i = 0; i < 40; i++)); do
	readlink "$m/.cairn/latest/run" >"$TMP/r.$i" &
done
wait_for=$(stat -c %i "$m/run") || die "the mount does not answer"
wait
[ -z "$(grep -L '^../../run/step-7$' "$TMP"/r.*)" ] || die "asked at once: $(cat "$TMP"/r.*)"
exec 9<"$m/.cairn/latest/run/__0_0.distcp"
old=$(worker_pid "$m")
kill -KILL "$old"
latest_is run run/step-7
latest_is all/a all/a/step-1
[ "$(worker_pid "$m")" != "$old" ] || die "the same worker"
exec 9<&-

# The store says the same without a mount, of the overwritten too.
head -c "$size" /dev/urandom >"$m/run/step-7/__0_0.distcp"
wait_durable "$m/run"
latest_is run ""
stop_mount "$m"
got=$("$cairn" latest "$s/run" 2>"$TMP/err") # what it had before is kept
[[ $got == "$s"/.cairn/previous/run%2Fstep-9.* ]] || die "a mix in the store is called the latest: $got"
cmp "$got/__1_0.distcp" "$assets/dcp/__1_0.distcp" || die "what is kept of a truncated one"
[ -e "$s"/.cairn/previous/run%2Fstep-7.*/.metadata ] || die "not kept: $(ls "$s/.cairn/previous")"
mkdir -p "$TMP/mnt2"
start_mount "$s" "$TMP/mnt2"
m=$TMP/mnt2
latest_is run ""
touch "$m/run/step-7/.metadata"
wait_durable "$m/run"
latest_is run run/step-7
retry 20 eval '! ls "$s/.cairn/previous" | has step-7' || die "committed by touch, and the old one is kept"

# A checkpoint in the root beside runs is no run: what is listed is there.
cp -r "$assets/safetensors" "$m/plain"
wait_durable "$m"
ls -lL "$m/.cairn/latest" >"$TMP/out" || die ".cairn/latest lists what is not there: $(ls "$m/.cairn/latest")"
has '^[dl].* run' "$TMP/out" || die ".cairn/latest lists $(cat "$TMP/out")"
rm -r "$m/plain"
wait_durable "$m"

# Nor does one with a step: a run in a subdirectory keeps its link. The newest of all is asked for by name.
cp -r "$assets/dcp" "$m/step-100"
wait_durable "$m"
[ -d "$m/.cairn/latest" ] && [ ! -L "$m/.cairn/latest" ] || die "latest leads to $(readlink "$m/.cairn/latest")"
[ "$(ls "$m/.cairn/latest" | tr '\n' ' ')" = "all run " ] || die "latest lists $(ls "$m/.cairn/latest")"
latest_is run run/step-7
latest_is all/a all/a/step-1
[ "$("$cairn" latest "$m")" = "$m/step-100" ] || die "cairn latest: $("$cairn" latest "$m")"

# latest itself stands for the root, where that is the only run
rm -r "$m/run" "$m/all/a" "$m/all/b/epoch=1-step=5.ckpt"
wait_durable "$m"
[ "$(readlink "$m/.cairn/latest")" = ../step-100 ] || die "latest leads to $(readlink "$m/.cairn/latest")"
cmp "$m/.cairn/latest/.metadata" "$assets/dcp/.metadata" || die "read through latest"
rm "$m/step-100/.metadata"
rm -r "$m/all" "$m/models"
wait_durable "$m"
[ ! -e "$m/.cairn/latest" ] && [ ! -L "$m/.cairn/latest" ] || die "latest leads to $(readlink "$m/.cairn/latest")"
stop_mount "$m"
