#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# Programs that ignore what close(2) says save onto a store without space, and remove the checkpoint
# before when all seemed well: open(2) or write(2) must tell them.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

MIB=1048576
same() { cmp <(head -c "$3" /dev/zero | tr '\0' "\\$(printf %03o "$2")") "$1" >/dev/null; }

# save NAME MIB SEED: a trainer. It removes checkpoint/old only after a save without an error.
save() { helper careless "$mnt/$1" $(($2 * MIB)) "$3" >"$TMP/said.$3"; }
told()
{
	[ "$1" = 28 ] || die "$2: exit code $1, want ENOSPC: $(cat "$TMP"/said.*)"
	note "$2: $(cat "$TMP/said.$3")"
	rm -f "$TMP/said.$3"
}
old_is_there()
{
	within 60 "$BUILD/cairn" wait -q "$mnt/old-1" || die "$1: cairn wait for the old checkpoint"
	same "$store/old-1" 1 $((60 * MIB)) || die "$1: the old checkpoint is gone from the store"
	same "$mnt/old-1" 1 $((60 * MIB)) || die "$1: the old checkpoint is gone from the mount"
}

round()
{
	local rc i n=0
	disk=$TMP/$1 store=$TMP/$1/store mnt=$TMP/mnt-$1
	make_disk "$1" "$1" 512M
	start_mount "$store" "$mnt" staging=256M
	save old-1 60 1 || die "the first checkpoint: $(cat "$TMP"/said.*)"
	wait_durable "$mnt" 60
	leave_mib "$disk" 20

	# a name of known size, and one of unknown size
	rc=0; save old-2 60 2 || rc=$?
	told $rc "known size" 2
	rc=0; save shard.bin 60 3 || rc=$?
	told $rc "unknown size" 3
	rm -f "$mnt/old-2" "$mnt/shard.bin"
	old_is_there "new names"

	# a shell's > over the only checkpoint: the version before it stays in the store
	rc=0
	sh -c 'head -c 62914560 /dev/zero >"$1"' - "$mnt/old-1" 2>"$TMP/said.sh" || rc=$?
	[ $rc != 0 ] || die "a shell's > succeeded: $(cat "$TMP/said.sh")"
	same "$store/old-1" 1 $((60 * MIB)) || die "> over it: the old checkpoint is gone from the store"
	[ "$(state "$mnt/old-1")" = failed ] || die "> over it: state $(state "$mnt/old-1")"
	sleep 6		# what failed is tried again each 5 s; half a file is not to be published
	same "$store/old-1" 1 $((60 * MIB)) || die "half a file replaced the old checkpoint"
	rm "$mnt/old-1"
	wait_durable "$mnt" 60
	rm "$disk/filler"
	save old-1 60 1 || die "with space again: $(cat "$TMP"/said.*)"
	wait_durable "$mnt" 60
	leave_mib "$disk" 20

	# several at once: who was told nothing has all of it in the store
	pids=()
	for i in 11 12 13 14 15; do
		save "rank-$i" 8 $i &
		pids+=($!)
	done
	for i in 11 12 13 14 15; do
		rc=0; wait "${pids[i - 11]}" || rc=$?
		[ $rc = 0 ] || { told $rc "rank $i" $i; rm -f "$mnt/rank-$i"; continue; }
		n=$((n + 1))
		eval "ok_$i=1"
	done
	[ $n -lt 5 ] || die "40 MiB went into 20 MiB"
	wait_durable "$mnt" 60
	for i in 11 12 13 14 15; do
		[ -z "$(eval "echo \${ok_$i:-}")" ] || same "$store/rank-$i" $i $((8 * MIB)) || die "rank $i is not in the store"
		unset "ok_$i"
	done
	old_is_there "ranks"

	# small things, and space made by a removal that is still on its way
	echo small >"$mnt/small" || die "a small file"
	rm -f "$mnt"/rank-*
	save late.bin 12 21 || die "after a removal: $(cat "$TMP/said.21")"
	# an append finds no space either; what was there stays
	rc=0
	{ head -c 62914560 /dev/zero >>"$mnt/late.bin"; } 2>/dev/null || rc=$?
	[ $rc != 0 ] || die "an append succeeded"
	wait_durable "$mnt/small"
	retry 30 same "$store/late.bin" 21 $((12 * MIB)) || die "an append that failed changed the file in the store"
	rm "$mnt/late.bin" "$disk/filler"

	save spacious.bin 60 31 || die "with space again: $(cat "$TMP/said.31")"
	wait_durable "$mnt" 60
	# nothing that was held ahead of a writer stays allocated
	save rest.bin 9 32 && wait_durable "$mnt" 60
	for i in spacious.bin rest.bin old-1; do
		n=$(($(stat -c '%b * 512 - %s' "$store/$i")))
		[ $n -le 65536 ] || die "$i takes $n bytes more than its size"
	done
	end_mount "$mnt"
	"$BUILD/cairn" verify -q "$store" >/dev/null || die "verify"
	umount "$disk"
}

round ext4
[ "${TEST_ONE_OF:-1}" != 1 ] || round xfs
