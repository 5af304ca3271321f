#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 240
#
# Files that outgrow staging and its tmpfs while the kernel writes them by itself: never ENOSPC
# while the store has space.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"
need_root

store=$TMP/store mnt=$TMP/mnt run=$TMP/run
size=200	# MiB: more than the tmpfs holds
mkdir "$run"
mount -t tmpfs -o size=160M,mode=700,huge=always none "$run" || skip "needs a tmpfs"
on_exit 'umount -l "$run"'
opts="staging=48M,pool=0,staging_dir=$run"

outgrown() { status_field "$mnt" outgrown.files; }

# The shards of the step before were small, so these are let into memory.
start_mount "$store" "$mnt" "$opts"
mkdir "$mnt/step-1" "$mnt/step-2"
ways="append fsync patch cut sparse again sized alloc parts"
for way in $ways; do
	helper files put "$mnt/step-1/$way.bin" 9000000 1 || die "put"
done
wait_durable "$mnt"
seed=0
for way in $ways; do
	seed=$((seed + 1))
	before=$(outgrown)
	helper outgrow "$way" "$mnt/step-2/$way.bin" $size $seed "$mnt" || die "$way"
	[ "$MODE" = relay ] || [ $way = parts ] || [ "$(outgrown)" -gt "$before" ] || die "$way: nothing had to move: the test is blind"
done
wait_durable "$mnt"
for file in append fsync patch cut sized alloc parts; do
	seed=$(echo "$ways" | tr ' ' '\n' | grep -n "^$file$" | cut -d: -f1)
	helper outgrow check "$store/step-2/$file.bin" $size "$seed" "$mnt" || die "$file in the store"
done
cmp "$mnt/step-2/sparse.bin" "$store/step-2/sparse.bin" || die "sparse in the store"
blocks=$(stat -c %b "$store/step-2/sparse.bin")
[ "$blocks" -lt $((size * 2048 * 3 / 4)) ] || die "holes were filled: $blocks blocks"
helper files put "$mnt/after" 1000000 3 || die "the mount works on"
wait_durable "$mnt"
"$BUILD/cairn" verify "$mnt/step-2" || die "verify"
retry 20 sh -c "[ -z \"\$(ls $store/.cairn/*/tmp)\" ]" || die "left in tmp: $(ls -l "$store"/.cairn/*/tmp)"

# The worker dies again and again meanwhile.
rm -r "$mnt/step-2"
mkdir "$mnt/step-2"
for way in append cut; do
	helper outgrow $way "$mnt/step-2/$way.bin" $size 7 "$mnt" &
	pid=$!
	for _ in 1 2; do	# 5 deaths in 10 s are too many
		sleep 0.4
		kill -KILL "$(worker_pid "$mnt")"
	done
	wait $pid || die "$way while the worker dies"
	helper outgrow check "$mnt/step-2/$way.bin" $size 7 "$mnt" || die "$way after it"
	wait_durable "$mnt"
	helper outgrow check "$store/step-2/$way.bin" $size 7 "$mnt" || die "$way in the store"
done

# All is killed while a file is in both places, never closed: lost+found has the whole of it.
mkdir "$mnt/step-3"
mkfifo "$TMP/go"
helper outgrow hold "$mnt/step-3/append.bin" $size 9 "$mnt" <"$TMP/go" >"$TMP/out" &
pid=$!
exec 9>"$TMP/go"
retry 60 grep -q written "$TMP/out" || die "hold"
kill_mount "$mnt"
exec 9>&-
wait $pid
start_mount "$store" "$mnt" "$opts"
if [ "$MODE" != relay ]; then
	found=$(ls "$store"/.cairn/lost+found/step-3%2Fappend.bin.unclosed.*) || die "not in lost+found"
	helper outgrow check "$found" $size 9 "$mnt" || die "lost+found"
fi
[ ! -e "$mnt/step-3/append.bin" ] || die "a file never closed was published"
end_mount "$mnt"
