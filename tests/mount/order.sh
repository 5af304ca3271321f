#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 120
#
# The store is watched while changes are made: it is a prefix of them all the time.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt"

# Several at once, each with its own directory and its own history.
run_orders()
{
	local seed failed=
	declare -A job=()
	for seed; do
		mkdir "$mnt/o$seed"
	done
	wait_durable "$mnt"
	for seed; do
		helper order "$mnt/o$seed" "$store/o$seed" --seed "$seed" --ops "${ORDER_OPS:-350}" \
			>"$TMP/order.$seed" 2>&1 &
		job[$seed]=$!
	done
	for seed; do
		wait "${job[$seed]}" || failed="$failed $seed"
		tail -n 60 "$TMP/order.$seed"
	done
	[ -z "$failed" ] || die "order, seeds$failed"
}

case $MODE in
fast) run_orders 1; run_orders 2 3 ;;
relay) run_orders 4; run_orders 5 6 ;;
posix) run_orders 7; run_orders 8 9 ;;
esac
# The judge itself: a forged sample is noticed.
mkdir "$mnt/forged"
wait_durable "$mnt"
! helper order "$mnt/forged" "$store/forged" --seed 9 --ops 200 --break >"$TMP/forged" ||
	die "a forged sample was not noticed: $(cat "$TMP/forged")"
same_tree "$mnt" "$store"
end_mount "$mnt"
