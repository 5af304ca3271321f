#!/bin/bash
# SPDX-License-Identifier: MIT
#
# What `make bench` runs: every row of the table in docs/PERFORMANCE.md, in one go, on
# this machine. Writes build/bench/results.md and .json, and prints the table.
#
#   tools/bench.sh [-n ROUNDS] [-d DIR] [ROW...]
#
# ROW: write ext4 idle ranks durable read relay create small kill peers views export tensors
# (default: all).
# DIR lies on the disk to measure (default build/bench/work) and needs 14 GiB of room.
# Needs root (a tmpfs and cairnfs are mounted), fio, as a peer libfuse's passthrough_hp
# that tools/setup builds, and for export PyTorch (tests/ecosystem/install torch); what is missing
# is said and its figures are left out.
set -u

cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
rounds=5
work=$build/bench/work
all_rows='write ext4 idle ranks durable read relay create small kill peers views export tensors'

die() { echo "bench: $*" >&2; exit 1; }
say() { echo "bench: $*" >&2; }

while getopts n:d:h opt; do
	case $opt in
	n) rounds=$OPTARG ;;
	d) work=$OPTARG/cairn-bench-work ;;
	*) sed -n '4,14s/^# \?//p' "$0"; exit 2 ;;
	esac
done
shift $((OPTIND - 1))
rows=${*:-$all_rows}

bench=$(realpath "$build/cairn-bench") || die "$build/cairn-bench is missing: make"
cairnfs=$(realpath "$build/cairnfs") || die "$build/cairnfs is missing: make"
peer=$build/deps/bin/passthrough_hp
[ "$(id -u)" = 0 ] || die 'must be root: a tmpfs and cairnfs have to be mounted'
mkdir -p "$build/bench" "$work" || exit 1
out=$(realpath "$build/bench")
work=$(realpath "$work")
[ "$(df -Pk "$work" | awk 'NR==2{print int($4/1048576)}')" -ge 14 ] ||
	die "$work: less than 14 GiB free; -d names another directory"

mnt=$work/mnt stores=$work/stores disks=$work/disks tmp=$work/tmpfs ptmp=$work/peer-tmpfs
store='' disk=''
raw=$out/samples.tsv
: >"$raw"
mkdir -p "$mnt" "$stores" "$disks" "$tmp" "$ptmp" "$work"/peer-{disk,tmp}{,-copy}
# What is made below these is spread over the disk's block groups, as directories at the
# root are. Every row has directories of its own there: what the row before deleted makes
# creates slow in its block group for minutes on some ext4 (see docs/PERFORMANCE.md).
chattr +T "$stores" "$disks" 2>/dev/null

# --- mounts ---------------------------------------------------------------------------------

mounted() { mountpoint -q "$1"; }

# cairnfs drains before it lets go, and daemons end after their umount returned
unmount() {
	mounted "$1" || return 0
	for _ in $(seq 100); do
		umount "$1" 2>/dev/null
		mounted "$1" || { sleep 0.5; return 0; }
		sleep 0.3
	done
	say "$1 stays busy"
	return 1
}

