#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 180
# A start that cannot serve leaves nothing behind: no staging, no mount, no page pool. What an earlier cairnfs left in
# staging stays, for the next start that can.
. "$(dirname "$0")/../lib/lib.sh"
need_root

s=$TMP/store m=$TMP/m run=$TMP/run
opts=staging=64M,pool=32M,fsync=staged,staging_dir=$run
mkdir "$run"

# starts STEP FUNCTION: with growing limits of open files up to the one with which it serves. FUNCTION is called, with
# a message, after those that failed, whose errors are in $TMP/errors.
starts()
{
	local n step=$1
	shift
	for ((n = 12; n <= 48; n += step)); do
		LIB_WRAP=(sh -c "ulimit -n $n; exec \"\$@\"" -)
		try_mount "$s" "$m" "$opts" 2>>"$TMP/errors" && break
		! mountpoint -q "$m" || die "$n descriptors: $m is still mounted"
		"$@" "$n descriptors: $(tail -n 1 "$TMP/errors")"
	done
	LIB_WRAP=()
}

nothing_left()
{
	retry 5 eval '[ -z "$(ls -A "$run")" ]' || die "$1: $(find "$run" | tr '\n' ' ')"
	! grep -q " $run" /proc/mounts || die "$1: $(grep " $run" /proc/mounts)"
}

starts 2 nothing_left
mountpoint -q "$m" && stop_mount "$m"
for e in 'cannot start a worker' 'cannot serve'; do
	grep -q "$e" "$TMP/errors" || die "none said: $e: $(cat "$TMP/errors")"
done

# What is staged: a file that was synced, and is open.
start_mount "$s" "$m" "$opts"
exec 7>"$m/open"
head -c 100000 "$BUILD/cairnfs" >&7
sync "$m/open"
kill_mount "$m"
exec 7>&-
[ ! -e "$s/open" ] || die "it is in the store"
: >"$TMP/errors"
# The starts that fail may publish it: then it need not stay.
something_left() { [ -e "$s/open" ] || [ -n "$(ls -A "$run")" ] || die "$1: what was staged is gone"; }
starts 4 something_left
[ -s "$TMP/errors" ] || die "each start served"
mountpoint -q "$m" || start_mount "$s" "$m" "$opts"
head -c 100000 "$BUILD/cairnfs" | cmp - "$m/open" || die "what was staged is lost"
stop_mount "$m"
nothing_left "the end"
