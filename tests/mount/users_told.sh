#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# What a user is told of others' files, and what names of his make of who reads them: status, tools on a
# terminal; and `cairn export` of a checkpoint that leads elsewhere.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root
need_tool setpriv python3

A=54301 B=54302
as() { local u=$1; shift; setpriv --reuid="$u" --regid="$u" --clear-groups "$@"; }
cd /
chmod 755 "$TMP"

# --- export of what is not the checkpoint's -----------------------------------------------------
snapshot()	# DIR: B's, of one tensor of 16 bytes in DIR/blob
{
	as $B mkdir "$1" || die "mkdir"
	as $B tee "$1/.snapshot_metadata" >/dev/null <<'END'
{"version":"0.1.0","world_size":1,"manifest":{"0":{"type":"dict","keys":["w"]},"0/w":{"type":"Tensor","location":"blob",
"serializer":"buffer_protocol","dtype":"torch.uint8","shape":[16],"replicated":false,"byte_range":null}}}
END
}
mkdir -m 1777 "$TMP/pub"
mkdir -m 755 "$TMP/home"
printf 'root secret 0123' >"$TMP/shadow"
printf 'A   secret 01234' >"$TMP/home/key"
printf 'his  own  file 0' >"$TMP/pub/his"
chown $A "$TMP/home/key"
chown $B "$TMP/pub/his"
chmod 600 "$TMP/shadow" "$TMP/home/key" "$TMP/pub/his"
exports()	# USER TARGET: exit code of his export of B's snapshot whose blob leads to TARGET
{
	rm -rf "$TMP/pub/ck" "$TMP/pub/out"
	snapshot "$TMP/pub/ck"
	as $B ln -s "$2" "$TMP/pub/ck/blob"
	as "$1" "$cairn" export -q "$TMP/pub/ck" "$TMP/pub/out" >"$TMP/said" 2>&1
}
exports 0 ../../shadow && die "root's export holds: $(tail -c 16 "$TMP/pub/out")"
has "not followed" <"$TMP/said" || die "it says: $(cat "$TMP/said")"
exports 0 "$TMP/shadow" && die "root's export holds: $(tail -c 16 "$TMP/pub/out")"
exports $A ../../home/key && die "A's export holds: $(tail -c 16 "$TMP/pub/out")"
exports 0 ../his || die "a link to a file of its owner's, as Hugging Face's cache has them: $(cat "$TMP/said")"
[ "$(tail -c 16 "$TMP/pub/out")" = 'his  own  file 0' ] || die "exported: $(tail -c 16 "$TMP/pub/out")"
exports 0 ../../shadow
rm "$TMP/pub/ck/blob"
ln -s ../../shadow "$TMP/pub/ck/blob"	# root's own word
"$cairn" export -q "$TMP/pub/ck" "$TMP/pub/out" || die "root's own link"
as $B rm -rf "$TMP/pub/ck"

# --- status --------------------------------------------------------------------------------------
start_mount "$TMP/store" "$TMP/m" allow_other
m=$TMP/m
mkdir -m 700 "$m/private"
name=$'hid\e]0;owned\a\xc2\x9b2J\nden'
holder=
if [ "$MODE" != relay ]; then	# there a mapping is an open file
	map_and_hold "$m/private/$name" "$TMP/held" &
	holder=$!
	on_exit "kill $holder 2>/dev/null"
	retry 20 test -e "$TMP/held" || die "no mapping"
	told() { has den "$m/.cairn/status"; }
	retry 20 told || die "status tells root nothing of a mapping: $(cat "$m/.cairn/status")"
	has hid "$m/.cairn/status.json" || die "status.json tells root nothing of a mapping"
	for f in status status.json metrics; do
		as $B cat "$m/.cairn/$f" >"$TMP/out" || die "B reads no $f"
		has -a -e hid -e den "$TMP/out" && die "B is told of a private name by $f: $(cat "$TMP/out")"
		LC_ALL=C has -aP '[\x00-\x09\x0b-\x1f\x7f\x9b]' "$m/.cairn/$f" && die "$f has control characters: $(od -c "$m/.cairn/$f")"
	done
	has "shown to root" "$m/.cairn/status" && die "root is told less"
	as $B cat "$m/.cairn/status" | has 'shown to root' || die "B is not told that there is a mapping"
	[ "$(grep -c 'owned' "$m/.cairn/status")" = 1 ] || die "one name is told as two"
fi
# --- tools on a terminal ---------------------------------------------------------------------------
cp -r "$assets/safetensors" "$m/$name.ckpt"
python3 - "$cairn" "$m" <<'PY' || die "a terminal obeys a name"
import os, pty, sys, subprocess
cairn, m = sys.argv[1:]
bad = 0
for cmd in (["ls", m], ["ls", "-R", m], ["status", m], ["latest", m], ["latest", "-v", m], ["verify", m], ["ls", m + "/private"]):
    master, slave = pty.openpty()
    p = subprocess.Popen([cairn] + cmd, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "dumb"})
    os.close(slave)
    out = b""
    while True:
        try:
            got = os.read(master, 65536)
        except OSError:
            break
        if not got:
            break
        out += got
    p.wait()
    os.close(master)
    if b"\x1b]" in out or b"\xc2\x9b" in out or b"\a" in out:
        print(cmd, out)
        bad = 1
sys.exit(bad)
PY
[ -z "$holder" ] || { kill "$holder"; wait "$holder" 2>/dev/null; }
rm -r "$m/private"
stop_mount "$m"
