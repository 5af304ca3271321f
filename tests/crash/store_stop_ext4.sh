#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# P5 when a store on ext4 stops: see store_stop.inc.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"
. "$(dirname "$0")/store_stop.inc"

store_stops ext4 "$(share 5 "${1:-}")"
