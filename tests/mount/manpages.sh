#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# mandoc finds nothing to complain about in a man page, and neither does groff.
. "$(dirname "$0")/../lib/lib.sh"

need_tool mandoc groff

# cross references depend on what is installed, and the pages are ours, not the system's
ours='operating system explicitly specified|referenced manual not found|outdated mandoc.db'
found=$TMP/found

for page in "$LIB_TOP"/docs/man/*.[138]; do
	mandoc -T lint "$page" 2>&1 | grep -vE "$ours"
	groff -ww -man -Tutf8 "$page" 2>&1 >/dev/null
done >"$found"
[ -s "$found" ] && die "$(cat "$found")"

# a page with an error is found
printf '.Dd January 1, 2026\n.Dt X 1\n.Os\n.Sh NAME\n.Nm x\n.Nd x\n.El\n' >"$TMP/bad.1"
mandoc -T lint "$TMP/bad.1" | grep -vE "$ours" >"$found"
[ -s "$found" ] || die "mandoc accepts an El without a Bl"
exit 0
