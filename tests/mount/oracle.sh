#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# Seeded random operations on the mount and on a plain directory, compared all along, and
# with the store after every drain. Another seed: ORACLE_SEEDS="77 78"; longer: ORACLE_OPS;
# some operations left out, to find what a failure needs: ORACLE_WITHOUT=link,map.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

ops=${ORACLE_OPS:-2500}
case $MODE in
fast) [ "${TEST_ONE_OF:-1}" = 1 ] && seeds=${ORACLE_SEEDS:-1 2 3 4 5} || seeds=${ORACLE_SEEDS:-1 2} ;;
relay) seeds=${ORACLE_SEEDS:-11 12 13 14} ;;
posix) seeds=${ORACLE_SEEDS:-21 22 23 24} ;;
esac

# The oracle against itself: two plain directories agree, and a damaged one is noticed.
self_test()
{
	local kind
	for kind in none data name mode store; do
		mkdir "$TMP/p" "$TMP/q"
		if helper oracle "$TMP/p" "$TMP/q" --store "$TMP/p" --seed 3 --ops 1000 \
			--break $kind >"$TMP/out"; then
			[ $kind = none ] || die "the oracle did not notice broken $kind"
		else
			[ $kind != none ] || { cat "$TMP/out"; die "two plain directories differ"; }
		fi
		rm -rf "$TMP/p" "$TMP/q"
	done
}

run_seed()
{
	helper oracle "$mnt" "$shadow" --store "$store" --direct --without "${ORACLE_WITHOUT-}" "$@" || die "oracle $*"
}

[ "$MODE" != fast ] || self_test
store=$TMP/store mnt=$TMP/mnt shadow=$TMP/shadow
mkdir "$shadow"
start_mount "$store" "$mnt"
for seed in $seeds; do
	run_seed --seed "$seed" --ops "$ops" --fds $((6 + seed % 4 * 6))
	end_mount "$mnt"
	start_mount "$store" "$mnt"
	run_seed --ops 0	# the next daemon shows the same tree
done
end_mount "$mnt"
