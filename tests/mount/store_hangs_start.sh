#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# waits: yes
# A store that does not answer: a start, `cairn hosts` of it and `cairn umount` of its mount say which one they wait for,
# go on when it answers, and are ended by Ctrl-C meanwhile, though what waits inside the store's filesystem cannot be.
. "$(dirname "$0")/../lib/lib.sh"

need_root
[ -c /dev/fuse ] || skip "needs /dev/fuse"
src=$TMP/src store=$TMP/store mnt=$TMP/mnt hang=$TMP/hang cairn=$BUILD/cairn
mkdir "$src" "$store" "$mnt"
helper hang_store "$src" "$store" "$hang" || skip "no FUSE mount here"
unhang() { rm -f "$hang"; }
on_exit 'unhang; ! is_mounted "$mnt" || retry 20 umount "$mnt"; retry 20 umount "$store" 2>/dev/null || umount -l "$store"'

# In the background a shell's commands ignore SIGINT. Their output is a pipe, which has to end with them.
n=0
begin()
{
	n=$((n + 1))
	{ env --default-signal=INT "$@" 2>&1 & echo $! >"$TMP/pid.$n"; wait $!; echo "exit $?"; } | { cat >"$TMP/out.$n"; touch "$TMP/end.$n"; } &
	retry 10 test -s "$TMP/pid.$n" || die "not begun: $*"
}
says() { has "$2" "$TMP/out.$1"; }
told() { retry 20 says "$1" "$2" || { unhang; die "no '$2' in: $(cat "$TMP/out.$1")"; }; }
# The N-th one waits, says so once, and Ctrl-C ends it.
interrupted()
{
	told "$1" "$2"
	! says "$1" "^exit" || { unhang; die "it did not wait: $(cat "$TMP/out.$1")"; }
	kill -INT "$(cat "$TMP/pid.$1")"
	told "$1" "^exit 130"
	retry 10 test -e "$TMP/end.$1" || { unhang; die "its output does not end: $(cat "$TMP/out.$1")"; }
	[ "$(grep -c "$2" "$TMP/out.$1")" = 1 ] || { unhang; die "more than once: $(cat "$TMP/out.$1")"; }
}

start_mount "$store" "$mnt"
echo there >"$mnt/there"
wait_durable "$mnt"
sleep 1.5 # longer than the kernel keeps names and attributes
touch "$hang"
begin "$cairn" hosts "$store"
begin "$cairn" hosts "$mnt"
begin "$cairn" umount -q "$mnt"
begin "$cairn" umount -q --timeout 3 "$mnt"
told 4 "$store: no answer for .* the store does not answer"
told 4 "^exit 3"
interrupted 1 "^cairn: $store: no answer for 0:1[0-9]; waiting for it$"
interrupted 2 "^cairn: $store: no answer for 0:1[0-9]; waiting for it$"
interrupted 3 "^cairn: $store: no answer for 0:1[0-9]; waiting for it$"

# one that is not interrupted goes on
begin "$cairn" umount -q "$mnt"
told 5 "$store: no answer"
unhang
told 5 "^exit 0"
[ "$(cat "$src/there")" = there ] || die "the store"

sleep 1.5
touch "$hang"
waits="^cairnfs: the store $store does not answer; waiting for it$"
for f in "" -f; do
	# shellcheck disable=SC2086	# it may be none
	begin "$BUILD/cairnfs" "$store" "$mnt" -o staging=64M,pool=0 $f
	interrupted $n "$waits"
done
! is_mounted "$mnt" || die "mounted by a start that was interrupted"
begin "$BUILD/cairnfs" "$store" "$mnt" -o staging=64M,pool=0
told $n "$waits"
unhang
told $n "^exit 0"
[ "$(cat "$mnt/there")" = there ] || die "not mounted when the store answers"
"$cairn" umount -q "$mnt" || die "umount"
