#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
#
# All is killed while files are written: one outgrew memory, one lies in memory. The store is full at the
# next starts. Nothing of either is removed, by the starts or by a clean unmount; with space, both come
# whole to lost+found, by their names. So does a file whose close failed; until then the mount says that it is not safe.
# And what a killed worker left half written in the store is removed before: its space is enough for them.
. "$(dirname "$0")/../lib/lib.sh"

make_disk small ext4 700M
store=$TMP/small/store mnt=$TMP/mnt lf=$TMP/small/store/.cairn/lost+found
# noearly: half-written files would be removed by the next start, which had space then
start_mount "$store" "$mnt" staging=64M,noearly

python3 - "$mnt" "$TMP/written" <<'EOP' &
import os, sys, time
def put(name, n):
    fd = os.open(sys.argv[1] + "/" + name, os.O_WRONLY | os.O_CREAT)
    for i in range(n):
        os.write(fd, bytes([1 + i]) * (8 << 20))
    return fd
fds = [put("little", 2), put("big", 25)]
open(sys.argv[2], "w").close()
time.sleep(1000)
EOP
writer=$!
on_exit "kill $writer 2>/dev/null"
retry 60 test -e "$TMP/written" || die "the files are not written"
sleep 0.5
kill_mount "$mnt"
kill $writer
wait $writer 2>/dev/null

fallocate -l $(($(stat -f -c '%a * %S' "$TMP/small"))) "$TMP/small/filler" || die "fallocate"
dd if=/dev/zero of="$TMP/small/filler2" bs=64K 2>/dev/null
note "free: $(stat -f -c '%f' "$TMP/small") blocks"

# What the mount says while something cannot be moved to lost+found, and when all is.
tells_kept()
{
	local n=$1 rc=0
	[ "$(status_field "$mnt" recovered.kept)" = "$n" ] || die "$2: $(status_field "$mnt" recovered)"
	[ "$(metric "$mnt" kept_files)" = "$n" ] || die "$2: metrics: kept_files"
	"$BUILD/cairn" status "$mnt" >"$TMP/out" || die "$2: cairn status"
	has "^ *KEPT  *$n file" <"$TMP/out" || die "$2: cairn status: $(cat "$TMP/out")"
	! has "^everything is durable" <"$TMP/out" || die "$2: cairn status: $(cat "$TMP/out")"
	has "KEPT .*cairn retry" <"$mnt/.cairn/status" || die "$2: .cairn/status: $(cat "$mnt/.cairn/status")"
	"$BUILD/cairn" wait -q --timeout 20 "$mnt" 2>"$TMP/err" || rc=$?
	[ $rc = 1 ] && has "lost+found.*cairn retry" <"$TMP/err" || die "$2: cairn wait: $rc, $(cat "$TMP/err")"
	rc=0
	"$BUILD/cairn" umount -q "$mnt" 2>"$TMP/err" || rc=$?
	[ $rc = 1 ] && has "cairn retry" <"$TMP/err" || die "$2: cairn umount: $rc, $(cat "$TMP/err")"
	mountpoint -q "$mnt" || die "$2: cairn umount: it is unmounted"
}
worker_is_new() { [ "$(worker_pid "$mnt")" != "$1" ]; }
tells_durable()
{
	"$BUILD/cairn" wait -q --timeout 60 "$mnt" || die "$1: cairn wait"
	"$BUILD/cairn" status "$mnt" | has "^everything is durable" || die "$1: $("$BUILD/cairn" status "$mnt")"
	[ "$(metric "$mnt" kept_bytes)" = 0 ] || die "$1: metrics: kept_bytes"
}

for i in 1 2; do
	start_mount "$store" "$mnt" staging=64M
	status_field "$mnt" recovered
	[ "$MODE" = relay ] || status_field "$mnt" notices | has "cairn retry" || die "start $i: nothing is said: $(status_field "$mnt" notices)"
	stop_mount "$mnt"
done
start_mount "$store" "$mnt" staging=64M
rm "$TMP/small/filler" "$TMP/small/filler2"
"$BUILD/cairn" retry "$mnt" >/dev/null || die "cairn retry"
[ "$(status_field "$mnt" recovered.kept)" = 0 ] || die "with space: $(status_field "$mnt" recovered)"
tells_durable "with space"
stop_mount "$mnt"

