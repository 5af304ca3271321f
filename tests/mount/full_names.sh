#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast posix
# timeout: 180
#
# Many new names in a store that is almost full, while the order is held up: what is
# accepted finds space in the end, what would not is refused with ENOSPC.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

make_disk small ext4 96M
store=$TMP/small/store mnt=$TMP/mnt
start_mount "$store" "$mnt" staging=32M
need_passthrough "$mnt"

# A file closed while it is mapped holds up all that comes later. Then all but some 6 MiB of the
# store is taken: space for far fewer directories than are asked for.
python3 - "$mnt" "$TMP" <<'EOF' || die "the names: see above"
import ctypes, errno, mmap, os, sys
mnt, tmp = sys.argv[1:]
fd = os.open(mnt + "/held", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 65536)
libc = ctypes.CDLL(None, use_errno=True)	# the module's own mmap keeps a descriptor open
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
held = libc.mmap(None, 65536, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
ctypes.memmove(held, b"held", 4)
os.close(fd)
free = os.statvfs(tmp + "/small")
fd = os.open(tmp + "/small/ballast", os.O_WRONLY | os.O_CREAT)
os.posix_fallocate(fd, 0, free.f_bavail * free.f_frsize - (6 << 20))
os.close(fd)
made, files, refused, full = 0, 0, 0, 0
for i in range(6000):
	try:
		os.mkdir("%s/d%d" % (mnt, i))
		made += 1
	except OSError as e:
		if e.errno != errno.ENOSPC:
			raise
		refused += 1
	if i % 20:
		continue
	# the space that names were promised is not for files
	fd = os.open("%s/f%d" % (mnt, i), os.O_WRONLY | os.O_CREAT)
	told = False
	try:
		os.write(fd, bytes(60000))
	except OSError as e:
		if e.errno != errno.ENOSPC:
			raise
		told = True
	try:
		os.close(fd)
		if told:
			sys.exit("a write said ENOSPC and the close said nothing")
		files += 1
	except OSError as e:
		if e.errno != errno.ENOSPC:
			raise
		os.unlink("%s/f%d" % (mnt, i))
		full += 1
print("# %d directories and %d files accepted, %d and %d refused" % (made, files, refused, full))
if not made or not refused:
	sys.exit("nothing was %s" % ("refused" if made else "accepted"))
open(tmp + "/made", "w").write("%d %d" % (made, files))
libc.munmap(held, 65536)
EOF

wait_durable "$mnt" 60
read -r made files <"$TMP/made"
[ "$(find "$store" -maxdepth 1 -name 'd*' -type d | wc -l)" = "$made" ] || die "not all $made directories are in the store"
[ "$(find "$store" -maxdepth 1 -name 'f*' -size 60000c | wc -l)" = "$files" ] || die "not all $files files are in the store"
healthy "$mnt"

# With space again names are taken again.
rm "$TMP/small/ballast"
mkdir "$mnt/again" || die "mkdir with space"
end_mount "$mnt"
