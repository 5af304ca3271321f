#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# A checkpoint is saved again and again into the same directory, and everything is killed at seeded
# instants. At each, plain reads of the store find a whole generation, in its place or among those that
# are kept, and never an older one than before; also after the next start, and when it is put back.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"
. "$(dirname "$0")/../lib/overwrite.inc"

points=$(share 20 "${1:-}")
store=$TMP/store
newest=0 in_place=0 kept=0 restored=0
SAVER=

bytes_of() { echo $(($1 * 7919 % 3000000 + 1)); }

# Saves from generation $1 on until it is killed.
saver()
{
	local n
	for ((n = $1; ; n++)); do
		echo "$n" >"$TMP/saving.new" && mv "$TMP/saving.new" "$TMP/saving"
		save "$MNT/ckpt" "$n" "$(bytes_of "$n")" 2>/dev/null || exit
	done
}

saver_kill()
{
	[ -n "$SAVER" ] || return 0
	kill -KILL -- "-$SAVER" 2>/dev/null
	wait "$SAVER" 2>/dev/null
	SAVER=
}

# The newest generation that is whole in the store, in REPLY, and where in WHERE.
find_whole()
{
	local dir best=0
	WHERE=
	for dir in "$store/ckpt" "$store"/.cairn/previous/*; do
		generation_of "$dir" && [ "$REPLY" -gt $best ] &&
			is_whole "$dir" "$REPLY" "$(bytes_of "$REPLY")" && best=$REPLY WHERE=$dir
	done
	REPLY=$best
}

judge()
{
	find_whole
	[ "$REPLY" -ge "$newest" ] && [ "$REPLY" -gt 0 ] || {
		ls -lai "$store/ckpt" "$store"/.cairn/previous/*
		point_fail "$1: the newest whole generation is $REPLY, it was $newest"
	}
	newest=$REPLY
}

kill_everything()
{
	if [ $((RANDOM % 3)) = 0 ]; then
		kill -KILL "$WORKER" 2>/dev/null
		pick 0 60
		msleep "$REPLY"
	fi
	[ $((RANDOM % 2)) = 0 ] || saver_kill
	daemon_kill
	saver_kill
	mount_drop
}

one_point()
{
	point_begin "$1"
	set -m
	saver $(($(cat "$TMP/saving") + 1)) &
	SAVER=$!
	set +m
	pick 20 700
	msleep "$REPLY"
	kill_everything
	judge "killed"
	[ "$WHERE" = "$store/ckpt" ] && in_place=$((in_place + 1)) || kept=$((kept + 1))
	crash_mount "$store" $((SEED + 1))
	drain
	judge "after the next start"
	[ "$WHERE" != "$store/ckpt" ] && [ $((RANDOM % 2)) = 0 ] || return 0
	clean_stop
	"$BUILD/cairn" restore-previous "$store/ckpt" >/dev/null || point_fail "restore-previous"
	judge "restored"
	[ "$WHERE" = "$store/ckpt" ] || point_fail "restored, but $WHERE is the newest"
	restored=$((restored + 1))
	crash_mount "$store" $((SEED + 1))
}

on_exit saver_kill
crash_mount "$store"
echo 1 >"$TMP/saving"
save "$MNT/ckpt" 1 "$(bytes_of 1)" || die "the first generation"
drain
judge "the first generation"
for ((seed = CRASH_SEED; seed < CRASH_SEED + points; seed++)); do
	one_point "$seed"
done
clean_stop
note "$points kills during $(cat "$TMP/saving") saves: $in_place times whole in its place, $kept times kept; put back $restored times"
[ $kept -gt 0 ] && [ "$newest" -gt 1 ] || [ "$points" -lt 5 ] || die "no kill hit an overwrite"
