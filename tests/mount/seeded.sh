#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# Each defect of tests/seeded still applies to the code, and the tests that must find it are there; make check-seeded runs
# them.
. "$(dirname "$0")/../lib/lib.sh"

need_tool python3 patch
seeded=$LIB_TOP/tests/seeded
"$seeded/run" --check || die "make the patch anew: whoever moves code moves the defect with it"

# One that does not apply, one whose test is not there, and one without a head are found.
wrong() # NAME WHAT
{
	"$seeded/run" --check "$TMP/patches" >"$TMP/said" && die "$1: nothing was found wrong"
	has "^$1.patch: $2" "$TMP/said" || die "$1: $(cat "$TMP/said")"
	rm "$TMP/patches/$1.patch"
}
mkdir "$TMP/patches"
one=$seeded/sync-dir-dropped.patch
sed 's/^-\(.*\)/-\1 and more/' "$one" >"$TMP/patches/moved.patch"
wrong moved 'does not apply'
sed 's|^# tests: .*|# tests: unit/nowhere|' "$one" >"$TMP/patches/test.patch"
wrong test 'there is no unit/nowhere'
sed '/^# what/d' "$one" >"$TMP/patches/head.patch"
wrong head 'its head lacks'
