#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# The core where cairnfs is in a memory cgroup of its own: one that holds its staging, and one that is
# smaller than the staging that was asked for.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/../mount/memcg.inc"
. "$(dirname "$0")/core.inc"
memcg_init

# in_cgroup NAME MIB STAGING_MIB
in_cgroup()
{
	memcg_make "$1" $(($2 << 20))
	LIB_WRAP=(sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$MEMCG_TOP/$1")
	core "a memory cgroup of $2 MiB, staging=$3M" "$TMP/$1" "staging=$3M"
	[ "$(memcg_killed "$1")" = 0 ] || die "the kernel killed for memory: $(memcg_killed "$1")"
}

in_cgroup spacious 256 64
in_cgroup tight 128 512
