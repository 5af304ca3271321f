#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 120
#
# The store's ext4 finds an error and takes no more writes (errors=remount-ro). The mount itself is not read-only: what
# fails fails with EIO, never with EROFS.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool python3 findmnt
mnt=$TMP/mnt
make_disk disk ext4 400M
mount -o remount,errors=remount-ro "$TMP/disk" || skip "no errors=remount-ro here"
trigger=/sys/fs/ext4/$(basename "$(findmnt -n -o SOURCE "$TMP/disk")")/trigger_fs_error
[ -w "$trigger" ] || skip "this ext4 has no trigger_fs_error"
start_mount "$TMP/disk/store" "$mnt" staging=64M

python3 - "$mnt" "$trigger" <<'END' || die "see above"
import errno, os, sys

mnt, trigger = sys.argv[1:]
big = os.urandom(8 << 20)
flags = os.O_RDWR | os.O_CREAT
bad = []

def call(what, want, f, *args):
    """want: an errno, 0, or None for anything but EROFS."""
    got = 0
    try:
        f(*args)
    except OSError as e:
        got = e.errno
    if got == errno.EROFS or want is not None and got != want:
        bad.append(f"{what}: {errno.errorcode.get(got, got)}")
    print(what, errno.errorcode.get(got, got))

def put(name, data):
    with open(f"{mnt}/{name}", "wb", buffering=0) as f:
        f.write(data)

put("there", big)
put("small", b"old")
os.mkdir(f"{mnt}/dir")
fd = os.open(f"{mnt}/sync", flags)
os.fsync(fd)
fds = {n: os.open(f"{mnt}/open-{n}", flags) for n in ("large", "small", "unsynced", "allocate", "cut")}
for n, f in fds.items():
    os.write(f, b"x" if n == "small" else big)

with open(trigger, "w") as f:
    f.write("cairnfs test")

# First what the store is asked for before it is known to fail.
call("close of a large file", errno.EIO, os.close, fds.pop("unsynced"))
call("fsync of a large file", errno.EIO, os.fsync, fds["large"])
call("fallocate", None, os.posix_fallocate, fds["allocate"], 0, 16 << 20)
call("fsync of a small file", errno.EIO, os.fsync, fds["small"])
call("fsync of what is durable", errno.EIO, os.fsync, fd)
call("ftruncate", None, os.ftruncate, fds["cut"], 100)
call("a synchronous write", None, lambda: os.write(os.open(f"{mnt}/o_sync", flags | os.O_SYNC), b"x"))
call("mkdir", None, os.mkdir, f"{mnt}/new")
call("fsync of a directory", errno.EIO, lambda: os.fsync(os.open(mnt, os.O_RDONLY)))
call("rename", None, os.rename, f"{mnt}/small", f"{mnt}/dir/renamed")
call("setxattr", None, os.setxattr, f"{mnt}/there", "user.a", b"b")
call("chmod", None, os.chmod, f"{mnt}/there", 0o600)
call("open to write what is in the store", None, lambda: os.close(os.open(f"{mnt}/there", os.O_WRONLY)))
call("truncate", None, os.truncate, f"{mnt}/there", 5)
call("a new large file", None, put, "new-large", big)
call("a new small file", None, put, "new-small", b"x")
call("unlink", None, os.unlink, f"{mnt}/new-small")
call("open to read", None, lambda: open(f"{mnt}/dir/renamed").read())
call("listdir", None, os.listdir, mnt)
call("drain", None, lambda: os.write(os.open(f"{mnt}/.cairn/control", os.O_WRONLY), b"drain\n"))
for n, f in fds.items():
    call("close of " + n, None, os.close, f)
if bad:
    sys.exit("not as it should be: " + "; ".join(bad))
END
says_why() { COLUMNS=999 "$BUILD/cairn" status "$mnt" | has "STORE GONE.*Read-only"; }
retry 20 says_why || die "the status does not say why: $("$BUILD/cairn" status "$mnt")"
# The next worker starts without the store, too.
kill -KILL "$(worker_pid "$mnt")"
retry 20 says_why || die "no worker came after the one that was killed: $("$BUILD/cairn" status "$mnt")"
kill_mount "$mnt"
