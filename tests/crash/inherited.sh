#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
#
# P1, P5: files whose writers stay while a child closes what it inherited (every exec of a
# subprocess does); then they are renamed, replaced, removed. All is killed: the close that was
# answered is not found again by a name that is another file's now.
. "$(dirname "$0")/../lib/lib.sh"

store=$TMP/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=64M
mkdir "$mnt/d"
python3 - "$mnt" >"$TMP/out" <<'EOF' &
import os, sys, time
m = sys.argv[1]
def begin(name):
	fd = os.open(m + "/" + name, os.O_CREAT | os.O_WRONLY, 0o644)
	os.write(fd, b"old " + name.encode())
	os.close(os.dup(fd))
	return fd
fds = [begin(n) for n in ("replaced", "removed", "moved", "linked", "kept")]
with open(m + "/new", "w") as f:
	f.write("new")
os.rename(m + "/new", m + "/replaced")
os.unlink(m + "/removed")
os.rename(m + "/moved", m + "/d/moved")
os.rename(m + "/d", m + "/e")
os.link(m + "/linked", m + "/linked2")
os.unlink(m + "/linked")
os.fchmod(fds[4], 0o600)
os.setxattr(m + "/kept", "user.k", b"v")
print("ready", flush=True)
time.sleep(50)
EOF
writer=$!
retry 20 grep -q ready "$TMP/out" || die "the writer"
kill_mount "$mnt"
kill $writer
wait $writer 2>/dev/null
start_mount "$store" "$mnt" staging=64M
got=$(cd "$mnt" && find . -type f | sort | tr '\n' ' ')
[ "$got" = "./e/moved ./kept ./linked2 ./replaced " ] || die "files: $got"
[ "$(cat "$mnt/replaced")" = new ] || die "replaced: $(cat "$mnt/replaced")"
[ "$(cat "$mnt/e/moved")" = "old moved" ] || die "moved: $(cat "$mnt/e/moved")"
[ "$(cat "$mnt/linked2")" = "old linked" ] || die "linked: $(cat "$mnt/linked2")"
[ "$(stat -c %a "$mnt/kept")" = 600 ] || die "kept: mode $(stat -c %a "$mnt/kept")"
[ "$(xattr "$mnt/kept" user.k)" = v ] || die "kept: xattr"
n=$(find "$store/.cairn/lost+found" -type f | wc -l)
[ "$n" = 2 ] || die "$n files in lost+found, not the replaced and the removed one"
stop_mount "$mnt"