python3 - "$lf" <<'EOP' || die "lost+found: $(ls -l "$lf")"
import os, sys
want = {25: "big", 2: "little"}
for f in os.listdir(sys.argv[1]):
    with open(sys.argv[1] + "/" + f, "rb") as g:
        n = os.fstat(g.fileno()).st_size >> 23
        for i in range(n):
            if g.read(8 << 20) != bytes([1 + i]) * (8 << 20):
                sys.exit("%s: wrong bytes in piece %d of %d" % (f, i, n))
        want.pop(n, None)
if want:
    sys.exit("not there, or not whole: %s" % sorted(want.values()))
EOP
for name in big little; do
	compgen -G "$lf/$name.unclosed.*" >/dev/null || die "$name has another name: $(ls "$lf")"
done

# The close fails, and then all is killed: twice, and the store stays full. (In the relay lane each write allocates its
# blocks in the store, and the next start has the space of these.)
[ "$MODE" = fast ] || exit 0
start_mount "$store" "$mnt" staging=64M,fsync=staged
head -c 4M /dev/zero >"$mnt/h" || die "h"
wait_durable "$mnt"
fallocate -l $(($(stat -f -c '%a * %S' "$TMP/small") - (10 << 20))) "$TMP/small/filler" || die "fallocate"
python3 - "$mnt/h" <<'EOP' || die "20 MiB went into 10 MiB"
import errno, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)
try:
    for i in range(20):
        os.write(fd, bytes([1 + i]) * (1 << 20))
    os.close(fd)
    sys.exit(1)
except OSError as e:
    sys.exit(e.errno != errno.ENOSPC)
EOP
[ "$(state "$mnt/h")" = failed ] || die "h: $(state "$mnt/h")"
kill_mount "$mnt"
dd if=/dev/zero of="$TMP/small/filler2" bs=64K 2>/dev/null
start_mount "$store" "$mnt" staging=64M,fsync=staged
tells_kept 1 "a failed close"
worker=$(worker_pid "$mnt")
kill -KILL "$worker"
retry 20 worker_is_new "$worker" || die "no new worker"
tells_kept 1 "a failed close, another worker"
kill_mount "$mnt"
start_mount "$store" "$mnt" staging=64M,fsync=staged
tells_kept 1 "a failed close, killed again"
rm "$TMP/small/filler" "$TMP/small/filler2"
"$BUILD/cairn" retry "$mnt" >/dev/null || die "cairn retry"
tells_durable "a failed close, with space"
within 60 "$BUILD/cairn" umount -q "$mnt" || die "cairn umount"
unset "LIB_KEEPER[$mnt]" "LIB_STORE[$mnt]"
compgen -G "$lf/h.unclosed.*" >/dev/null || die "h has another name: $(ls "$lf")"
cmp -s "$store/h" <(head -c 4M /dev/zero) || die "h is another in the store"

# An interrupted persist has the space that the file needs.
start_mount "$store" "$mnt" staging=64M,noearly
python3 - "$mnt/late" "$TMP/late" <<'EOP' &
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(fd, b"l" * (16 << 20))
open(sys.argv[2], "w").close()
time.sleep(1000)
EOP
writer=$!
retry 60 test -e "$TMP/late" || die "late is not written"
kill_mount "$mnt"
kill $writer
wait $writer 2>/dev/null
tmp=$(compgen -G "$store/.cairn/*/tmp") || die "no tmp"
fallocate -l 24M "$tmp/0000000000000001" || die "fallocate"
fallocate -l $(($(stat -f -c '%a * %S' "$TMP/small"))) "$TMP/small/filler" || die "fallocate"
dd if=/dev/zero of="$TMP/small/filler2" bs=64K 2>/dev/null
start_mount "$store" "$mnt" staging=64M
[ "$(status_field "$mnt" recovered.lost_found)" = 1 ] || die "late: $(status_field "$mnt" recovered)"
status_field "$mnt" notices | has "cairn retry" && die "late: it is said that there is no space: $(status_field "$mnt" notices)"
stop_mount "$mnt"
cmp -n $((16 << 20)) "$lf"/late.unclosed.* <(head -c 16M /dev/zero | tr '\0' l) || die "late is not in lost+found"
