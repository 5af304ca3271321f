#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
#
# Equal files are stored once where the store has shared extents: within a checkpoint, against
# the one before, also after a restart. Nothing but the space they take tells.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool filefrag
make_disk disk xfs 600M
store=$TMP/disk/store mnt=$TMP/mnt cairn=$BUILD/cairn size=$((8 << 20))

is_shared() { filefrag -v "$1" | has shared; }
whole_shared() { [ "$(filefrag -v "$1" | awk '$1 ~ /^[0-9]+:$/ && !/shared/' | wc -l)" = 0 ]; }
dedup_files() { [ "$(status_field "$mnt" dedup.files)" = "$1" ]; }
wait_dedup() { retry 30 dedup_files "$1" || die "dedup: $(status_field "$mnt" dedup), wanted $1 files"; }
has_thread() { grep -qsx cairn-dedup "/proc/$(worker_pid "$mnt")/task/"*/comm; }
no_thread() { ! has_thread; }
# It sleeps until the end: half a second without being scheduled once.
switches() { grep -h ctxt_switches "$1"; }
sleeps()
{
	local task before
	task=$(grep -lsx cairn-dedup "/proc/$(worker_pid "$mnt")/task/"*/comm) || return 1
	before=$(switches "${task%/comm}/status")
	sleep 0.5
	[ "$(switches "${task%/comm}/status")" = "$before" ]
}

head -c $size /dev/urandom >"$TMP/weights"
head -c $size /dev/urandom >"$TMP/others"
head -c 300001 /dev/urandom >"$TMP/odd"	# its tail is no whole block

start_mount "$store" "$mnt" staging=256M	# nobody asks for it
retry 10 has_thread || die "no thread looks for equal files"
mkdir -p "$mnt/run/step-1" "$mnt/run/step-2"

# two ranks' replicas, the second with its own mode and time
cp "$TMP/weights" "$mnt/run/step-1/rank0"
cp "$TMP/weights" "$mnt/run/step-1/rank1"
chmod 600 "$mnt/run/step-1/rank1"
touch -c -d @1000000002.123456789 "$mnt/run/step-1/rank1"	# -c: else it opens for writing, a version more
cp "$TMP/others" "$mnt/run/step-1/optim"
cp "$TMP/odd" "$mnt/run/step-1/odd"
wait_durable "$mnt"
sum=$(xattr "$mnt/run/step-1/rank1" user.cairn.checksum)
wait_dedup 1
[ "$(status_field "$mnt" dedup.bytes)" = $size ] || die "bytes: $(status_field "$mnt" dedup)"

# the next checkpoint: one file as it was, one that was written beside and renamed, one new
cp "$TMP/weights" "$mnt/run/step-2/rank0"
cp "$TMP/odd" "$mnt/run/step-2/odd.tmp"
mv "$mnt/run/step-2/odd.tmp" "$mnt/run/step-2/odd"
head -c $size /dev/urandom >"$mnt/run/step-2/rank1"
wait_durable "$mnt"
wait_dedup 3

for f in step-1/rank0 step-1/rank1 step-2/rank0 step-1/odd step-2/odd; do
	whole_shared "$store/run/$f" || die "$f: $(filefrag -v "$store/run/$f")"
done
for f in step-1/optim step-2/rank1; do
	is_shared "$store/run/$f" && die "$f shares blocks, and with whom?"
done
[ "$(stat -c '%.9Y %a' "$store/run/step-1/rank1")" = "1000000002.123456789 600" ] ||
	die "rank1: $(stat -c '%.9Y %a' "$store/run/step-1/rank1")"
[ "$(stat -c '%h %a' "$store/run/step-1/rank0")" = "1 644" ] || die "rank0: $(stat "$store/run/step-1/rank0")"
[ "$(xattr "$store/run/step-1/rank1" user.cairn.checksum)" = "$sum" ] || die "another checksum"
same_tree "$mnt" "$store"
"$cairn" verify -q "$mnt" || die "verify"
grep -q "dedup .* saved: 3 files" <<<"$(COLUMNS=999 "$cairn" status "$mnt")" || die "status: $("$cairn" status "$mnt")"
grep -q "dedup .* saved: 3 files" "$mnt/.cairn/status" || die "status: $(cat "$mnt/.cairn/status")"
[ "$(metric "$mnt" dedup_files_total)" = 3 ] || die "metrics"

# one is written over, one is removed: the third is what it was
cp "$TMP/others" "$mnt/run/step-1/rank1"
rm "$mnt/run/step-1/rank0"
wait_durable "$mnt"
wait_dedup 4	# rank1 is as optim now
cmp "$TMP/weights" "$store/run/step-2/rank0" || die "step-2/rank0 changed"
cmp "$TMP/others" "$store/run/step-1/rank1" || die "step-1/rank1"
cmp "$TMP/others" "$store/run/step-1/optim" || die "step-1/optim"
stop_mount "$mnt"

# a daemon that knows of no file finds the checkpoint before
start_mount "$store" "$mnt" staging=256M,dedup
mkdir "$mnt/run/step-3"
cp "$TMP/weights" "$mnt/run/step-3/rank0"
wait_durable "$mnt"
wait_dedup 1
whole_shared "$store/run/step-3/rank0" || die "step-3/rank0: $(filefrag -v "$store/run/step-3/rank0")"

# and a copy of an old file, wherever it is made, for the kernel tells what it copies (clone.sh)
python3 - "$mnt/run/step-2/rank1" "$mnt/best" <<'EOF' || die "copy_file_range"
import os, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
while os.copy_file_range(a, b, 1 << 30):
    pass
EOF
cmp "$mnt/run/step-2/rank1" "$mnt/best" || die "the copy differs"
wait_durable "$mnt"
wait_dedup 2
whole_shared "$store/best" || die "best: $(filefrag -v "$store/best")"
cmp "$store/run/step-2/rank1" "$store/best" || die "the copy differs in the store"
"$cairn" verify -q "$mnt" || die "verify after the restart"
stop_mount "$mnt"

# not wanted
start_mount "$store" "$mnt" staging=256M,nodedup
no_thread || die "nodedup: a thread looks for equal files"
mkdir "$mnt/run/step-4"
cp "$TMP/weights" "$mnt/run/step-4/rank0"
cp "$TMP/weights" "$mnt/run/step-4/rank1"
wait_durable "$mnt"
stop_mount "$mnt"
for f in step-4/rank0 step-4/rank1; do
	is_shared "$store/run/$f" && die "nodedup: $f shares blocks"
done

# a store that cannot: nothing happens and nobody is told
make_disk plain ext4 200M
store=$TMP/plain/store
start_mount "$store" "$mnt" staging=256M
errors=$(status_field "$mnt" errors.count) notices=$(status_field "$mnt" notices)
cp "$TMP/weights" "$mnt/a"
cp "$TMP/weights" "$mnt/b"
wait_durable "$mnt"
retry 30 sleeps || die "ext4: the thread goes on"
[ "$(status_field "$mnt" dedup.files)" = 0 ] || die "ext4: $(status_field "$mnt" dedup)"
[ "$(status_field "$mnt" errors.count)" = "$errors" ] || die "ext4: errors: $(status_field "$mnt" errors)"
[ "$(status_field "$mnt" notices)" = "$notices" ] || die "ext4: notices: $(status_field "$mnt" notices)"
"$cairn" verify -q "$mnt" || die "ext4: verify"
stop_mount "$mnt"
cmp "$store/a" "$store/b" || die "ext4: contents"
