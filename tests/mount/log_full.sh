#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
#
# The log is written anew while nothing is on its way. A mapping that stays must not keep that
# away for ever: who makes the next change would wait for it.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=256M
need_passthrough "$mnt"
helper log_full "$mnt" || die "log_full"
wait_durable "$mnt"
bytes=$(status_field "$mnt" log.bytes)
[ "$bytes" -lt $((64 << 20)) ] || die "the log has $bytes bytes still"
end_mount "$mnt"
[ "$(head -c 9 "$store/mapped")" = firstlast ] || die "mapped: $(head -c 9 "$store/mapped")"
[ -d "$store/dir" ] && [ ! -e "$store/dir/new" ] || die "names"
