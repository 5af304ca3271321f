#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
#
# A large file is persisted while it is written: through passthrough, over deaths of the worker and of everything.
. "$(dirname "$0")/../lib/lib.sh"

need_tool python3
store=$TMP/store mnt=$TMP/mnt
size=160	# MiB
opts=staging=1G

early() { metric "$mnt" early_bytes_total; }
data() { helper files put "$TMP/want" $((size << 20)) "$1" || die "put"; }

start_mount "$store" "$mnt" "$opts"
need_passthrough "$mnt"
[ "$(stat -f -c %T "$store")" != tmpfs ] || skip "the store has no O_DIRECT"

# It stays open meanwhile, and is changed where it is persisted already. One process has it open all the time: with the
# end of another that shares the descriptor its blocks would be allocated (FLUSH), and nothing more is early then.
data 1
mkfifo "$TMP/go"
python3 - "$TMP/want" "$mnt/shard" "$TMP/go" <<'END' &
import sys
with open(sys.argv[1], "rb") as want, open(sys.argv[2], "wb", buffering=0) as shard:
    while piece := want.read(8 << 20):
        shard.write(piece)
    open(sys.argv[3]).read()
    shard.seek(5000000)
    shard.write(b"changed")
END
writer=$!
is_early() { [ "$(early)" -ge $(((size - 40) << 20)) ]; }
retry 100 is_early || die "only $(early) bytes were persisted early: $(head -c 4000 "$mnt/.cairn/status.json")"
[ ! -e "$store/shard" ] || die "it has its name before it is closed"
printf changed | dd of="$TMP/want" bs=1 seek=5000000 conv=notrunc status=none
: >"$TMP/go"
wait $writer || die "write"
wait_durable "$mnt"
cmp "$TMP/want" "$store/shard" || die "the store has other bytes"
"$BUILD/cairn" verify -q "$mnt/shard" || die "verify"

# The worker dies in the middle; the writer notices nothing, and what was written early is removed.
data 2
{
	head -c $((100 << 20)) "$TMP/want"
	kill -KILL "$(worker_pid "$mnt")"
	tail -c +$(((100 << 20) + 1)) "$TMP/want"
} >"$mnt/killed" || die "write"
wait_durable "$mnt"
cmp "$TMP/want" "$store/killed" || die "other bytes after the worker's death"

# And everything.
data 3
cp "$TMP/want" "$mnt/all"
kill_mount "$mnt"
start_mount "$store" "$mnt" "$opts"
wait_durable "$mnt"
cmp "$TMP/want" "$store/all" || die "other bytes after all was killed"
retry 20 sh -c "[ -z \"\$(ls $store/.cairn/*/tmp)\" ]" || die "left in tmp: $(ls -l "$store"/.cairn/*/tmp)"
stop_mount "$mnt"

start_mount "$store" "$mnt" "$opts,noearly"
data 4
cp "$TMP/want" "$mnt/late"
wait_durable "$mnt"
[ "$(early)" = 0 ] || die "noearly: $(early) bytes"
stop_mount "$mnt"
