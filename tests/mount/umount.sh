#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# The end of a mount: what was accepted is in the store when the daemon is gone.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt

in_store()
{
	helper files check "$store/d" 20 2000000 || die "$1: files"
	helper files same "$store/big" 100000000 7 || die "$1: the big one"
	[ ! -e "$store/gone" ] || die "$1: a removed file is there"
	[ "$(readlink "$store/link")" = big ] || die "$1: the symlink"
}

write_all()
{
	mkdir "$mnt/d"
	helper files put "$mnt/gone" 5000 1 || die "put"
	helper files make "$mnt/d" 20 2000000 || die "make"
	helper files put "$mnt/big.tmp" 100000000 7 || die "put"
	mv "$mnt/big.tmp" "$mnt/big"
	ln -s big "$mnt/link"
	rm "$mnt/gone"
}

clear_all() { rm -rf "$mnt/d" "$mnt/big" "$mnt/link"; }

# umount drains.
start_mount "$store" "$mnt"
write_all
end_mount "$mnt"
in_store "umount"

# The next mount shows it all, and a mount nobody used ends well.
start_mount "$store" "$mnt"
same_tree "$mnt" "$store"
clear_all
end_mount "$mnt"
[ -z "$(ls "$store")" ] || die "removed, but still in the store: $(ls "$store")"

# SIGTERM to the daemon: the same.
start_mount "$store" "$mnt"
write_all
pid=$(keeper_pid "$mnt")
kill -TERM "$pid"
retry 60 lib_pid_gone "$pid" || die "alive 60 s after SIGTERM"
! is_mounted "$mnt" || die "still mounted after SIGTERM"
in_store "SIGTERM"

# A start while the last one drains: waits, or refuses and names the pid; nothing is lost.
start_mount "$store" "$mnt"
clear_all
write_all
pid=$(keeper_pid "$mnt")
umount "$mnt" || die "umount"
rc=0
"$BUILD/cairnfs" "$store" "$mnt" -o staging=512M,pool=0 >"$TMP/second" 2>&1 || rc=$?
if [ $rc = 0 ]; then
	in_store "a start meanwhile"
	same_tree "$mnt" "$store"
	second=$(keeper_pid "$mnt")
	umount "$mnt" || die "umount of the second"
	retry 60 lib_pid_gone "$second" || die "the second does not end"
else
	grep -q "$pid" "$TMP/second" || die "refused without the pid: $(cat "$TMP/second")"
fi
retry 60 lib_pid_gone "$pid" || die "does not end"
in_store "after a second start"

# busy: an open file keeps the mount, and the file goes on.
start_mount "$store" "$mnt"
mkfifo "$TMP/go"
helper files hold "$mnt/held" 100000 5 <"$TMP/go" >"$TMP/held" &
holder=$!
exec 9>"$TMP/go"
retry 20 grep -q written "$TMP/held" || die "hold"
if umount "$mnt" 2>/dev/null; then
	die "umounted under an open file"
fi
umount -l "$mnt" || die "umount -l"
exec 9>&-
wait $holder || die "the writer saw an error after umount -l"
retry 60 lib_pid_gone "${LIB_KEEPER[$mnt]}" || die "does not end after umount -l"
unset "LIB_KEEPER[$mnt]" "LIB_STORE[$mnt]"
helper files same "$store/held" 100000 5 || die "what was closed after umount -l is lost"

# Another store mounted at the same place, while the daemon of the first still drains: the
# end of the first leaves it alone.
export CAIRNFS_FAULT=1:1:delay	# every store operation takes its time
start_mount "$store" "$mnt"
unset CAIRNFS_FAULT
pid=$(keeper_pid "$mnt")
mkdir "$mnt/slow"
helper files make "$mnt/slow" 40 5000 || die "make"
umount "$mnt" || die "umount"
lib_pid_gone "$pid" && die "drained at once: this shows nothing"
start_mount "$TMP/other" "$mnt"
retry 60 lib_pid_gone "$pid" || die "the first does not end"
is_mounted "$mnt" || die "the daemon of the first store took the second mount down"
end_mount "$mnt"
helper files check "$store/slow" 40 5000 || die "the first store"
