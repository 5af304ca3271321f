#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# Many processes at once in one tree; in the end mount and store must be the same.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=128M
for seed in ${STORM_SEEDS:-1 2}; do
	helper storm "$mnt" 8 "${STORM_OPS:-400}" "$seed" || die "storm, seed $seed"
	wait_durable "$mnt"
	same_tree "$mnt" "$store"
done
end_mount "$mnt"
start_mount "$store" "$mnt"
same_tree "$mnt" "$store"
end_mount "$mnt"
