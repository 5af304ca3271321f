#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 300
#
# Clients that commit buffers. Killed by SIGKILL at seeded instants, they leave no buffer, no
# memory of staging, and a prefix of their calls in mount and store; the worker killed under
# them is a pause; everything killed, the next start publishes what they committed.
#
#	CRASH_CLIENTS	clients that are killed (default 100)
#	CRASH_WORKERS	workers killed under a client (default 8)
#	CRASH_ALL	kills of everything (default 4)
#	CRASH_SEED	seed of the first
. "$(dirname "$0")/../lib/lib.sh"

: "${CRASH_CLIENTS:=100}" "${CRASH_WORKERS:=8}" "${CRASH_ALL:=4}" "${CRASH_SEED:=1}"
lender=$BUILD/tests/crash/lender
store=$TMP/store mnt=$TMP/mnt acks=$TMP/acks
RANDOM=$((CRASH_SEED % 32768))
need_root
[ -x "$lender" ] || die "$lender is not built"

start_mount "$store" "$mnt" staging=128M,ballast=64M
need_passthrough "$mnt"
mkdir "$mnt/run"
said=$("$lender" kills "$mnt" "$mnt/run" "$store/run" "$CRASH_SEED" "$CRASH_CLIENTS") || die "$said"
note "$said"
[ "$(status_field "$mnt" restarts)" = 0 ] || die "the worker died of it"
stop_mount "$mnt"
rm -rf "$store"

# huge/ of a mount, by its status
staged() { ls "$(status_field "$mnt" staging.dir)/huge"; }

pick_ms() { printf '0.%03d' $(($1 + RANDOM % ($2 - $1))); }

# The worker's deaths: the client sees no error, its buffers stay its own.
left=$CRASH_WORKERS per_mount=4	# five in 10 s are the keeper's limit
for ((seed = CRASH_SEED; left > 0; seed++)); do
	start_mount "$store" "$mnt" staging=128M
	mkdir "$mnt/run"
	rm -f "$acks"
	"$lender" client "$mnt/run" "$acks" "$seed" 80 >"$TMP/client" &
	client=$!
	for ((k = 0; k < per_mount && left > 0; k++, left--)); do
		sleep "$(pick_ms 50 400)"
		old=$(worker_pid "$mnt")
		kill -KILL "$old" || die "seed $seed: no worker to kill"
		retry 20 eval '[ "$(worker_pid "$mnt")" != "$old" ]' || die "seed $seed: no new worker"
	done
	wait $client || die "seed $seed: a call of the client failed: $(cat "$TMP/client")"
	[ "$(status_field "$mnt" restarts)" = "$k" ] || die "seed $seed: $k kills, $(status_field "$mnt" restarts) restarts"
	"$lender" check "$mnt/run" "$acks" "$seed" 80 >"$TMP/said" || die "seed $seed: $(cat "$TMP/said")"
	wait_durable "$mnt"
	"$lender" check "$store/run" "$acks" "$seed" 80 >"$TMP/said" || die "seed $seed, store: $(cat "$TMP/said")"
	retry 10 eval '[ "$(status_field "$mnt" buffers.count)" = 0 ]' || die "seed $seed: buffers are left"
	! staged | grep -q buffer || die "seed $seed: left in staging: $(staged)"
	"$BUILD/cairn" verify "$mnt" >"$TMP/said" || die "seed $seed: verify: $(cat "$TMP/said")"
	stop_mount "$mnt"
	[ ! -e "$store/.cairn/lost+found" ] || [ -z "$(ls "$store/.cairn/lost+found")" ] ||
		die "seed $seed: lost+found: $(ls "$store/.cairn/lost+found")"
	rm -rf "$store"
done
note "$CRASH_WORKERS workers killed under a client"

# Everything: what was committed is published in order, what was only being filled is dropped.
for ((seed = CRASH_SEED; seed < CRASH_SEED + CRASH_ALL; seed++)); do
	start_mount "$store" "$mnt" staging=128M
	mkdir "$mnt/run"
	rm -f "$acks"
	"$lender" client "$mnt/run" "$acks" "$seed" 5000 >"$TMP/client" 2>&1 &
	client=$!
	sleep "$(pick_ms 20 500)"
	if [ $((seed % 2)) = 0 ]; then		# or it dies of the daemon's death
		kill -KILL $client
		wait $client 2>/dev/null
	fi
	kill_mount "$mnt"
	kill -KILL $client 2>/dev/null
	wait $client 2>/dev/null
	start_mount "$store" "$mnt" staging=128M
	"$lender" check "$mnt/run" "$acks" "$seed" >"$TMP/said" || die "seed $seed: $(cat "$TMP/said")"
	"$lender" check "$store/run" "$acks" "$seed" >"$TMP/said" || die "seed $seed, store: $(cat "$TMP/said")"
	[ -z "$(staged)" ] || die "seed $seed: left in staging: $(staged)"
	[ "$(status_field "$mnt" staging.used_bytes)" = 0 ] || die "seed $seed: staging is in use"
	[ -z "$(ls "$store/.cairn/lost+found")" ] || die "seed $seed: lost+found: $(ls "$store/.cairn/lost+found")"
	stop_mount "$mnt"
	rm -rf "$store"
done
note "$CRASH_ALL kills of everything"
