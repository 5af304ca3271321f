#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 180
#
# All is killed while whole files wait in the store's tmp/, and the store has not one free block at the next start: the
# reserve is enough to open the store, with its xattrs, and to publish them.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

# Until a write of one block fails; xfs finds a few more after a sync.
fill()
{
	local i
	for i in 1 2 3 4 5; do
		dd if=/dev/zero of="$disk/filler$i" bs=1M 2>/dev/null
		dd if=/dev/zero of="$disk/filler$i" bs=4K oflag=append conv=notrunc 2>/dev/null
		sync -f "$disk"
	done
	for i in $(seq 200); do
		head -c 4096 /dev/zero >"$disk/small$i" 2>/dev/null || return 0
	done
	die "the store is not full: $(df "$disk")"
}

round()
{
	disk=$TMP/$1 store=$TMP/$1/store mnt=$TMP/mnt-$1
	make_disk "$1" "$1" 400M
	start_mount "$store" "$mnt" staging=16M
	helper files put "$mnt/old" 20000000 1 || die "$1: old"
	wait_durable "$mnt"

	# What is mapped holds up what comes later: files that staging has no space for.
	python3 - "$mnt" "$TMP/go-$1" <<-'END' &
	import ctypes, mmap, os, sys, time
	mnt = sys.argv[1]
	fd = os.open(mnt + "/held", os.O_RDWR | os.O_CREAT)
	os.ftruncate(fd, 65536)
	libc = ctypes.CDLL(None, use_errno=True)
	libc.mmap.restype = ctypes.c_void_p
	libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
	held = libc.mmap(None, 65536, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
	ctypes.memmove(held, b"held", 4)
	os.close(fd)
	os.mkdir(mnt + "/d")
	for i in range(3):
	    with open(mnt + "/d/%d" % i, "wb") as f:
	        f.write(bytes([65 + i]) * (20 << 20))
	os.unlink(mnt + "/old")
	open(sys.argv[2], "w").close()
	time.sleep(1000)
	END
	writer=$!
	on_exit "kill $writer 2>/dev/null"
	retry 60 test -e "$TMP/go-$1" || die "$1: the files are not written"
	[ "$(status_field "$mnt" log.pending)" -ge 5 ] || die "$1: published already: this proves nothing"
	kill_mount "$mnt"
	kill $writer
	wait $writer 2>/dev/null
	[ "$(stat -c %s "$store"/.cairn/*/reserve)" -gt 0 ] || die "$1: no reserve"
	fill

	start_mount "$store" "$mnt" staging=16M
	wait_durable "$mnt" 60
	for i in 0 1 2; do
		cmp <(head -c $((20 << 20)) /dev/zero | tr '\0' "\\$(printf %03o $((65 + i)))") "$store/d/$i" ||
			die "$1: d/$i in the store"
	done
	[ ! -e "$store/old" ] || die "$1: old is there: what was removed frees nothing"
	! status_field "$mnt" notices | has -i xattr || die "$1: $(status_field "$mnt" notices)"
	rm "$disk/filler1"
	retry 30 eval 'echo after >"$mnt/after"' 2>/dev/null || die "$1: a file after it"
	wait_durable "$mnt/after" 60
	"$BUILD/cairn" verify -q "$store" >/dev/null || die "$1: verify"
	end_mount "$mnt"
	umount "$disk"
}

round xfs
round ext4
