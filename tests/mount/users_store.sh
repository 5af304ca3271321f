#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# A store of an ordinary user's under root's mount with other users' files: what he can make, rename and
# keep open in it gives him none of their bytes, and no file outside of it.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool setpriv

A=54301 B=54302
as() { local u=$1; shift; setpriv --reuid="$u" --regid="$u" --clear-groups "$@" 2>/dev/null; }
cd /
chmod 755 "$TMP"
s=$TMP/store m=$TMP/m
install -d -o $B -m 755 "$s"

# .cairn, or anything in it, that is not root's: refused, and it is said what to do
host=$(uname -n)
as $B mkdir -m 700 -p "$s/.cairn" && as $B mkdir -m 700 -p "$s/.cairn/$host/tmp" || die "mkdir"
try_mount "$s" "$m" allow_other 2>"$TMP/err" && die "root's mount takes a user's .cairn"
has "chown -R root $s/.cairn" <"$TMP/err" || die "it says: $(cat "$TMP/err")"
chown 0 "$s/.cairn" "$s/.cairn/$host"
try_mount "$s" "$m" allow_other 2>"$TMP/err" && die "root's mount takes a user's tmp"

chown -R 0 "$s/.cairn"
start_mount "$s" "$m" allow_other
mkdir -m 1777 "$m/w"
as $A bash -c 'umask 077; head -c 300000 /dev/zero | tr "\0" A >"$1/private"; sync "$1/private"' - "$m/w" || die "A"
# nothing of it is to be seen on the way
[ "$(stat -c %a:%u "$s/.cairn")" = 700:0 ] || die ".cairn: $(stat -c %a:%u "$s/.cairn")"
as $B ls "$s/.cairn/$host/tmp" && die "B lists tmp"
# he may move .cairn away, as the directory is his; the mount goes on in its own
as $B mv "$s/.cairn" "$s/mine" && as $B mkdir "$s/.cairn" || die "mv"
as $A bash -c 'umask 077; echo more >"$1/more"; sync "$1/more"' - "$m/w" || die "A, after .cairn was moved"
[ -z "$(ls -A "$s/.cairn")" ] || die "the mount went on in B's: $(ls -AR "$s/.cairn")"
rmdir "$s/.cairn" && mv "$s/mine" "$s/.cairn"
stop_mount "$m"
[ "$(stat -c %a:%u "$s/w/private")" = 600:$A ] || die "private: $(stat -c %a:%u "$s/w/private")"
