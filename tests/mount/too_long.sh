#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 120
# What the store's filesystem cannot hold is refused in the mount, too.
#
# A file longer than the store's filesystem can have one (16 TiB on ext4) is the fault of who makes it:
# his calls fail, and nothing else stands still for it, neither now nor at the next start.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

make_disk ext4 ext4 128M
store=$TMP/ext4/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=64M
echo before >"$mnt/before"
python3 - "$mnt" "$TMP/ext4/beside" "$MODE" <<'END' || die "calls"
import errno, os, sys
mnt, beside, mode = sys.argv[1:]

def error(f, *args):
    try:
        f(*args)
        return 0
    except OSError as e:
        return e.errno

def same(what, got, want):
    if got != want:
        sys.exit("%s: %s, not %s" % (what, got and errno.errorcode[got], want and errno.errorcode[want]))

# where it ends the filesystem itself tells
fd = os.open(beside, os.O_RDWR | os.O_CREAT)
fits, no = 0, 1 << 63
while no - fits > 1:
    mid = fits + (no - fits) // 2
    if error(os.ftruncate, fd, mid):
        no = mid
    else:
        fits = mid
os.close(fd)
os.unlink(beside)

fd = os.open(mnt + "/f", os.O_RDWR | os.O_CREAT)
same("ftruncate, one too many", error(os.ftruncate, fd, fits + 1), errno.EFBIG)
same("ftruncate, the most there is", error(os.ftruncate, fd, (1 << 63) - 1), errno.EFBIG)
same("fallocate", error(os.posix_fallocate, fd, fits, 1), errno.EFBIG)
same("ftruncate, just so", error(os.ftruncate, fd, fits), 0)
same("fsync", error(os.fsync, fd), 0)
same("close", error(os.close, fd), 0)
same("truncate by name", error(os.truncate, mnt + "/f", fits + 1), errno.EFBIG)
same("size", os.stat(mnt + "/f").st_size != fits, 0)
os.truncate(mnt + "/f", 5)

# in the fast lane the kernel writes, and only fsync and close can say it
for end in "cut", "removed", "left":
    path = mnt + "/" + end
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    same("write within", error(os.pwrite, fd, b"x", 0), 0)
    rc = error(os.pwrite, fd, b"x", fits)
    if mode == "relay" or rc:
        same("write behind", rc, errno.EFBIG)
    else:
        same("fsync", error(os.fsync, fd), errno.EFBIG)
    same("close", error(os.close, fd), 0 if rc else errno.EFBIG)
    if end == "cut":
        os.truncate(path, 3)
    if end == "removed":
        os.unlink(path)
END
echo after >"$mnt/after"
for f in before f cut after; do
	wait_durable "$mnt/$f"
done
[ "$(cat "$store/after")" = after ] || die "what came later is not in the store"
[ "$(stat -c %s "$store/cut")" = 3 ] || die "cut: $(stat -c %s "$store/cut")"
[ "$(status_field "$mnt" halted)" = null ] || die "halted: $(status_field "$mnt" halted)"
[ ! -e "$store/removed" ] || die "removed is there"
if [ "$MODE" != relay ] && [ "$(lane "$mnt/before")" != relay ]; then
	[ "$(state "$mnt/left")" = failed ] || die "left is $(state "$mnt/left")"
	[ ! -e "$store/left" ] || die "left is in the store"
fi
rm "$mnt/left"
stop_mount "$mnt"
start_mount "$store" "$mnt" staging=64M
[ "$(cat "$mnt/after")" = after ] || die "after a restart"
end_mount "$mnt"

# Symlinks, which xfs wants shorter than the kernel lets them be.
command -v mkfs.xfs >/dev/null || { note "no mkfs.xfs: symlinks not tried"; exit 0; }
make_disk xfs xfs 320M
store=$TMP/xfs/store
start_mount "$store" "$mnt" staging=64M
notices=$(status_field "$mnt" notices)
python3 - "$mnt" "$TMP/xfs" <<'END' || die "symlinks"
import os, sys
def longest(where):
    fits = 0
    for n in range(1, 4096):
        try:
            os.symlink("x" * n, where + "/link")
            os.unlink(where + "/link")
            fits = n
        except OSError:
            break
    return fits
here, there = (longest(d) for d in sys.argv[1:])
if here != there:
    sys.exit("%d in the mount, %d beside it" % (here, there))
os.symlink("x" * here, sys.argv[1] + "/long")
END
"$BUILD/cairn" wait "$mnt" || die "wait"
[ "$(readlink "$mnt/long")" = "$(readlink "$store/long")" ] || die "long differs"
[ "$(status_field "$mnt" notices)" = "$notices" ] || die "notices: $(status_field "$mnt" notices)"
end_mount "$mnt"
