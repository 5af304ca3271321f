#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# What is kept of checkpoints that are overwritten is listed, and removed only when a person says so: also
# if its directory was removed by another program.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/../lib/overwrite.inc"
. "$(dirname "$0")/cli.inc"

kept() { find "$s/.cairn/previous" -mindepth 1 -maxdepth 1 -name "$1*"; }
listed() { "$cairn" restore-previous --list --json "$s" | python3 -c '
import json, sys
for k in sorted(json.load(sys.stdin), key=lambda k: k["path"]):
    print(k["path"], k["whole"], k["there"], k["bytes"] > 0, k["since"] > 1e9)'; }

start_mount "$s" "$m"
expect 0 "$cairn" restore-previous --list "$s"
[ ! -s "$TMP/out" ] || die "a new store keeps $(cat "$TMP/out")"
for name in run/100% gone stays; do
	save "$m/$name" 1
done
wait_durable "$m"
for name in run/100% gone stays; do
	part __0_0.distcp 2 >"$m/$name/__0_0.distcp"
done
wait_durable "$m"
[ "$(listed)" = "$(printf '%s True True True True\n' gone run/100% stays)" ] || die "listed: $(listed)"
expect 0 "$cairn" restore-previous --list "$s"
says out '^run/100%  .*iB, for 0:'
expect 2 "$cairn" restore-previous --list "$m"
says err 'name its store'
expect 2 "$cairn" restore-previous --list --discard "$s"
expect 2 "$cairn" restore-previous --json "$s/stays"
expect 1 "$cairn" restore-previous --discard "$m/stays"
says err 'restore-previous --discard STORE/stays'
expect 1 "$cairn" restore-previous --discard "$s/stays"
says err 'is mounted'
stop_mount "$m"

rm -r "$s/gone"
start_mount "$s" "$m"
stop_mount "$m"
is_whole "$(kept gone)" 1 || die "the only good copy was removed: $(ls "$s/.cairn/previous")"
[ "$(listed | grep gone)" = "gone True False True True" ] || die "listed: $(listed)"
expect 0 "$cairn" restore-previous --list "$s"
says out "is not there any more .*: .*$(basename "$(kept gone)")"

expect 0 "$cairn" restore-previous --discard "$s/run/100%"
[ -z "$(kept run)" ] || die "not removed: $(kept run)"
[ -e "$s/run/100%/.metadata" ] || die "the directory was changed"
expect 0 "$cairn" restore-previous --discard "$s/run/100%"
says out 'nothing is kept'
expect 0 "$cairn" restore-previous --discard "$(kept gone)"
[ -z "$(kept gone)" ] || die "not removed: $(kept gone)"
expect 0 "$cairn" restore-previous --discard "$s/.cairn/previous"
is_whole "$(kept stays)" 1 || die "what was not named is gone"
[ "$(listed)" = "stays True True True True" ] || die "listed: $(listed)"
