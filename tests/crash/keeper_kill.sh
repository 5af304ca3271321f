#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
#
# The keeper alone is killed: the worker serves on and gets another one by itself, so that a kill of
# the worker is a pause again; status and metrics tell. The kill of all, and of keeper and worker,
# ends the mount as ever, and the next start finds what was staged.
. "$(dirname "$0")/../lib/lib.sh"

store=$TMP/store mnt=$TMP/mnt
told() { [ "$(metric "$mnt" "$1")" = "$2" ]; }
new_keeper() { [ "$(keeper_pid "$mnt")" != "$1" ]; }
new_worker() { [ "$(worker_pid "$mnt")" != "$1" ]; }
# The spare is the child of the keeper that is named so.
spare_pid() { pgrep -P "$(keeper_pid "$mnt")" -x cairnfs-spare; }

kill_keeper()
{
	local keeper worker
	keeper=$(keeper_pid "$mnt") worker=$(worker_pid "$mnt")
	kill -KILL "$keeper"
	retry 20 new_keeper "$keeper" || die "$1: the worker got no other keeper"
	LIB_KEEPER[$mnt]=$(keeper_pid "$mnt")
	[ "$(worker_pid "$mnt")" = "$worker" ] || die "$1: another worker, though nobody killed it"
	retry 20 spare_pid >/dev/null || die "$1: the new keeper has no spare"
}

# A kill of the worker while files are open and written: no call fails.
kill_worker()
{
	local worker
	worker=$(worker_pid "$mnt")
	exec 8>"$mnt/open$1" || die "$1: open"
	echo before >&8 || die "$1: write"
	kill -KILL "$worker"
	echo after >&8 || die "$1: a write failed"
	exec 8>&- || die "$1: close"
	echo "$1" >"$mnt/f$1" || die "$1: a new file"
	new_worker "$worker" || die "$1: the killed worker answers"
}

start_mount "$store" "$mnt"
told keepers_replaced_total 0 || die "metrics without the number of keepers"
for ((i = 1; i <= 4; i++)); do
	kill_keeper "$i"
	told keeper_gone 0 || die "$i: metrics say that no keeper is there"
	told keepers_replaced_total "$i" || die "$i: metrics do not tell"
	COLUMNS=999 "$BUILD/cairn" status "$mnt" | has "has taken over" || die "$i: cairn status does not tell"
	[ $((i % 2)) = 0 ] || continue	# two keepers in a row, then the worker
	kill_worker "$i"	# not more: five deaths in ten seconds are too many
done
"$BUILD/cairn" wait -q "$mnt" || die "cairn wait"
for i in 2 4; do
	[ "$(cat "$store/f$i")" = "$i" ] || die "f$i is not in the store"
	[ "$(cat "$store/open$i")" = "before
after" ] || die "open$i is not in the store"
done

# A spare that is killed is made again.
old=$(spare_pid) || die "no spare"
kill -KILL "$old"
another_spare() { local s; s=$(spare_pid) && [ "$s" != "$old" ]; }
retry 20 another_spare || die "no other spare"

# The umount below a keeper that was the spare: all ends, nothing is left in memory.
kill_keeper umount
staging=$(status_field "$mnt" staging.dir)
echo on >"$mnt/on"
restarts=$(status_field "$mnt" restarts)
stop_mount "$mnt"
[ "$restarts" = 2 ] || die "$restarts workers were started again, not 2"
! has "the worker died.* times" "$store"/.cairn/*/log || die "a worker that ended well passed for one that died"
[ "$(grep -c "the worker died" "$store"/.cairn/*/log)" = 2 ] || die "more workers died than were killed"
[ "$(cat "$store/on")" = on ] || die "the store"
[ ! -d "$staging" ] || die "staging is left: $staging"

# SIGTERM as well.
start_mount "$store" "$mnt"
kill_keeper term
keeper=$(keeper_pid "$mnt")
echo term >"$mnt/term"
kill -TERM "$keeper"
retry 60 lib_pid_gone "$keeper" || die "the new keeper does not end by SIGTERM"
! is_mounted "$mnt" || die "SIGTERM: still mounted"
[ "$(cat "$store/term")" = term ] || die "SIGTERM: the store"

# Keeper and worker: that is the end, and no spare goes on.
start_mount "$store" "$mnt"
kill_keeper both
spare=$(spare_pid)
echo both >"$mnt/both"
kill -KILL "$(keeper_pid "$mnt")" "$(worker_pid "$mnt")"
retry 20 lib_pid_gone "$spare" || die "the spare of a killed mount goes on"
! ls "$mnt" >/dev/null 2>&1 || die "a killed mount answers"
start_mount "$store" "$mnt"
[ "$(cat "$mnt/both")" = both ] || die "what was staged is gone"

# All of them.
kill_keeper all
echo all >"$mnt/all"
kill_mount "$mnt"
start_mount "$store" "$mnt"
[ "$(cat "$mnt/all")" = all ] || die "what was staged is gone"

# Keeper and spare: the worker serves on, and it is told.
kill -KILL "$(spare_pid)" "$(keeper_pid "$mnt")"
retry 20 told keeper_gone 1 || die "metrics do not tell that no keeper is there"
COLUMNS=999 "$BUILD/cairn" status "$mnt" | has "nothing restarts it" || die "cairn status does not tell"
echo gone >"$mnt/gone" || die "the worker does not serve on"
"$BUILD/cairn" wait -q "$mnt" || die "cairn wait"
worker=$(worker_pid "$mnt")
umount "$mnt" || die "umount"
retry 60 lib_pid_gone "$worker" || die "the worker does not end"
[ "$(cat "$store/gone")" = gone ] || die "the store"
