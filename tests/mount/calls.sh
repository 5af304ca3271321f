#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# Every call that checkpoint writers make (see the tables in calls_*.c).
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt failed=
start_mount "$store" "$mnt" allow_other
for table in names data map meta; do
	mkdir "$mnt/$table"
	helper "calls_$table" "$mnt/$table" --mnt "$mnt" --store "$store" || failed="$failed $table"
done
end_mount "$mnt"
[ -z "$failed" ] || die "failed:$failed"
