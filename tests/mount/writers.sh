#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# Checkpoint writers, call by call (see writers.c), with someone watching.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt"
mkdir "$mnt/w"
helper writers "$mnt/w" --mnt "$mnt" --store "$store" || die "writers"
if [ -x "$BUILD/cairn" ]; then
	"$BUILD/cairn" verify "$mnt" || die "cairn verify: exit code $?"
fi
same_tree "$mnt" "$store"
end_mount "$mnt"
start_mount "$store" "$mnt"
same_tree "$mnt" "$store"
end_mount "$mnt"
