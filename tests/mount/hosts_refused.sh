#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# waits: yes
# A start that is refused leaves nothing in the store: neither a host's directory, for however short a time, nor a
# number. A host would count: what commits waits for its shards. And whether there are others is asked again and
# again: the mount answers it as its next worker would.
. "$(dirname "$0")/../lib/lib.sh"
need_root

s=$TMP/store a=$TMP/a cairn=$BUILD/cairn assets=$LIB_TOP/tests/assets/dcp
start_mount "$s" "$a" staging=64M,pool=0,host=served
mkdir "$TMP/other" "$a/step-1"
retry 20 test -e "$s/.cairn/served/alive" || die "it does not say that it is alive"

# A machine mounts a store once. To create and remove a directory would set the time of .cairn.
cairn_dir() { stat -c '%h %.9Y' "$s/.cairn"; ls -A "$s/.cairn" "$s/.cairn/.hosts"; }
before=$(cairn_dir)
"$BUILD/cairnfs" "$s" "$TMP/other" -o host=typo,staging=64M 2>"$TMP/err" && die "the staging of another is taken"
has 'a machine mounts a store once' "$TMP/err" || die "refused: $(cat "$TMP/err")"
[ "$(cairn_dir)" = "$before" ] || die "a refused start left something: $before; now $(cairn_dir)"

# The checkpoint of another one waits only for a host that is, or was, there.
held() { [ "$(status_field "$a" held)" != null ]; }
published() { [ -e "$s/$1/.metadata" ]; }
save() { mkdir -p "$a/$1" && cp "$assets/__0_0.distcp" "$a/$1" && cp "$assets/.metadata" "$a/$1"; }
save step-1
retry 20 published step-1 || die "a .metadata waits, and there is no other host"
mkdir "$s/.cairn/gone" && : >"$s/.cairn/gone/lock"
save step-2
retry 20 held || die "nothing is held"
published step-2 && die "published without its shards"
rm -r "$s/.cairn/gone"
retry 60 published step-2 || die "it waits for a host that is not there: $("$cairn" status "$a")"
held && die "still held"
kill -KILL "$(worker_pid "$a")"
save step-3
retry 20 published step-3 || die "the next worker's answer is another"
stop_mount "$a"
