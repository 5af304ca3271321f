#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# What README.md and docs/*.md say of other files is so: links lead somewhere, figures are what their sources
# give, and each message of TROUBLESHOOTING.md is one that a program prints.
. "$(dirname "$0")/../lib/lib.sh"

need_tool python3
cd "$LIB_TOP" || die "cd"
docs/figures/draw --check || die "a figure"

# A figure that no measurement has is refused.
cp -r docs "$TMP/docs"
sed -i 's/^time 2.44/time 9.99/' "$TMP/docs/figures/save.txt"
"$TMP/docs/figures/draw" "$TMP/docs/figures/save.txt" 2>/dev/null && die "a rate that was not measured is drawn"

python3 tests/lib/documents.py "$LIB_TOP" || die "documents"

# A message that nobody prints, a link that leads nowhere, and an anchor of no heading are found.
mkdir "$TMP/tree"
cp -r ./*.md LICENSE Makefile docs "$TMP/tree" || die "copy"
for dir in fs staging io tools tests; do
	ln -s "$LIB_TOP/$dir" "$TMP/tree/$dir"
done
# shellcheck disable=SC2016	# backticks of a document
printf -- '- `cairnfs: the moon is … full` — wait.\n' >>"$TMP/tree/docs/TROUBLESHOOTING.md"
# shellcheck disable=SC2016
printf '[x](docs/NOWHERE.md) `tests/mount/nowhere.sh` and `make nothing-at-all`\n' >>"$TMP/tree/README.md"
python3 tests/lib/documents.py "$TMP/tree" >"$TMP/said" && die "nothing was found wrong"
for what in 'the moon is' 'docs/NOWHERE.md' 'tests/mount/nowhere.sh' 'make nothing-at-all'; do
	has -F "$what" "$TMP/said" || die "$what was not found wrong: $(cat "$TMP/said")"
done
[ "$(wc -l <"$TMP/said")" = 4 ] || die "more was found wrong: $(cat "$TMP/said")"
