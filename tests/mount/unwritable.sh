#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 120
#
# Modes that deny their owner, who is also whom cairnfs runs as and cannot override them (a user, or root that the
# server of the store squashes): here root without that capability. What the mount allowed reaches the store.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool setpriv getfattr

deny=(setpriv --bounding-set -dac_override,-dac_read_search)
LIB_WRAP=("${deny[@]}")
store=$TMP/store mnt=$TMP/mnt

durable() # WHAT: else publication has halted
{
	within 20 "$BUILD/cairn" wait -q "$mnt" || die "$1: $("$BUILD/cairn" status "$mnt" | head -3)"
}

mode_is() # MODE NAME
{
	local m
	m=$(stat -c %a "$store/$2") || die "no $2 in the store"
	[ "$m" = "$1" ] || die "$2 has mode $m in the store, not $1"
}

nothing_lent()
{
	[ -z "$(find "$store/.cairn" -name 'lent*')" ] || die "$1: $(find "$store/.cairn" -name 'lent*' -printf '%p -> %l\n')"
}

start_mount "$store" "$mnt" staging=64M
cd "$mnt" || die cd

mkdir -m 0555 ro && mkdir -m 0 none
durable "new directories"
mode_is 555 ro && mode_is 0 none
getfattr -n user.cairn.ino "$store/ro" >/dev/null 2>&1 || die "ro has no number"

# bytes and names in directories that become unwritable, and unsearchable
mkdir -p d/sub a/b && echo one >d/f && echo x >d/r && echo x >a/b/f
durable "writable"
exec 3>d/g 4>>a/b/f
chmod 0555 d && chmod 0 a/b && chmod 0 a
echo two >>d/f && ln d/f d/h && mv d/r d/sub/r && setfattr -n user.t -v 1 d && echo more >&3 && echo more >&4
exec 3>&- 4>&-
durable "changes in d and a"
mode_is 555 d && mode_is 0 a && mode_is 0 a/b
[ "$(cat "$store/d/h" "$store/d/g" "$store/a/b/f")" = $'one\ntwo\nmore\nx\nmore' ] || die "the store's bytes"
[ -e "$store/d/sub/r" ] && [ ! -e "$store/d/r" ] || die "a rename out of d"
nothing_lent "changes"
[ "$(ls a/b && cat a/b/f)" = $'f\nx\nmore' ] || die "reading a directory of mode 0 as root"

# while a mode is lent nobody sees another one
echo 0 >d/n && durable "d/n"
(for i in $(seq 100); do echo "$i" >d/n && sync d/n || exit 1; done) &
while ! lib_pid_gone $!; do
	[ "$(stat -c %a d)" = 555 ] || die "d has mode $(stat -c %a d)"
done
wait $! || die "fsync in d"
rm d/h && rmdir none && durable "removals"

# files
for m in 444 200 0; do echo $m >m$m && chmod $m m$m; done
durable "files with modes"
for m in 444 200 0; do setfattr -n user.t -v 1 m$m && touch -d @1 m$m && mv m$m n$m; done
durable "changed files with modes"
for m in 444 200 0; do mode_is $m n$m; done

# a mark of a shard that is replaced in a checkpoint
cp -r "$LIB_TOP/tests/assets/dcp" step && durable "a checkpoint"
cp step/__0_0.distcp new && chmod 0444 new && durable "its shard" && mv -f new step/__0_0.distcp
durable "a shard of mode 0444 replaced"
cd / && stop_mount "$mnt" && nothing_lent "the end"

# more pending files than descriptors
LIB_WRAP=("${deny[@]}" prlimit --nofile=256:256)
start_mount "$store" "$mnt" staging=64M
python3 - "$mnt" <<'PY' || die "writing many files"
import os, sys
os.chdir(sys.argv[1])
for i in range(150):
    for name, size, mode in ("s", 3000, 0o444), ("l", 300000, 0o444), ("w", 100, 0o200):
        fd = os.open(name + str(i), os.O_CREAT | os.O_WRONLY, mode)
        os.write(fd, b"x" * size)
        os.close(fd)
PY
durable "many files"
mode_is 444 s149 && mode_is 444 l149 && mode_is 200 w149
stop_mount "$mnt" && nothing_lent "many files"
