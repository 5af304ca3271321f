#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 60
# A checkpoint of the tier that does not fit in the store: ENOSPC for who reads it, told, and nothing of it is visible;
# when there is space it is read.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
t=$TMP/tier
mkdir -p "$t" "$TMP/src/run"
cp -r "$assets/dcp" "$TMP/src/run/step-1"
head -c 40M /dev/urandom >"$TMP/src/run/step-1/__2_0.distcp"
expect 0 "$cairn" tier push -q "$TMP/src" "$t"

make_disk disk ext4 64M
s=$TMP/disk/store
start_mount "$s" "$m" "tier=$t,staging=16M"
fallocate -l 30M "$TMP/disk/filler" || die "filler"
cat "$m/.cairn/latest/run/__2_0.distcp" >"$TMP/out" 2>"$TMP/err" && die "read, without space"
says err 'No space left on device'
gone() { [ ! -e "$s/run/.cairn-fetch.step-1" ]; }
retry 20 gone || die "it takes the space that it does not fit into"
[ ! -e "$m/run/step-1" ] || die "it is visible: $(ls -A "$m/run/step-1")"
status_field "$m" fetch.error | has 'No space left' || die "status: $(status_field "$m" fetch)"
rm "$TMP/disk/filler"
cmp "$m/.cairn/latest/run/__2_0.distcp" "$TMP/src/run/step-1/__2_0.distcp" || die "with space"
in_store() { [ -e "$s/run/step-1" ]; }
retry 20 in_store || die "not in the store after it was read"
diff -r "$TMP/src/run/step-1" "$m/run/step-1" || die "with space"
stop_mount "$m"
