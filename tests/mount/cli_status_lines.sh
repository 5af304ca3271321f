#!/bin/bash
# SPDX-License-Identifier: MIT
# cairn status: first whether everything is durable, and what is pending; no line is longer than the screen, whatever
# paths are called; names cannot write lines or control a terminal; one file is "1 file".
# modes: fast
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

# fits COLUMNS: what is in $TMP/out
fits()
{
	python3 - "$1" "$TMP/out" <<'PY' || die "$1 columns: $(cat "$TMP/out")"
import sys
text = open(sys.argv[2], encoding="utf-8", newline="").read()
assert text.endswith("\n") and text.count("\n") > 8
for line in text.splitlines(keepends=True):
    assert line[-1] == "\n" and line[:-1].isprintable(), repr(line)
    assert len(line) - 1 <= int(sys.argv[1]), repr(line)
PY
}

s=$TMP/$'odd\n\e[31mstore' m=$TMP/$(printf 'mountpoint-%03d/' {1..10})mnt
start_mount "$s" "$m"
expect 0 env -u COLUMNS "$cairn" status "$m"
fits 80
[ "$(head -n 1 "$TMP/out")" = "everything is durable" ] || die "first line: $(cat "$TMP/out")"
says out '^  mount      /.*\.\.\..*point-010/mnt$'
shown=$(sed -n 's/^  mount  *//p' "$TMP/out")
[[ $m = "${shown%...*}"*"${shown##*...}" ]] || die "not the mount, cut in the middle: $shown"
says out '  .*odd\\x0a\\x1b\[31mstore$'
says out 'store  .* free, 0 operations queued'
says out 'worker  .* 0 restarts'
says out 'keeper  .* alive'
says out 'cairnfs  .*up for 0:'
"$cairn" status --json "$m" | python3 -c 'import json, sys
d = json.load(sys.stdin)
assert d["not_durable"] == {"files": 0, "bytes": 0, "oldest_s": 0}, d["not_durable"]
assert 0 < d["space"]["free_bytes"] < d["space"]["size_bytes"], d["space"]
assert d["worker_uptime_s"] <= d["uptime_s"] < 3600, d' || die "status.json"

# one open file, then a closed one that is still mapped: it and the next one are pending
name=$m/$'shard\n\e[2Jend'
expect 0 "$cairn" wait -q "$m"
exec 8>"$m/open"
expect 0 env -u COLUMNS "$cairn" status "$m"
says out '^not everything is durable$'
says out '^             1 file open, durable after the close$'
exec 8>&-
expect 0 "$cairn" wait -q "$m"
(map_and_hold "$name" "$TMP/ready") &
holder=$!
on_exit 'kill $holder 2>/dev/null'
retry 20 test -e "$TMP/ready" || die "no mapping"
expect 0 env -u COLUMNS "$cairn" status "$m"
fits 80
says out '^not everything is durable: 1 file pending, 1.0 MiB'
says out 'mapped  .*shard?\\x1b\[2Jend'
for i in 1 2 3; do echo x >"$m/f$i"; done
COLUMNS=40 within 2 "$cairn" status --watch "$m" >"$TMP/out"
fits 40
says out 'durable: 4 files'
# the terminal's own width
python3 - "$cairn" "$m" <<'PY' >"$TMP/out" || die "on a terminal of 47 columns"
import fcntl, os, pty, struct, sys, termios
pid, fd = pty.fork()
if not pid:
    os.environ.pop("COLUMNS", None)
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 47, 0, 0))
    os.execv(sys.argv[1], ["cairn", "status", sys.argv[2]])
text = b""
try:
    while more := os.read(fd, 65536):
        text += more
except OSError:
    pass
assert os.waitpid(pid, 0)[1] == 0
sys.stdout.buffer.write(text.replace(b"\r\n", b"\n"))
PY
fits 47
kill $holder
wait $holder 2>/dev/null
expect 0 "$cairn" wait -q "$m"

# a message about such a name is one line, too
expect 2 "$cairn" wait "$m/no"$'\n\e[2J'
[ "$(wc -l <"$TMP/err")" = 1 ] || die "more than one line: $(cat "$TMP/err")"
says err 'no\\x0a\\x1b\[2J'
worker=$(worker_pid "$m")
kill -KILL "$worker"
restarted() { [ "$(status_field "$m" restarts)" = 1 ]; }
retry 20 restarted || die "no worker came"
expect 0 env -u COLUMNS "$cairn" status "$m"
says out 'worker  .* 1 restart$'
stop_mount "$m"
