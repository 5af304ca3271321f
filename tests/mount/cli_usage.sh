#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn: what is asked wrongly ends with exit code 2 and one line that says why.
# modes: fast
. "$(dirname "$0")/../lib/lib.sh"

cairn=$BUILD/cairn

# expect CODE command...: its output is in $TMP/out and $TMP/err afterwards
expect()
{
	local want=$1 rc=0
	shift
	"$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
	[ $rc = "$want" ] || die "$*: exit code $rc, not $want: $(cat "$TMP/out" "$TMP/err")"
}
says() { grep -q -- "$2" "$TMP/$1" || die "no '$2' in: $(cat "$TMP/$1")"; }

expect 2 "$cairn"
says err usage
expect 2 "$cairn" frobnicate
says err frobnicate
expect 2 "$cairn" wait
expect 2 "$cairn" wait --timeout soon /
says err soon
expect 2 "$cairn" wait --timeout -1 /
expect 2 "$cairn" ls --nonsense
says err nonsense
for sub in ls wait verify umount; do
	expect 2 "$cairn" $sub "$TMP/missing"
	says err "No such file"
	expect 2 "$cairn" $sub /proc
	says err "neither on a cairnfs mount nor in a store"
	[ "$(wc -l <"$TMP/err")" = 1 ] || die "$sub: more than one line: $(cat "$TMP/err")"
done
for sub in status ls wait verify retry umount version help; do
	expect 0 "$cairn" help $sub
	says out "cairn $sub"
done
expect 0 "$cairn" version
says out '^cairn [0-9]'
expect 1 bash -c '"$0" version >/dev/full' "$cairn"
