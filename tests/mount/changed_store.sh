#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# Somebody changes the store beside the mount: files that are new, removed, replaced or longer are seen at the
# next lookup, also where staging still has what was written through the mount.
. "$(dirname "$0")/../lib/lib.sh"

need_tool setfattr
s=$TMP/store m=$TMP/mnt
start_mount "$s" "$m"
for f in longer shorter gone replaced held; do
	echo "$f" >"$m/$f"
done
wait_durable "$m"
[ "$(status_field "$m" versions.durable_cached)" = 5 ] || die "staging lets go of durable files at once: nothing to see here"

is() { [ "$(cat "$m/$1" 2>/dev/null)" = "$2" ]; }
is longer longer || die "longer: $(cat "$m/longer")"
exec 7<"$m/held"
echo more >>"$s/longer"
truncate -s 3 "$s/shorter"
rm "$s/gone"
echo new >"$s/new"
echo other >"$s/tmp" && mv "$s/tmp" "$s/replaced"
echo more >>"$s/held"
retry 10 is longer $'longer\nmore' || die "longer: $(cat "$m/longer")"
[ "$(stat -c %s "$m/longer")" = 12 ] || die "longer: $(stat -c %s "$m/longer") bytes"
retry 10 is shorter sho || die "shorter: $(cat "$m/shorter")"
retry 10 is replaced other || die "replaced: $(cat "$m/replaced")"
is new new || die "new: $(cat "$m/new")"
retry 10 test ! -e "$m/gone" || die "gone is there"
# who has it open reads what he opened
[ "$(cat <&7)" = held ] || die "an open file changed under its reader"
exec 7<&-
retry 10 is held $'held\nmore' || die "held: $(cat "$m/held")"

# Another host saves a file of the same name and size before this one has looked at what it published itself.
echo mine >"$m/both"
retry 20 test -e "$s/both" || die "both is not in the store"
echo else >"$s/tmp"
setfattr -n user.cairn.ino -v 4611686018427387905 "$s/tmp" && mv "$s/tmp" "$s/both" || die "mv"
retry 10 is both else || die "both, of another host: $(cat "$m/both")"

# It goes on through the mount from there.
echo last >>"$m/longer"
is longer $'longer\nmore\nlast' || die "written again: $(cat "$m/longer")"
wait_durable "$m"
[ "$(cat "$s/longer")" = $'longer\nmore\nlast' ] || die "in the store: $(cat "$s/longer")"
stop_mount "$m"
