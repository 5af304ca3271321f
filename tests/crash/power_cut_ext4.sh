#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# P6 on ext4: see power_cut.inc.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"
. "$(dirname "$0")/power_cut.inc"

power_cuts ext4 "$(share 17 "${1:-}")"
