#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn ls: states, sums of directories, names of any bytes; on the mount and on the bare store.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

start_mount "$s" "$m"
mkdir -p "$m/run/step-1/deep"
head -c 3000 /dev/urandom >"$m/run/step-1/a"
head -c 5000 /dev/urandom >"$m/run/step-1/deep/b"
odd=$'quote" back\\ nl\n bad\xff end'
echo odd >"$m/run/$odd"
echo utf >"$m/run/é"
ln -s nowhere "$m/run/link"
exec 8>"$m/run/held"
for f in step-1 "$odd" é; do
	wait_durable "$m/run/$f"
done

expect 0 "$cairn" ls "$m/run"
says out '^durable    step-1/$'
says out '^open       held$'
# a name is a line, and only that of it is changed: \x0a for the newline
LC_ALL=C has -a $'^durable    quote" back\\\\ nl\\\\x0a bad\xff end$' "$TMP/out" || die "an odd name: $(cat -v "$TMP/out")"
grep -q '\.cairn' "$TMP/out" && die "the control directory is listed"
mkdir -p "$m/steps"/step-{9,10,99,100}
expect 0 "$cairn" ls "$m/steps"
[ "$(awk '{ print $2 }' "$TMP/out" | tr '\n' ' ')" = 'step-9/ step-10/ step-99/ step-100/ ' ] ||
	die "not in the order of their numbers: $(cat "$TMP/out")"
rmdir "$m/steps"/* "$m/steps"
expect 0 "$cairn" ls -l --bytes "$m/run"
says out ' 8000 .*durable .* step-1/ (2 files)$'
expect 0 "$cairn" ls -l "$m/run/step-1/a"
says out '2.9 KiB'
exec 8>&-
wait_durable "$m/run"

check_json()
{
	python3 - "$TMP/out" "$1" <<'PY' || die "ls --json: $(cat "$TMP/out")"
import json, sys
(d,) = json.load(open(sys.argv[1], encoding="utf-8"))
e = {x["name"]: x for x in d["entries"]}
names = [bytes.fromhex(x.get("name_hex", x["name"].encode().hex())) for x in d["entries"]]
assert names == sorted(names), names
odd = [x for x in d["entries"] if "name_hex" in x]
assert len(odd) == 1 and bytes.fromhex(odd[0]["name_hex"]) == b'quote" back\\ nl\n bad\xff end', odd
assert "é" in e and e["link"]["type"] == "symlink" and e["link"]["target"] == "nowhere"
assert e["step-1"]["files"] == 2 and e["step-1"]["size"] == 8000
assert e["é"]["checksum"].startswith("xxh3:") and len(e["é"]["checksum"]) == 37
on_mount = sys.argv[2] == "mount"
assert ("mount" in d) == on_mount and ("store" in d) != on_mount
assert e["é"]["state"] == ("durable" if on_mount else None)
PY
}
expect 0 "$cairn" ls --json "$m/run"
check_json mount
stop_mount "$m"

expect 0 "$cairn" ls --json "$s/run"
check_json store
expect 0 "$cairn" ls "$s"
[ "$(cat "$TMP/out")" = "-          run/" ] || die "the bare store lists: $(cat "$TMP/out")"

# A user who may not look into .cairn; a file of tensors makes the store's top a checkpoint, of that file only.
cp "$assets/safetensors/model.safetensors" "$s"
echo notes >"$s/README"
for top in "$s" "$TMP/store2"; do
	mkdir -p "$top/.cairn"
	chmod 700 "$top/.cairn"
	chmod 755 "$top"
done
cp "$assets"/dcp/*.distcp "$assets/dcp/.metadata" "$TMP/store2"
chmod 755 "$TMP"
expect 0 "$cairn" ls "$s"
says out '^-          \./  safetensors, 1 file, 486 B, '
expect 0 "$cairn" ls --json "$s"
expect 0 "$cairn" check "$s/model.safetensors" "$s"
[ "$(grep -c '; 0 checksums and 0 CRCs match, 1 file without a checksum; 0 bad$' "$TMP/out")" = 2 ] ||
	die "check of one file, and of the directory with others: $(cat "$TMP/out")"
expect 0 "$cairn" ls --json "$s"
has '"files": 1, "bytes": 486' "$TMP/out" || die "files of others are counted: $(cat "$TMP/out")"
if [ "$(id -u)" = 0 ]; then
	need_tool setpriv
	cp "$cairn" "$TMP/cairn"	# where that user can reach it
	for top in "$s" "$TMP/store2"; do
		for how in "" -l --json; do
			expect 0 setpriv --reuid 65534 --regid 65534 --clear-groups "$TMP/cairn" ls ${how:+$how} "$top"
		done
	done
	expect 0 setpriv --reuid 65534 --regid 65534 --clear-groups "$TMP/cairn" ls "$TMP/store2"
	says out '^-          \./  dcp, 2/2 ranks, 3 files, '
fi