cleanup() {
	trap - EXIT INT TERM
	local m
	for m in "$work"/peer-{disk,tmp}{,-copy} "$mnt" "$tmp" "$ptmp"; do
		unmount "$m"
	done
	mounted "$mnt" || mounted "$tmp" || mounted "$ptmp" || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

json_number() { grep -o "\"$2\"[: ]*[0-9.]*" "$1/.cairn/status.json" | head -1 | grep -o '[0-9.]*$'; }

fresh() {
	unmount "$mnt"
	store=$stores/$1 disk=$disks/$1
	mkdir -p "$store" "$disk"
}

# Mounts cairnfs and waits until its ballast is there.
mount_cairn() {
	unmount "$mnt" || return 1
	for _ in $(seq 60); do # the one before may still hold its lock
		"$cairnfs" "$store" "$mnt" "$@" 2>"$out/cairnfs.log" && break
		sleep 0.5
	done
	mounted "$mnt" || { cat "$out/cairnfs.log" >&2; die 'cairnfs does not mount'; }
	for _ in $(seq 120); do
		# it consists of whole huge pages, its target need not
		[ "$(json_number "$mnt" ballast_bytes)" -ge \
			$(($(json_number "$mnt" ballast_target_bytes) - 4194304)) ] 2>/dev/null &&
			return 0
		sleep 0.5
	done
	say 'the ballast is not whole after 60 s; going on'
}

mount_tmpfs() {
	mount -t tmpfs -o "size=8G,huge=always" cairn-bench "$1" 2>/dev/null ||
		mount -t tmpfs -o "size=8G" cairn-bench "$1" || die "no tmpfs at $1"
}

# passthrough_hp: $1 source, $2 mountpoint, the rest options
mount_peer() {
	local from=$1 at=$2
	shift 2
	"$peer" "$@" "$from" "$at" >>"$out/peer.log" 2>&1 &
	for _ in $(seq 50); do
		mounted "$at" && return 0
		sleep 0.1
	done
	say "passthrough_hp does not mount: $(tail -1 "$out/peer.log")"
	return 1
}

# --- measuring ------------------------------------------------------------------------------

# run NAME COMMAND ARGS...: cairn-bench, its samples kept under NAME
run() {
	local name=$1
	shift
	say "$name: cairn-bench $1 (load $(cut -d' ' -f1 /proc/loadavg))"
	"$bench" "$1" -n "$rounds" --tsv "${@:2}" >"$out/run.tsv" ||
		{ say "$name failed; left out"; return 1; }
	sed "s/^/$name\t/" "$out/run.tsv" >>"$raw"
	rm -f "$out/run.tsv"
}

# The same by bench_ckpt.py, of checkpoints that are in the store before it is mounted.
run_ckpt() {
	python3 tools/bench_ckpt.py --make "$1" "$store" || { say "$1: not made; left out"; return; }
	mount_cairn || return
	say "$1: bench_ckpt.py (load $(cut -d' ' -f1 /proc/loadavg))"
	if python3 tools/bench_ckpt.py -n "$rounds" --build "$build" "$1" "$store" "$mnt" >"$out/run.tsv"; then
		sed "s/^/$1\t/" "$out/run.tsv" >>"$raw"
	else
		say "$1 failed; left out"
	fi
	rm -f "$out/run.tsv"
	unmount "$mnt"
	rm -rf "${store:?}"/*
}

row_views() { run_ckpt views; }
row_export() { run_ckpt export; }
row_tensors() { run_ckpt tensors; }

row_write() {
	mount_cairn || return
	run write write mount="$mnt" tmpfs="$tmp"
	run write-1g write --source 1G mount="$mnt" tmpfs="$tmp"
}

row_ext4() {
	mount_cairn || return
	run ext4 write mount="$mnt" tmpfs="$tmp" disk+fsync="$disk" disk="$disk"
}

row_idle() {
	mount_cairn || return
	run idle write --idle 60 mount="$mnt" tmpfs="$tmp"
}

row_ranks() {
	mount_cairn || return
	run ranks write -r 4 -s 512M mount="$mnt" tmpfs="$tmp"
}

row_durable() {
	command -v fio >/dev/null || { say 'durable: no fio, left out'; return; }
	mount_cairn || return
	rm -f "$out/fio.txt"
	run durable write --between "fio --name=bench --filename=$disk/fio --size=1G --bs=4M \
		--iodepth=8 --ioengine=io_uring --direct=1 --rw=write --fallocate=native \
		--end_fsync=1 --minimal >>$out/fio.txt; rm -f $disk/fio" mount="$mnt" || return
	awk -F';' '{printf "durable\tfio\tclose->durable\tGB/s\t%.6g\n", $48 * 1024 / 1e9}' \
		"$out/fio.txt" >>"$raw"
}

row_read() {
	mount_cairn || return
	run staged read mount="$mnt" tmpfs="$tmp"
	head -c 1G /dev/urandom >"$mnt/read" && unmount "$mnt" && mount_cairn || return
	run stored read mount="$mnt/read" store="$store/read"
	rm -f "$mnt/read"
}

row_relay() {
	mount_cairn -o nopassthrough || return
	run relay write mount="$mnt" tmpfs="$tmp"
	unmount "$mnt"
}

row_small() {
	mount_cairn || return
	run small small mount+cp="$mnt" mount="$mnt" disk+cp="$disk"
}

row_create() {
	mount_cairn || return
	run create create mount="$mnt" disk="$disk"
}

row_kill() {
	mount_cairn || return
	run kill latency --kill 20 mount="$mnt"
}

row_peers() {
	local p=$work/peer variants
	[ -x "$peer" ] || { say 'peers: passthrough_hp is not built (tools/setup), left out'; return; }
	mount_cairn || return
	mkdir -p "$disk/peer" "$disk/peer-copy" "$ptmp/pass" "$ptmp/copy"
	mount_peer "$disk/peer" "$p-disk" && mount_peer "$ptmp/pass" "$p-tmp" &&
		mount_peer "$disk/peer-copy" "$p-disk-copy" --nopassthrough &&
		mount_peer "$ptmp/copy" "$p-tmp-copy" --nopassthrough || return
	variants="hp-disk=$p-disk hp-disk-copy=$p-disk-copy hp-tmpfs=$p-tmp hp-tmpfs-copy=$p-tmp-copy"
	# shellcheck disable=SC2086 # a list of words; the paths are made here
	{
		run peer-write write -s 512M mount="$mnt" $variants tmpfs="$tmp"
		run peer-read read -s 512M mount="$mnt" $variants tmpfs="$tmp"
		run peer-create create mount="$mnt" $variants disk="$disk"
	}
	for variants in "$p"-{disk,tmp}{,-copy}; do
		unmount "$variants"
	done
}

# --- the table ------------------------------------------------------------------------------

# id | measure | unit | of: RUN/LABEL/METRIC | against (or -) | >= or <= | target
# "against" empty: the figure itself is compared, "ratio" otherwise.
table() {
	cat <<-'E'
	1|write+close 1 GiB, fast lane / raw tmpfs|write/mount/write+close|write/tmpfs/write+close|>=|0.90
	1b|the same, source of 1 GiB (beyond the CPU cache)|write-1g/mount/write+close|write-1g/tmpfs/write+close|>=|0.90
	2a|write+close / page cache write+close of the disk's filesystem|ext4/mount/write+close|ext4/disk/write+close|>=|3
	2b|write+close / write+fsync+close of the disk's filesystem|ext4/mount/write+close|ext4/disk+fsync/write+close|>=|5
	2c|the limit of 2a: raw tmpfs / page cache write+close|ext4/tmpfs/write+close|ext4/disk/write+close|>=|0
	2d|the limit of 2b: raw tmpfs / write+fsync+close|ext4/tmpfs/write+close|ext4/disk+fsync/write+close|>=|0
	3|the same after 60 s idle / warm raw tmpfs|idle/mount/write+close|idle/tmpfs/write+close|>=|0.90
	4|4 ranks x 512 MiB / 4 writers on the raw tmpfs|ranks/mount/write+close|ranks/tmpfs/write+close|>=|0.85
	5|close to durable, 1 GiB / fio io_uring O_DIRECT, preallocated|durable/mount/close->durable|durable/fio/close->durable|>=|0.90
	6a|read of a staged file / raw tmpfs|staged/mount/read|staged/tmpfs/read|>=|0.95
	6b|read of a durable file / the store file itself|stored/mount/read|stored/store/read|>=|0.95
	7|relay lane write+close, GB/s|relay/mount/write+close|-|>=|2
	7b|relay lane / raw tmpfs|relay/mount/write+close|relay/tmpfs/write+close|>=|0.25
	8|10,000 x 4 KiB, closed to all durable / cp -r + sync (time)|small/mount/closed->durable|small/disk+cp/total|<=|3
	8b|the same, first create to all durable (time)|small/mount/total|small/disk+cp/total|<=|3
	8c|the same with cp -r into the mount (time)|small/mount+cp/total|small/disk+cp/total|<=|3
	9|create + 64 KiB + close + unlink / the disk's filesystem (time)|create/mount/cycle|create/disk/cycle|<=|4
	9b|the seven trips of row 9, nothing done in them / the same|create/mount/trips|create/disk/cycle|>=|0
	10|daemon CPU for 1 GiB written and persisted, s|write/mount/daemon CPU|-|<=|0.25
	11a|worker killed 20 times in a 4-rank save: errors|kill/mount/errors|-|<=|0
	11b|the same: longest stall of a call, ms|kill/mount/stall|-|<=|500
	12a|view of 1 GiB in dimension 0, cold / its shards in the mount|views/rows view/cold|views/rows shards/cold|>=|0.8
	12b|the same, columns|views/columns view/cold|views/columns shards/cold|>=|0.5
	12c|dimension 0, shards cached, view not / shards cached|views/rows view/shards cached|views/rows shards/cached|>=|0.15
	12d|the same, columns|views/columns view/shards cached|views/columns shards/cached|>=|0.15
	13a|dcp_to_torch_save of 4 GiB / cairn export --format torch, cold, from the store (time)|export/dcp_to_torch_save/cold|export/store/cold|>=|3
	13b|the same, from the mount|export/dcp_to_torch_save/cold|export/mount/cold|>=|3
	13c|the most that 13a can be: the same bytes copied by four threads past the page cache|export/dcp_to_torch_save/cold|export/blocks/cold|>=|0
	13d|shards in the page cache, from the store|export/dcp_to_torch_save/cached|export/store/cached|>=|3
	13e|the same, from the mount|export/dcp_to_torch_save/cached|export/mount/cached|>=|3
	13f|largest memory of cairn export, MiB|export/mount/memory|-|<=|64
	14|cairn tensors of 100,000 tensors, s|tensors/text/time|-|<=|1
	14b|pickle.load of the same .metadata with PyTorch / cairn tensors (time)|tensors/pickle.load/time|tensors/text/time|>=|1
	E
}

journal() {
	case $(cat "/sys/fs/ext4/$1/journal_task" 2>/dev/null) in
	'') echo 'not ext4' ;;
	'<none>') echo 'without a journal' ;;
	*) echo 'with a journal' ;;
	esac
}

machine() {
	local dev
	dev=$(df -P "$work" | awk 'NR==2{print $1}')
	echo "CPU: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores"
	echo "memory: $(awk '/MemTotal/{printf "%.1f GiB", $2/1048576}' /proc/meminfo)"
	echo "kernel: $(uname -sr)"
	echo "store and disk: $(findmnt -nT "$work" -o FSTYPE) on $dev ($(journal "${dev##*/}"))," \
		"options $(findmnt -nT "$work" -o OPTIONS), write cache:" \
		"$(cat "/sys/block/${dev##*/}/queue/write_cache" 2>/dev/null || echo '?')"
	echo "raw tmpfs: $(findmnt -no OPTIONS "$tmp" 2>/dev/null)"
	echo "cairnfs: $(git describe --always --dirty 2>/dev/null), $rounds rounds, $(date -u +%FT%RZ)"
	echo "load before: $load_before (other work on the machine makes figures worse and spreads wider)"
}

load_before=$(cut -d' ' -f1-3 /proc/loadavg)
mount_tmpfs "$tmp"
mount_tmpfs "$ptmp"
for row in $rows; do
	case " $all_rows " in
	*" $row "*) fresh "$row" && "row_$row" ;;
	*) die "no row $row; there are: $all_rows" ;;
	esac
done
machine >"$out/machine.txt"
table | awk -v raw="$raw" -v machine="$out/machine.txt" -v json="$out/results.json" \
	-f tools/bench_table.awk >"$out/results.md" || die 'no table'
cat "$out/results.md"
say "written: ${out#"$PWD"/}/results.md, results.json"
