#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# cairn timeline: what a save waited for is named: a full staging, a slow disk, a commit that is held, an
# fsync; on the mount, after a restart, and in the unmounted store; a torn line does not matter.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root
need_tool fsfreeze

s=$TMP/disk
# waited PATH CAUSE MS [DIR]: the checkpoint waited at least this long for it
waited()
{
	"$cairn" timeline --json "${4:-$m}" >"$TMP/json" 2>"$TMP/err" || return 1
	python3 - "$TMP/json" "$@" <<'PY'
import json, sys
doc, path, cause, ms = json.load(open(sys.argv[1])), *sys.argv[2:4], int(sys.argv[4])
found = [c for c in doc["checkpoints"] if c["path"] == path]
for c in found:
    assert c["created_ms"] <= c["closed_ms"] <= c["durable_ms"] and c["files"] >= 1, c
sys.exit(not any(c["waited_ms"][cause] >= ms for c in found))
PY
}
named() { retry 20 waited "$@" || die "$1 did not wait $3 ms for $2: $(cat "$TMP/json" "$TMP/err")"; }
never() { ! waited "$@" || die "$1 waited $3 ms for $2: $(cat "$TMP/json")"; }
is_held() { status_field "$m" held | has .metadata; }

make_disk disk ext4 512M
start_mount "$s" "$m" staging=32M,pool=0,commit_wait=60
expect 1 "$cairn" timeline "$m"
says err "no save below it is recorded"

# staging is full of what is still open: the next one is written to the disk. Of files this small none
# moves to the disk while it is written; of one written through the daemon nothing moves.
mkdir "$m/first" "$m/full"
open=()
another() # BYTES
{
	exec {fd}>"$m/first/${#open[@]}"
	open+=("$fd")
	head -c "$1" /dev/zero >&"$fd"
}
if [ "$MODE" = relay ]; then
	another 24M
	[ "$(status_field "$m" staging.used_bytes)" -ge $((24 << 20)) ] || die "staging: $(cat "$m/.cairn/status")"
else
	while [ "$(status_field "$m" opens.spill)" = 0 ]; do
		[ "${#open[@]}" -lt 16 ] || die "staging is not full: $(cat "$m/.cairn/status")"
		another 3M
	done
fi
exec 9>"$m/full/f"
echo bytes >&9
sleep 1 # it is open for so long
exec 9>&-
for fd in "${open[@]}"; do exec {fd}>&-; done
named full spill 1000

# a disk that does not answer
mkdir "$m/slow.tmp"
wait_durable "$m"
on_exit "fsfreeze -u $s 2>/dev/null"
fsfreeze -f "$s" || skip "fsfreeze: $?"
head -c 100K /dev/zero >"$m/slow.tmp/f"
mv "$m/slow.tmp" "$m/slow"
sleep 1
fsfreeze -u "$s"
wait_durable "$m"
named slow disk 1000
never slow spill 1
never slow hold 1

# a .metadata that waits for the file of another node, which comes
mkdir -m 700 "$s/.cairn/another" && : >"$s/.cairn/another/lock" # that node has mounted the store, too
mkdir "$m/held"
cp "$LIB_TOP/tests/assets/dcp/__0_0.distcp" "$m/held"
cp "$LIB_TOP/tests/assets/dcp/.metadata" "$m/held/.metadata.tmp"
mv "$m/held/.metadata.tmp" "$m/held/.metadata"
retry 20 is_held || die "nothing is held: $(cat "$m/.cairn/status")"
sleep 1
cp "$LIB_TOP/tests/assets/dcp/__1_0.distcp" "$s/held"
wait_durable "$m"
named held hold 1000
never held spill 1

# a writer in fsync, whose file is two versions
mkdir "$m/synced"
fsfreeze -f "$s"
python3 -c 'import os, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(f, b"x" * 1000)
os.fsync(f)
os.write(f, b"y")' "$m/synced/f" &
writer=$!
sleep 1
fsfreeze -u "$s"
wait $writer || die "the writer: $?"
wait_durable "$m"
named synced fsync 500
[ "$(python3 -c 'import json, sys
print(*[(c["files"], c["bytes"] >= 1000 and c["bytes"] <= 1001) for c in json.load(open(sys.argv[1]))["checkpoints"] if c["path"] == "synced"])' \
	"$TMP/json")" = "(1, True)" ] || die "not one file: $(cat "$TMP/json")"

# other ways to ask, and other times
expect 0 "$cairn" timeline "$m"
says out '^slow .* 100.0 KiB'
says out 'waited for .*spill'
awk 'length > 80 { exit 1 }' "$TMP/out" || die "more than 80 columns: $(cat "$TMP/out")"
expect 0 "$cairn" timeline "$m/slow" # by file
says out '^f '
mkdir "$m/<script>&" && echo x >"$m/<script>&/f"
wait_durable "$m"
retry 20 eval '"$cairn" timeline "$m" | has script' || die "not recorded"
expect 0 "$cairn" timeline --html "$TMP/page.html" "$m"
python3 - "$TMP/page.html" <<'PY' || die "the page: $(cat "$TMP/page.html")"
import sys, xml.dom.minidom
page = open(sys.argv[1]).read()
assert "http" not in page and "<script" not in page and "url(" not in page
body = xml.dom.minidom.parseString(page[page.index("<body>"):page.index("</html>")])
charts = [e for e in body.getElementsByTagName("svg") if e.hasAttribute("role")]
heads = [e.firstChild.data for e in body.getElementsByTagName("h2")]
assert len(charts) == len(heads) and heads[0] == "<script>&", heads
bars = dict(zip(heads, ({r.getAttribute("class") for r in c.getElementsByTagName("rect")} for c in charts)))
assert "spill" in bars["full"] and "disk" in bars["slow"] and "spill" not in bars["slow"], bars
assert "hold" in bars["held"] and "fsync" in bars["synced"], bars
PY
expect 0 "$cairn" timeline --html - "$m"
cmp "$TMP/out" "$TMP/page.html" || die "stdout has another page"
expect 1 "$cairn" timeline --html "$TMP/none/page" "$m"
expect 2 "$cairn" timeline --html - --json "$m"
kill -KILL "$(worker_pid "$m")"
named slow disk 1000
setpriv --reuid 65534 --clear-groups "$cairn" timeline "$m" 2>/dev/null && die "anyone reads paths"
stop_mount "$m"
named full spill 1000 "$s"
printf '{"path":"torn/f","by' >>"$(echo "$s"/.cairn/*/timeline)"
named held hold 1000 "$s"
start_mount "$s" "$m"
named slow disk 1000
echo more >"$m/slow/g"
wait_durable "$m"
retry 20 eval '"$cairn" timeline "$m/slow" | has "^g "' || die "nothing after the torn line"
stop_mount "$m"

# a mount that ends at once: nothing of it is lost
start_mount "$TMP/short" "$m" staging=64M
mkdir "$m/step-1"
echo bytes >"$m/step-1/f"
wait_durable "$m"
stop_mount "$m"
expect 0 "$cairn" timeline "$TMP/short"
says out "^step-1 "
