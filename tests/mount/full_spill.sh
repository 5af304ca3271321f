#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: relay
# timeout: 120
# An fsync of a spilled file makes a second copy in the store. When that does not fit, the fsync says so;
# publication does not halt for it, and the file's close, which needs no copy, succeeds.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

make_disk ext4 ext4 96M
store=$TMP/ext4/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=16M
python3 - "$mnt" <<'END' || die "calls"
import errno, os, sys
path = sys.argv[1] + "/f"
fd = os.open(path, os.O_WRONLY | os.O_CREAT)
for i in range(48):
    os.write(fd, bytes([i]) * (1 << 20))
lane = os.getxattr(path, "user.cairn.lane").decode()
try:
    os.fsync(fd)
    rc = 0
except OSError as e:
    rc = e.errno
print("# lane %s, fsync: %s" % (lane, rc and errno.errorcode[rc]))
if rc != errno.ENOSPC:
    sys.exit("it has space for both: this proves nothing")
os.close(fd)
END
echo after >"$mnt/after"
wait_durable "$mnt/after"
wait_durable "$mnt/f"
[ "$(stat -c %s "$store/f")" = $((48 << 20)) ] || die "f: $(stat -c %s "$store/f")"
end_mount "$mnt"
"$BUILD/cairn" verify "$store" >/dev/null || die "verify"
