#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# No module has a larger cycle of files than tests/structure allows, no two modules call each other, and no
# function is longer.
. "$(dirname "$0")/../lib/lib.sh"

need_tool nm python3
python3 "$LIB_TOP/tests/structure" --check || die "make structure V=1 names the calls of a cycle"
