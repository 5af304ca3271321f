#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
#
# The store is filled beside the mount after a file was written with space enough: its close fails. The
# version stays, everything says so, and it comes first when a removal made space, or `cairn discard`
# gives it up.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

cairn=$BUILD/cairn MIB=1048576
make_disk small ext4 512M
store=$TMP/small/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=96M
helper files put "$mnt/old" 40000000 1 || die "the first checkpoint"
helper files put "$mnt/keep" 20000000 2 || die "another file"
wait_durable "$mnt"

# late BYTES SEED NAME...: written with space, closed without
late()
{
	python3 - "$TMP/small" "$mnt" "$@" <<'EOP'
import errno, os, sys
disk, mnt, size, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
fds = []
for name in sys.argv[5:]:
    fd = os.open(mnt + "/" + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    fds.append(fd)
    left = memoryview(bytes([seed]) * size)
    while left:
        left = left[os.write(fd, left):]
st = os.statvfs(disk)
f = os.open(disk + "/filler", os.O_WRONLY | os.O_CREAT)
space = st.f_bavail * st.f_frsize - (8 << 20)
if space > 0:
    os.posix_fallocate(f, os.fstat(f).st_size, space)
os.close(f)
for fd in fds:
    try:
        os.close(fd)
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        continue
    sys.exit("a close found space")
EOP
}
same() { cmp <(head -c "$3" /dev/zero | tr '\0' "\\$(printf %03o "$2")") "$1" >/dev/null 2>&1; }

mkdir -p "$mnt/run/step-1"
late 30000000 7 run/step-1/new || die "new, in a directory"
rc=0; "$cairn" umount -q "$mnt" 2>"$TMP/err" || rc=$?
[ $rc = 1 ] && has "1 file failed: run/step-1/new: No space left" "$TMP/err" || die "which one? $(cat "$TMP/err")"

# All that failed are named, and none that was written again since.
rm "$TMP/small/filler"
is_durable() { [ "$(state "$mnt") " = "durable " ]; }
retry 30 is_durable || die "not tried again"
wait_durable "$mnt"
late 20000000 7 run/step-1/new run/step-1/other run/step-1/log || die "three files"
echo again >"$mnt/run/step-1/log" || die "a small file"
rc=0; "$cairn" umount -q "$mnt" 2>"$TMP/err" || rc=$?
[ $rc = 1 ] && has "2 files failed: " "$TMP/err" && ! has "/log" "$TMP/err" || die "which ones? $(cat "$TMP/err")"
for name in new other; do
	has "run/step-1/$name: No space left" "$TMP/err" || die "$name is not named: $(cat "$TMP/err")"
done
rm -r "$mnt/run" "$TMP/small/filler"
wait_durable "$mnt"

late 30000000 7 new || die "new"
[ "$(state "$mnt/new")" = failed ] || die "state $(state "$mnt/new")"
errors=$(status_field "$mnt" errors.count)
status_field "$mnt" errors.last | has "new: No space left" || die "errors.last: $(status_field "$mnt" errors.last)"
[ "$(metric "$mnt" failed_files)" = 1 ] || die "metrics: failed_files"
rc=0; "$cairn" wait -q "$mnt" 2>"$TMP/err" || rc=$?
[ $rc = 1 ] && has "new failed: No space left" "$TMP/err" || die "cairn wait: $rc, $(cat "$TMP/err")"
rc=0; "$cairn" umount -q "$mnt" 2>"$TMP/err" || rc=$?
[ $rc = 1 ] && has "failed: .*No space left" "$TMP/err" || die "cairn umount: $rc, $(cat "$TMP/err")"
same "$mnt/new" 7 30000000 || die "the failed version cannot be read"
sleep 6
[ "$(status_field "$mnt" errors.count)" = "$errors" ] || die "a try again counts as an error: $(status_field "$mnt" errors)"

# A removal makes space: it is the failed one's, whoever comes.
rm "$mnt/old"
retry 3 same "$store/new" 7 30000000 || die "space came, and the failed version is not in the store"
wait_durable "$mnt"

# Given up by a person's word only: the version before counts again, or there is none.
rm "$TMP/small/filler"
late 40000000 8 new other || die "new again, and other"
same "$store/new" 7 30000000 || die "the version before is gone from the store"
rc=0; "$cairn" discard "$mnt/keep" 2>"$TMP/err" || rc=$?
[ $rc = 1 ] && has "state is not failed" "$TMP/err" || die "discard of a good file: $rc, $(cat "$TMP/err")"
"$cairn" discard "$mnt/new" "$mnt/other" || die "discard"
[ ! -e "$mnt/other" ] || die "other is still there"
retry 5 same "$mnt/new" 7 30000000 || die "after the discard: $(stat -c %s "$mnt/new") bytes"
rm "$TMP/small/filler"
wait_durable "$mnt"
same "$store/new" 7 30000000 || die "the store has not the version before"
end_mount "$mnt"
start_mount "$store" "$mnt" staging=96M
same "$mnt/new" 7 30000000 || die "new after a start"
[ ! -e "$mnt/other" ] || die "other after a start"
end_mount "$mnt"
