#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# No module has a larger cycle of files than tests/structure allows, no two modules call each other, no function is
# longer, and what the documents name is there.
. "$(dirname "$0")/../lib/lib.sh"

need_tool nm python3
python3 "$LIB_TOP/tests/structure" --check || die "make structure V=1 names the calls of a cycle"

wrong()
{
	echo "in $1 the bytes are written" >"$TMP/doc.md"
	python3 "$LIB_TOP/tests/structure" --documents "$TMP/doc.md" >"$TMP/said" && die "$1 is found"
	has "$2" <"$TMP/said" || die "$1: $(cat "$TMP/said")"
}
wrong '`fs/ops/open.c:op_close`' 'doc.md:1: fs/ops/open.c has no function op_close'
wrong '`fs/ops/closed.c`' 'doc.md:1: there is no fs/ops/closed.c'
