#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 240
# A store that stops answering, as a hard mount of a network filesystem does when its server stops: each call to it
# waits. Status, metrics, control and what is known of the store are answered all the while, requests that wait for the
# store do not hold up others, and when the store answers again everything is durable, and in order.
. "$(dirname "$0")/../lib/lib.sh"

need_root
[ -c /dev/fuse ] || skip "needs /dev/fuse"
src=$TMP/src store=$TMP/store mnt=$TMP/mnt hang=$TMP/hang
mkdir "$src" "$store"
helper hang_store "$src" "$store" "$hang" || skip "no FUSE mount here"
unhang() { rm -f "$hang"; }
# in this order: what waits goes on, the mount ends, its store is unmounted
on_exit 'unhang; ! is_mounted "$mnt" || retry 20 umount "$mnt"; retry 20 umount "$store" 2>/dev/null || umount -l "$store"'

# Begins a command, and leaves it behind: one that waits for a mount is not ended even by SIGKILL. answered N: it ended.
n=0
begin() { n=$((n + 1)); { "$@" >"$TMP/out.$n" 2>&1; echo $? >"$TMP/rc.$n"; } & }
ended() { [ -s "$TMP/rc.$1" ]; }
# The command, which is not to wait for the store. Its output is in $TMP/out.
answers()
{
	begin "$@"
	retry 10 ended $n || { unhang; die "waits for the store: $*"; }
	cp "$TMP/out.$n" "$TMP/out"
	[ "$(cat "$TMP/rc.$n")" = 0 ] || { unhang; die "$*: $(cat "$TMP/out.$n")"; }
}
shows() { answers "$@"; has "$what" <"$TMP/out"; }
told() { what=$1; shift; retry 10 shows "$@" || { unhang; die "no '$what' in $*: $(cat "$TMP/out")"; }; }

start_mount "$store" "$mnt"
mkdir -p "$src/run/never-listed"
mkdir -p "$mnt/run/step-1" "$mnt/run/step-2"
head -c 3000000 /dev/urandom >"$mnt/run/step-1/shard"
echo small >"$mnt/run/step-1/small"
wait_durable "$mnt"
[ "$(status_field "$mnt" store_silent)" = null ] || die "silent: $(status_field "$mnt" store_silent)"
[ "$(metric "$mnt" store_silent_seconds)" = 0 ] || die "metrics: $(metric "$mnt" store_silent_seconds)"
ls "$mnt" "$mnt/run" "$mnt/run/step-1" >/dev/null # what is listed is known
sleep 1.5 # longer than the kernel keeps names and attributes: it asks for each again

touch "$hang"
answers cat "$mnt/.cairn/status"
told "STORE SILENT for" cat "$mnt/.cairn/status"
told "STORE SILENT" env COLUMNS=999 "$BUILD/cairn" status "$mnt"
told '"store_silent": {"since_s": ' cat "$mnt/.cairn/status.json"
told '^cairnfs_store_silent_seconds{[^}]*} [0-9.]*[1-9]' cat "$mnt/.cairn/metrics"
answers "$BUILD/cairn" metrics "$mnt"
# not looked up before, beside a lookup that waits
begin ls "$mnt/.cairn/latest"
sleep 1.5
answers cat "$mnt/.cairn/files.json"
answers stat "$mnt/run/step-1/shard"
answers df "$mnt"

# a save, into directories that are known and new ones
head -c 5000000 /dev/urandom >"$TMP/bytes"
answers sh -c "echo more >'$mnt/run/step-1/more'"
answers cp "$TMP/bytes" "$mnt/run/step-1/large"
answers mkdir "$mnt/run/step-3"
answers cp "$TMP/bytes" "$mnt/run/step-3/shard-0"
answers cp "$TMP/bytes" "$mnt/run/step-3/shard-1"
answers sh -c "echo commit >'$mnt/run/step-3/.tmp' && mv '$mnt/run/step-3/.tmp' '$mnt/run/step-3/commit'"
answers cmp "$TMP/bytes" "$mnt/run/step-3/shard-1"
answers ls "$mnt/run/step-1/more" "$mnt/run/step-3/commit"
answers sh -c "cp '$mnt/run/step-1/shard' '$TMP/copy'" # it is still staged

# more requests than there are threads, which only the store can answer
for i in {1..40}; do begin stat "$mnt/run/never-listed/unknown-$i"; done
sleep 0.5
answers cat "$mnt/.cairn/status"
answers stat "$mnt/run/step-1/small"
answers "$BUILD/cairn" retry "$mnt"
for ((i = 1; i <= n; i++)); do
	ended "$i" || waits=1
done
[ "${waits-}" ] || die "no request waits for the store: it did not hang"

[ ! -e "$src/run/step-3" ] || die "published though the store hangs"
unhang
retry 30 test -e "$src/run/step-3/commit" || die "not published though the store answers"
for i in 0 1; do
	cmp "$TMP/bytes" "$src/run/step-3/shard-$i" || die "shard $i is not complete in the store, its commit is there"
done
cmp "$TMP/bytes" "$src/run/step-1/large" || die "an earlier file is not in the store"
all_ended() { for ((i = 1; i <= n; i++)); do ended "$i" || return 1; done; }
retry 30 all_ended || die "requests still wait though the store answers"
answering() { [ "$(status_field "$mnt" store_silent)" = null ]; }
retry 10 answering || die "still silent: $(status_field "$mnt" store_silent)"
wait_durable "$mnt"
same_tree "$mnt" "$src"
stop_mount "$mnt"
