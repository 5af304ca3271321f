#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
#
# Buffers, staged files on loan to clients (the table in buffers.c): lives, readers, kills of the
# client, owners, the budget; where there is no passthrough, a store without space, a mount that
# is read only, and an unmount.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt

make_buffer() { python3 -c 'import os, sys
try: fd = os.open(sys.argv[1] + "/.cairn/buffers/4194304.x", os.O_RDWR | os.O_CREAT | os.O_EXCL)
except OSError as e: print(os.strerror(e.errno)); sys.exit(1)
print("made")' "$1"; }

start_mount "$store" "$mnt" allow_other
if [ "$(status_field "$mnt" passthrough)" != true ]; then
	said=$(make_buffer "$mnt") && die "a buffer without passthrough"
	[ "$said" = "Operation not supported" ] || die "no passthrough: $said"
	echo x >"$mnt/x"	# others go on
	end_mount "$mnt"
	exit 0
fi
mkdir "$mnt/t"
helper buffers "$mnt/t" --mnt "$mnt" --store "$store" || die "see above"
[ "$(status_field "$mnt" buffers.count)" = 0 ] || die "buffers are left: $(cat "$mnt/.cairn/status")"
[ "$(status_field "$mnt" buffers.bytes)" = 0 ] || die "bytes of buffers are left"
wait_durable "$mnt"
"$BUILD/cairn" verify "$mnt" >"$TMP/said" || die "verify: $(cat "$TMP/said")"
same_tree "$mnt" "$store"
end_mount "$mnt"

# Read only: there is nothing to commit to.
start_mount "$store" "$mnt" ro
said=$(make_buffer "$mnt") && die "a buffer on a read-only mount"
[ "$said" = "Read-only file system" ] || die "ro: $said"
stop_mount "$mnt"

# A store without space says so at the link, and nothing is left of it.
make_disk small ext4 64M
start_mount "$TMP/small/store" "$mnt" staging=512M
python3 - "$mnt" <<'END' || die "full store"
import errno, mmap, os, sys, time
os.chdir(sys.argv[1])
size = 100 << 20
name = ".cairn/buffers/%d.full" % size
fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
m = mmap.mmap(fd, size)
m[:] = b"x" * size
state = lambda: os.getxattr(fd, "user.cairn.buffer").decode()
try:
    os.link(name, "shard")
    sys.exit("a file of 100 MiB fits into 64 MiB")
except OSError as e:
    if e.errno != errno.ENOSPC: raise
assert not os.path.exists("shard") and state() == "free", state()
os.ftruncate(fd, 20 << 20)
os.link(name, "shard")
while state() == "lent":
    time.sleep(0.01)
assert state() == "free" and os.path.getsize("shard") == 20 << 20, state()
END
wait_durable "$mnt"
[ "$(ls "$TMP/small/store/.cairn"/*/tmp)" = "" ] || die "left in tmp/: $(ls "$TMP/small/store/.cairn"/*/tmp)"
same_tree "$mnt" "$TMP/small/store"
stop_mount "$mnt"

# A buffer keeps the mount busy as any open file does; detached, it ends with its client.
start_mount "$store" "$mnt"
keeper=$(keeper_pid "$mnt")
python3 - "$mnt" <<'END' &
import mmap, os, sys, time
os.chdir("/")
size = 8 << 20
d = os.open(sys.argv[1], os.O_RDONLY)
name = ".cairn/buffers/%d.detached" % size
fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=d)
m = mmap.mmap(fd, size)
m[:] = b"y" * size
os.link(name, "detached", src_dir_fd=d, dst_dir_fd=d)
time.sleep(1)
END
client=$!
retry 10 test -e "$mnt/detached" || die "no file of the client that stays"
umount "$mnt" 2>/dev/null && die "unmounted under a client"
umount -l "$mnt"
wait $client || die "the client of a detached mount"
retry 30 lib_pid_gone "$keeper" || die "the daemon stays behind its last client"
[ "$(stat -c %s "$store/detached")" = 8388608 ] || die "detached: not in the store"
