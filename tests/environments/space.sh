#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# The core where there is little space: a store that is nearly full, a tiny and a huge staging, few
# descriptors.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/core.inc"
need_root

make_disk nearly ext4 96M
fallocate -l $((($(stat -f -c '%a * %S' "$TMP/nearly") - 24 * 1048576))) "$TMP/nearly/ballast" || die "fill"
core "24 MiB free" "$TMP/nearly/store" staging=32M

core "staging=4M" "$TMP/tiny" staging=4M
core "staging is half of the memory" "$TMP/huge" "staging=$(awk '/^MemTotal/ { print int($2 / 2048) }' /proc/meminfo)M"
LIB_WRAP=(bash -c 'ulimit -n 64; exec "$@"' -)
core "64 descriptors" "$TMP/few"
