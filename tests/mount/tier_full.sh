#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# -o tier=DIR without a free block: what it has is there, and is found; nothing more is sent until there is space.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
make_disk tier ext4 20M
t=$TMP/tier
start_mount "$s" "$m" "tier=$t"
save 1
expect 0 "$cairn" wait --tier "$m"

fill() { while dd if=/dev/zero bs=1k status=none 2>/dev/null >>"$t/filler"; do :; done; sync -f "$t"; }
no_block() { fill; ! mkdir "$t/one" 2>/dev/null || { rmdir "$t/one"; false; }; }
retry 20 no_block || die "the tier still has a block"
save 2
fails() { status_field "$m" tier.error | has 'No space left'; }
retry 60 fails || die "no error: $(status_field "$m" tier)"
expect 0 "$cairn" latest --tier "$m/run"
says out "^$m/run/step-1$"
expect 0 "$cairn" wait --tier --timeout 60 "$m/run/step-1"
rm "$t/filler"
expect 0 "$cairn" wait --tier "$m"
expect 0 "$cairn" latest --tier "$m/run"
says out "^$m/run/step-2$"
stop_mount "$m"
expect 0 "$cairn" tier verify "$t"
