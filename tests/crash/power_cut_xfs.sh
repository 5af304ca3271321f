#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# P6 on xfs: see power_cut.inc.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"
. "$(dirname "$0")/power_cut.inc"

power_cuts xfs "$(share 17 "${1:-}")"
