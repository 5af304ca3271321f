#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# Checkpoints are parsed by processes that can do nothing else. Whatever becomes of one (CAIRNFS_PARSER_FAULT)
# costs who asked an EIO, a notice tells, and the worker goes on with the next one.
. "$(dirname "$0")/../lib/lib.sh"
need_root
assets=$LIB_TOP/tests/assets

grep -q CAIRNFS_PARSER_FAULT "$BUILD/cairnfs" && die "cairnfs takes CAIRNFS_PARSER_FAULT"

# The error of reading PATH, or "ok".
read_of()
{
	python3 -c 'import errno, sys
try:
    open(sys.argv[1], "rb").read()
    print("ok")
except OSError as x:
    print(errno.errorcode[x.errno])' "$1"
}
# named PARENT NAME: its children of that name
named()
{
	local pid
	for pid in $(lib_children "$1"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$2" ] || echo "$pid"
	done
}
field() { awk -v n="$2:" '$1 == n { print $2 }' "/proc/$1/status"; }

# --- what it can do -----------------------------------------------------------------------------
start_mount "$TMP/store" "$TMP/m"
m=$TMP/m
cp -r "$assets/dcp" "$m/dcp"
[ "$(read_of "$m/.cairn/views/dcp/model.safetensors")" = ok ] || die "no view"
nursery=$(named "$(keeper_pid "$m")" cairnfs-nursery)
[ -n "$nursery" ] || die "no nursery"
# of the items of that checkpoint, and the next, which begins meanwhile
two_ready()
{
	local pid
	parsers=$(named "$nursery" cairnfs-parser)
	[ "$(wc -w <<<"$parsers")" = 2 ] || return
	for pid in $parsers; do
		[ "$(ls "/proc/$pid/fd")" = 0 ] && [ "$(field "$pid" Seccomp_filters)" -gt "$(field "$nursery" Seccomp_filters)" ] ||
			grep -qs . "$BUILD/sanitizer" || return
	done
}
retry 20 two_ready || die "parsers: $parsers, of $(lib_children "$nursery")"
for pid in $nursery $parsers; do
	name=$(cat "/proc/$pid/comm")
	# the worker's; the nursery has one more, to the parser that it has ready for who asks next
	[ "$(ls "/proc/$pid/fd")" = 0 ] || [ "$pid $(ls "/proc/$pid/fd" | tr '\n' ' ')" = "$nursery 0 1 " ] ||
		die "$name has open: $(ls -l "/proc/$pid/fd")"
	for fd in /proc/"$pid"/fd/*; do
		readlink "$fd" | has '^socket:' || die "$name: $(readlink "$fd")"
	done
	[ "$(readlink "/proc/$pid/cwd")" = / ] || die "$name is in $(readlink "/proc/$pid/cwd")"
	grep -q ' [rwx-]*s ' "/proc/$pid/maps" && die "$name shares memory: $(grep ' [rwx-]*s ' "/proc/$pid/maps")"
	grep -qs . "$BUILD/sanitizer" && continue
	for set in CapEff CapPrm CapInh CapAmb; do
		[ "$(field "$pid" $set)" = 0000000000000000 ] || die "$name has $set $(field "$pid" $set)"
	done
	[ "$(field "$pid" Seccomp)" = 2 ] && [ "$(field "$pid" NoNewPrivs)" = 1 ] || die "$name is not confined"
	awk '/Max address space/ { exit $4 == "unlimited" }' "/proc/$pid/limits" || die "$name may take any memory"
done

# it is gone with the worker, and the next worker has its own
kill -KILL "$(worker_pid "$m")"
for pid in $parsers; do
	retry 20 test ! -e "/proc/$pid" || die "parser $pid outlives the worker"
done
retry 20 test ! -e "/proc/$nursery" || die "the nursery outlives the worker"
[ "$(read_of "$m/.cairn/views/dcp/model.safetensors")" = ok ] || die "no view of the next worker"
nursery=$(named "$(keeper_pid "$m")" cairnfs-nursery)

# killed while they had nothing to do: who asks next has another
# shellcheck disable=SC2046	# several pids
kill -KILL $(named "$nursery" cairnfs-parser)
cp -r "$assets/dcp_local" "$m/other"
[ "$(read_of "$m/.cairn/views/other/model.safetensors")" = ok ] || die "after a parser's death"

# the nursery is replaced, and the worker goes on; what is asked meanwhile waits for the next one
worker=$(worker_pid "$m")
kill -KILL "$nursery"
cp -r "$assets/dcp" "$m/late"
got=$(read_of "$m/.cairn/views/late/model.safetensors")
[ "$got" = ok ] || die "after the nursery's death: $got, $(status_field "$m" notices)"
[ "$(named "$(keeper_pid "$m")" cairnfs-nursery)" != "$nursery" ] || die "it is not replaced"
[ "$(worker_pid "$m")" = "$worker" ] || die "another worker"
stop_mount "$m"

# --- what it may become -------------------------------------------------------------------------
# fault WHAT NTH NOTICE: the NTH parser does so
fault()
{
	local m=$TMP/$1 v=$TMP/$1/.cairn/views/run/model.safetensors worker got
	export CAIRNFS_PARSER_FAULT=$1:$2
	start_mount "$TMP/store-$1-$2" "$m"
	unset CAIRNFS_PARSER_FAULT
	worker=$(worker_pid "$m")
	cp -r "$assets/dcp" "$m/run"
	got=$(read_of "$v")	# of the second, what the kernel reads ahead fails, and it asks again
	[ "$got" = EIO ] || [ "$2 $got" = "2 ok" ] || die "$1 $2: no EIO, but $got"
	[ "$(read_of "$v")" = ok ] || die "$1 $2: the next one is not served: $(read_of "$v")"
	status_field "$m" notices | has "$3" || die "$1 $2: $(status_field "$m" notices)"
	[ "$(status_field "$m" parser_failures)" -ge 1 ] || die "$1 $2: it is not counted"
	[ "$(metric "$m" parser_failures_total)" -ge 1 ] || die "$1 $2: metrics"
	[ "$(worker_pid "$m")" = "$worker" ] && [ "$(status_field "$m" restarts)" = 0 ] || die "$1 $2: another worker"
	stop_mount "$m"
	note "$1 $2"
}
fault crash 1 'it died'
fault crash 2 'it died'		# at an item of a .distcp
fault nonsense 1 'answer was invalid'
if ! grep -qs . "$BUILD/sanitizer"; then
	fault memory 1 'it died\|more memory'
	fault open 1 'it died'
	fault socket 1 'it died'
fi
fault loop 1 'took too long'

# latest: what cannot be parsed is not safe, and the one before is
export CAIRNFS_PARSER_FAULT=crash:1
start_mount "$TMP/store-latest" "$m"
unset CAIRNFS_PARSER_FAULT
mkdir "$m/runs"
cp -r "$assets/dcp" "$m/runs/step_1"
cp -r "$assets/dcp" "$m/runs/step_2"
wait_durable "$m"
worker=$(worker_pid "$m")
# Asks once, which getfattr does not.
latest() { python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "user.cairn.latest").decode())' "$1"; }
got=$(latest "$m/runs")
[ "${got##*/}" = step_1 ] || die "latest: $got"
got=$(latest "$m/runs")
[ "${got##*/}" = step_2 ] || die "latest, again: $got"
status_field "$m" notices | has 'it died' || die "latest: $(status_field "$m" notices)"
[ "$(worker_pid "$m")" = "$worker" ] || die "latest: another worker"
stop_mount "$m"

# A commit that nobody could read waits for another node all the same, and is read again.
export CAIRNFS_PARSER_FAULT=crash:1
mkdir -p "$TMP/store-held/.cairn/another"
touch "$TMP/store-held/.cairn/another/lock"
start_mount "$TMP/store-held" "$m"
unset CAIRNFS_PARSER_FAULT
mkdir "$m/run"
cp "$assets/dcp/__0_0.distcp" "$assets/dcp/.metadata" "$m/run/"
is_held() { [[ $(status_field "$m" held) == *"__1_0.distcp is not in the store"* ]]; }
retry 20 is_held || die "held: $(status_field "$m" held), $(ls -A "$TMP/store-held/run")"
[ ! -e "$TMP/store-held/run/.metadata" ] || die "published before a shard that it lists"
status_field "$m" notices | has 'it died' || die "held: $(status_field "$m" notices)"
cp "$assets/dcp/__1_0.distcp" "$TMP/store-held/run/"
wait_durable "$m"
stop_mount "$m"
