#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 60
# `cairn latest DIR` and `cairn fetch --latest DIR` find the same: for the root of a mount, for a directory that is only in
# the tier and whose runs lie further down, and for one that the store has, too.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
need_root
need_tool fsfreeze
t=$TMP/tier
mkdir -p "$t" "$TMP/src/plain/a/run" "$TMP/src/plain/b" "$TMP/src/model"
cp -r "$assets/dcp" "$TMP/src/plain/a/run/step-1"
cp -r "$assets/dcp" "$TMP/src/plain/a/run/step-2"
cp -r "$assets/dcp" "$TMP/src/plain/b/step-7"
touch -d '1 hour ago' "$TMP/src/plain/b/step-7"/{,.[m]}* "$TMP/src/plain/b/step-7"
cp "$assets/safetensors/model.safetensors" "$TMP/src/model"
touch -d '2 hours ago' "$TMP/src/model"/* "$TMP/src/model"
expect 0 "$cairn" tier push "$TMP/src" "$t"

new_node()
{
	rm -rf --one-file-system "$s"
	start_mount "$s" "$m" "tier=$t"
}
# finds DIR PATH: both
finds()
{
	expect 0 "$cairn" latest "$m$1"
	[ "$(cat "$TMP/out")" = "$m/.cairn/tier/$2" ] || die "latest $1: $(cat "$TMP/out")"
	expect 0 "$cairn" fetch --latest "$m$1"
	says out "^fetched  $2  "
	expect 0 "$cairn" latest "$m$1"
	[ "$(cat "$TMP/out")" = "$m$1/${2#"${1:1}/"}" ] || die "latest $1, fetched: $(cat "$TMP/out")"
	expect 0 "$cairn" fetch --latest "$m$1"
	says out "^there .* $2$"
	stop_mount "$m"
	new_node
}
# after MKDIR: the store has that directory
new_node
for made in "" /plain/a; do
	for dir in "" /plain /plain/a /plain/a/run; do
		note "latest $dir, the store has $made"
		mkdir -p "$m$made"
		finds "$dir" plain/a/run/step-2
	done
done
finds /plain/b plain/b/step-7

# a directory that is made and not published yet
stop_mount "$m"
rm -rf --one-file-system "$s"
make_disk disk ext4 64M
disk=$TMP/disk
on_exit "fsfreeze -u $disk 2>/dev/null"
start_mount "$disk" "$m" "tier=$t"
mkdir "$m/plain"
wait_durable "$m"
fsfreeze -f "$disk" || skip "fsfreeze: $?"
mkdir "$m/plain/a"
[ ! -e "$disk/plain/a" ] || die "it is published on a frozen store"
expect 0 "$cairn" latest "$m/plain/a"
says out "^$m/.cairn/tier/plain/a/run/step-2$"
fsfreeze -u "$disk"
stop_mount "$m"

new_node
expect 0 "$cairn" latest "$m/.cairn/tier/plain"
says out "^$m/.cairn/tier/plain/a/run/step-2$"
expect 0 "$cairn" fetch --latest "$m/.cairn/tier/plain"
expect 0 "$cairn" latest "$m/.cairn/tier/plain"
says out "^$m/plain/a/run/step-2$"
stop_mount "$m"
