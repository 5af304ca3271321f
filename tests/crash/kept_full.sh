#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
#
# All is killed while files are written: one outgrew memory, one lies in memory. The store is full at the
# next starts. Nothing of either is removed, by the starts or by a clean unmount; with space, both come
# whole to lost+found.
. "$(dirname "$0")/../lib/lib.sh"

make_disk small ext4 700M
store=$TMP/small/store mnt=$TMP/mnt lf=$TMP/small/store/.cairn/lost+found
start_mount "$store" "$mnt" staging=64M

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
