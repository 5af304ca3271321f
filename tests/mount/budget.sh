#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# More than staging has space for: slower, never an error.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=64M

# One file three times as large as staging.
helper files put "$mnt/huge" 201326592 1 || die "a file of 192 MiB into 64 MiB of staging"
helper files same "$mnt/huge" 201326592 1 || die "read back"
dd if="$mnt/huge" of="$mnt/copy" bs=1M status=none || die "dd"
cmp "$mnt/huge" "$mnt/copy" || die "the copy differs"
wait_durable "$mnt"
helper files same "$store/copy" 201326592 1 || die "in the store"
rm "$mnt/huge" "$mnt/copy"

# Through the daemon a file that outgrows the budget is spilled, and memory stays what was given.
if [ "$MODE" = relay ]; then
	dir=$(status_field "$mnt" staging.dir)
	mkfifo "$TMP/held"
	helper files hold "$mnt/grown" 201326592 2 <"$TMP/held" >"$TMP/out" &
	pid=$!
	exec 9>"$TMP/held"
	retry 60 grep -q written "$TMP/out" || die "no 192 MiB into 64 MiB of staging"
	kib=$(du -sk "$dir" | cut -f1)
	[ "$kib" -lt 98304 ] || die "staging=64M holds $kib KiB of one file"
	exec 9>&-
	wait "$pid" || die "the holder failed"
	helper files same "$mnt/grown" 201326592 2 || die "read back"
	rm "$mnt/grown" "$TMP/held" "$TMP/out"
fi

# Many writers at once, together four times staging; and again over the same names.
for round in 1 2; do
	pids=
	for i in $(seq 16); do
		helper files put "$mnt/w$i" 16000000 $((round * 100 + i)) &
		pids="$pids $!"
	done
	for pid in $pids; do
		wait "$pid" || die "a writer failed: exit code $?"
	done
	for i in $(seq 16); do
		helper files same "$mnt/w$i" 16000000 $((round * 100 + i)) || die "w$i"
	done
done
wait_durable "$mnt"
for i in $(seq 16); do
	helper files same "$store/w$i" 16000000 $((200 + i)) || die "w$i in the store"
done

# More files held open at once than there is space for (2 MiB each is the least on huge pages).
mkfifo "$TMP/go"
pids=
for i in $(seq 48); do
	helper files hold "$mnt/o$i" 3000000 "$i" <"$TMP/go" >>"$TMP/out" &
	pids="$pids $!"
done
exec 9>"$TMP/go"
all_written() { [ "$(grep -c written "$TMP/out")" = 48 ]; }
retry 100 all_written || die "only $(grep -c written "$TMP/out") of 48 can hold a file open"
exec 9>&-
for pid in $pids; do
	wait "$pid" || die "a holder failed"
done
for i in $(seq 48); do
	helper files same "$mnt/o$i" 3000000 "$i" || die "o$i"
done
wait_durable "$mnt"
same_tree "$mnt" "$store"
used=$(status_field "$mnt" staging.used_bytes)
budget=$(status_field "$mnt" staging.budget_bytes)
[ "$used" -le $((budget * 5 / 4)) ] || die "staging holds $used of $budget bytes when all is durable"
end_mount "$mnt"

# A run that goes on after a restart: the shard's size is known from the store's last checkpoint,
# so its memory is there before the first byte.
store=$TMP/run-store
start_mount "$store" "$mnt" staging=256M
mkdir -p "$mnt/run/step-1"
helper files put "$mnt/run/step-1/__0_0.distcp" 50000000 1 || die "put"
wait_durable "$mnt"
end_mount "$mnt"
start_mount "$store" "$mnt" staging=256M
mkdir "$mnt/run/step-2"
mkfifo "$TMP/go2"
helper files hold "$mnt/run/step-2/__0_0.distcp" 1000 1 <"$TMP/go2" >"$TMP/out2" &
pid=$!
exec 9>"$TMP/go2"
retry 20 grep -q written "$TMP/out2" || die "hold"
used=$(status_field "$mnt" staging.used_bytes)
exec 9>&-
wait $pid || die "the holder"
[ "$used" -ge 50000000 ] || die "the size in the store was not found: $used bytes of staging taken at the open"
wait_durable "$mnt"
used=$(status_field "$mnt" staging.used_bytes)
[ "$used" -lt 10000000 ] || die "what was expected and not written is still taken: $used bytes"
end_mount "$mnt"
