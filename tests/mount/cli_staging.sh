#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# cairn staging: what is staged on this machine is listed, with what its store may not have and whether a daemon has
# it; it is removed only if nothing is lost, or by --force, and never under a daemon.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

need_root

field() # KEY...: of this case's entry; "none" if there is none
{
	"$cairn" staging --json "${dir[@]}" list >"$TMP/json" || die "cairn staging list: $?"
	python3 - "$TMP/json" "$id" "$@" <<'PY'
import json, sys
path, want, *keys = sys.argv[1:]
found = [e for e in json.load(open(path)) if e["id"] == want]
assert len(found) < 2, found
for key in keys:
    found = [e[key] for e in found]
print(found[0] if found else "none")
PY
}
is_field() { [ "$(field "${@:2}")" = "$1" ]; }
expect_field() { is_field "$@" || die "${*:2}: $(field "${@:2}"), not $1: $(cat "$TMP/json")"; }
id=$(printf '%032x' 0) dir=()
expect_field none state

start_mount "$s" "$m" pool=64M	# its stock of pages is no file of anybody
id=$(cat "$s/.cairn/id")
place=$(status_field "$m" staging.dir)
echo durable >"$m/f"
wait_durable "$m"
expect_field served state
expect_field "$s" store
expect_field "$place" path
expect_field 0 unpublished files
expect_field 0 unpublished changes
expect 1 "$cairn" staging remove "$id"
says err "a cairnfs has it"
expect 1 "$cairn" staging remove --force "$id"
says err "a cairnfs has it"
[ "$(cat "$m/f")" = durable ] || die "the mount does not serve any more"

# everything is durable, and it was killed: nothing is lost with it
kill_mount "$m"
retry 20 is_field left state # the lock goes with the last of its processes
expect_field left state
expect_field 0 unpublished files
expect 0 "$cairn" staging list
says out "  state        left, since"
expect 0 "$cairn" staging remove "$id"
expect_field none state
[ ! -e "$place" ] || die "$place is still there"
has " $place" </proc/self/mountinfo && die "$place is still mounted"
[ "$(cat "$s/f")" = durable ] || die "the store has lost a file"

# a file that was never closed, and one that is closed and still mapped: both would be lost
start_mount "$s" "$m"
place=$(status_field "$m" staging.dir)
exec 8>"$m/open"
echo "never closed" >&8
(map_and_hold "$m/mapped" "$TMP/ready") 8>&- &
holder=$!
on_exit 'kill $holder 2>/dev/null'
retry 20 test -e "$TMP/ready" || die "no mapping"
mkdir "$m/behind"
kill_mount "$m"
kill $holder
exec 8>&-
expect_field 2 unpublished files
[ "$(field unpublished changes)" -ge 2 ] || die "changes: $(cat "$TMP/json")"
expect 1 "$cairn" staging remove "$id"
says err "it holds 2 files"
expect 1 "$cairn" staging remove "$place"
expect 2 "$cairn" staging remove --force "${id%?}"
expect 2 "$cairn" staging remove --force "${place%/*}"
expect_field 2 unpublished files

# the next start publishes all of it, as if nobody had asked
start_mount "$s" "$m"
wait_durable "$m/behind"
retry 20 test -s "$s/mapped" || die "mapped is not in the store"
stop_mount "$m"
expect_field none state

# one that has no room in memory, and was never closed: its bytes lie in the store's .cairn
start_mount "$s" "$m" staging=32M
head -c 100M /dev/zero >"$m/big" # the next is expected to be as large
wait_durable "$m/big"
exec 8>"$m/big"
echo "never closed" >&8
[ "$(lane "$m/big")" = spill ] || die "lane: $(lane "$m/big")"
kill_mount "$m"
exec 8>&-
expect_field 1 unpublished files
expect 1 "$cairn" staging remove "$id"
start_mount "$s" "$m"
stop_mount "$m"
expect_field none state

# the store is gone; its staging is on a tmpfs of the system, where --dir says
dir=(--dir /dev/shm/cairn-staging.$$)
mkdir "${dir[1]}"
on_exit 'rm -rf "${dir[1]}"'
LIB_STAGING["${dir[1]}/$id"]=1
start_mount "$s" "$m" staging_dir="${dir[1]}"
exec 8>"$m/open2"
echo "never closed" >&8
kill_mount "$m"
exec 8>&-
mv "$s" "$s.away"
expect_field "store gone" state
expect_field 1 unpublished files
expect 1 "$cairn" staging "${dir[@]}" remove "$id"
printf x | dd of="${dir[1]}/$id/head" bs=1 conv=notrunc 2>/dev/null
expect_field False readable
expect 1 "$cairn" staging "${dir[@]}" remove "$id"
says err "cannot be read"
expect 0 "$cairn" staging "${dir[@]}" --force remove "$id"
[ ! -e "${dir[1]}/$id" ] || die "it is still there"

expect 2 "$cairn" staging frobnicate
expect 2 "$cairn" staging remove
expect 2 "$cairn" staging list "$id"
expect 2 "$cairn" staging --force list
