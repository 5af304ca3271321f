#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn verify: finds a flipped byte, a foreign file and a missing one, on mount and store.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

start_mount "$s" "$m"
mkdir -p "$m/run/sub"
for f in run/a run/sub/b; do
	head -c 3000000 /dev/urandom >"$m/$f"
done
: >"$m/run/empty"
truncate -s 30M "$m/run/holes"
printf data | dd of="$m/run/holes" bs=1 seek=20000001 conv=notrunc status=none
expect 0 "$cairn" wait "$m"
expect 0 "$cairn" verify "$m"
says out '^4 ok, 0 mismatched, 0 unreadable, 0 unverifiable'
expect 0 "$cairn" verify "$s"
says out '^4 ok, 0 mismatched'
expect 0 "$cairn" verify "$m/run/a" "$m/run/sub"
says out '^2 ok'

# what is not durable is told and not read
exec 8>"$m/run/held"
echo x >&8
expect 0 "$cairn" verify "$m/run"
says out "^not-durable *$m/run/held: open"
exec 8>&-
wait_durable "$m/run"

# a file that something else put there
echo foreign >"$s/run/foreign"
expect 0 "$cairn" verify "$s/run"
says out ' 1 unverifiable'
rm "$s/run/foreign"

flip()	# one bit of a store file, its times unchanged
{
	python3 - "$1" "$2" <<'PY'
import os, sys
path, off = sys.argv[1], int(sys.argv[2])
st = os.stat(path)
fd = os.open(path, os.O_RDWR)
b = os.pread(fd, 1, off)
os.pwrite(fd, bytes([b[0] ^ 1]), off)
os.fsync(fd)
os.close(fd)
os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
PY
}
flip "$s/run/sub/b" 2999999
expect 1 "$cairn" verify "$m"
says out "^mismatch *$m/run/sub/b: expected xxh3:"
[ "$(grep -c mismatch "$TMP/out")" = 2 ] || die "more than b is called bad: $(cat "$TMP/out")"
expect 1 "$cairn" verify "$s"
says out "^mismatch *$s/run/sub/b"
expect 0 "$cairn" verify "$m/run/a"
expect 1 "$cairn" verify --json "$m/run"
python3 - "$TMP/out" <<'PY' || die "verify --json: $(cat "$TMP/out")"
import json, sys
d = json.load(open(sys.argv[1]))
assert d["mismatch"] == 1 and d["ok"] == 4 and d["unreadable"] == 0, d
(f,) = d["files"]
assert f["path"].endswith("run/sub/b") and f["result"] == "mismatch" and f["got"] != f["expected"]
PY
flip "$s/run/sub/b" 2999999
expect 0 "$cairn" verify "$m"
stop_mount "$m"

# on the bare store: longer, shorter, a hole filled
expect 0 "$cairn" verify "$s"
echo more >>"$s/run/a"
expect 1 "$cairn" verify "$s/run/a"
truncate -s 100 "$s/run/sub/b"
printf x | dd of="$s/run/holes" bs=1 seek=5000000 conv=notrunc status=none
expect 1 "$cairn" verify "$s"
says out '^2 ok, 3 mismatched'
