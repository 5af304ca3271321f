#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# A store without space: close and fsync say ENOSPC, nothing accepted is lost, deletes free.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

make_disk small ext4 96M
store=$TMP/small/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=256M

# Status tells the space that is free now, whoever took it.
for mib in 10 20 30; do
	fallocate -l ${mib}M "$TMP/small/other"
	sleep 0.3 # a status is as old at most
	free=$(free_mib "$TMP/small") told=$(($(status_field "$mnt" space.free_bytes) >> 20))
	[ $((told - free)) -le 1 ] && [ $((free - told)) -le 1 ] ||
		die "status has $told MiB free, the store's filesystem $free, with $mib MiB of others"
done
rm "$TMP/small/other"

put() { helper files put "$mnt/$1" "$2" "$3" ${4:+"$4"} >"$TMP/said"; }

# The write before it may fail as well where the file is kept in the store from the start.
full()
{
	[ "$1" = 28 ] || die "$2: exit code $1, want ENOSPC: $(cat "$TMP/said")"
	grep -Eq '^(close|fsync|write|open) ' "$TMP/said" || die "$2: $(cat "$TMP/said")"
}

fill()
{
	local rc
	for accepted in $(seq 0 99); do
		rc=0
		put "f$accepted" 8000000 "$accepted" || rc=$?
		[ $rc = 0 ] || break
	done
	full $rc "filling up"
	[ "$accepted" -ge 5 ] || die "only $accepted files of 8 MB went into 96 MiB"
	rm -f "$mnt/f$accepted"
}

accepted_are_there()
{
	local i
	wait_durable "$mnt" 60
	for i in $(seq "$1" $((accepted - 1))); do
		helper files same "$mnt/f$i" 8000000 "$i" || die "$2: f$i in the mount"
		helper files same "$store/f$i" 8000000 "$i" || die "$2: f$i in the store"
	done
}

fill
note "$accepted files of 8 MB accepted, then $(cat "$TMP/said")"
accepted_are_there 0 "full"

# fsync tells too, and reading and small things go on.
rc=0
put late 20000000 50 fsync || rc=$?
full $rc "fsync on a full store"
rm -f "$mnt/late"
mkdir "$mnt/d" && mv "$mnt/f0" "$mnt/d/f0" && mv "$mnt/d/f0" "$mnt/f0" || die "names on a full store"

# A delete frees, also one that is only queued when the next file is closed.
rm "$mnt/f0" "$mnt/f1"
put new 12000000 60 || die "no space after a delete: $(cat "$TMP/said")"
rm "$mnt/f2"
accepted_are_there 3 "after deletes"
helper files same "$store/new" 12000000 60 || die "the new file"
[ ! -e "$store/f2" ] || die "f2 was deleted"

# Overwrite in place on a full store: the old stays until there is space for the new.
fill_rest() { local i=0; while put "x$i" 2000000 "$i"; do i=$((i + 1)); done; rm -f "$mnt/x$i"; }
fill_rest
rc=0
put f4 30000000 70 || rc=$?
full $rc "overwriting a file with a larger one"
[ "$(state "$mnt/f4")" = failed ] || die "a close that failed, and the state is $(state "$mnt/f4")"
xattr "$mnt/f4" user.cairn.error | has -i space || die "user.cairn.error: $(xattr "$mnt/f4" user.cairn.error)"
helper files same "$store/f4" 8000000 4 || die "the old f4 is not in the store any more"
# (The write failed. That of a close which fails all the same is full_late.sh's.)
[ "$(stat -c %s "$mnt/f4")" -lt 30000000 ] || die "f4 has $(stat -c %s "$mnt/f4") bytes in the mount"
helper files same "$store/f5" 8000000 5 || die "f5"
# With space again nobody publishes what is not whole; written again it is.
rm -f "$mnt"/x* "$mnt/new" "$mnt/f6" "$mnt/f7"
echo retry >"$mnt/.cairn/control" || die "control"
helper files same "$store/f4" 8000000 4 || die "half of f4 was published"
put f4 30000000 70 || die "f4 written again: $(cat "$TMP/said")"
wait_durable "$mnt" 60
helper files same "$store/f4" 30000000 70 || die "f4 was written again, and is not in the store"
rm "$mnt/f4"

# Deletes behind files that wait: in the end there is space, and it all comes out.
for i in 3 $(seq 5 $((accepted - 1))); do
	rm -f "$mnt/f$i"
	put "g$i" 8000000 $((100 + i)) || die "g$i: $(cat "$TMP/said")"
done
wait_durable "$mnt" 60
for i in 3 $(seq 5 $((accepted - 1))); do
	helper files same "$store/g$i" 8000000 $((100 + i)) || die "g$i in the store"
done
end_mount "$mnt"
start_mount "$store" "$mnt" staging=256M
same_tree "$mnt" "$store"
end_mount "$mnt"
