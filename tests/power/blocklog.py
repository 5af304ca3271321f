# SPDX-License-Identifier: MIT
"""The log of dm-log-writes, and the disk that its writes are replayed on."""
import collections
import ctypes
import errno
import mmap
import os
import struct
import subprocess
import time

# linux: drivers/md/dm-log-writes.c
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
MAGIC = 0x6A736677736872
FALLOC_PUNCH_HOLE_KEEP_SIZE = 3
MS_RDONLY, MS_NOATIME = 1, 1024
BLOCK = 4096

# offset and size in bytes on the disk; data: a MARK's text, else where in the log the bytes are
Entry = collections.namedtuple("Entry", "offset size flags data")

libc = ctypes.CDLL(None, use_errno=True)


def is_write(e):
    return e.size and not e.flags & (MARK | DISCARD)


class BlockLog:
    def __init__(self, path, history):
        with open(path, "rb") as f:
            self.map = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        magic, _version, count, sector = struct.unpack_from("<QQQI", self.map, 0)
        if magic != MAGIC:
            raise ValueError(f"{path} is not a log of dm-log-writes")
        self.entries, self.begin = [], None
        pos = sector
        for i in range(count):
            start, length, flags, data_len = struct.unpack_from("<QQQQ", self.map, pos)
            data = None
            if flags & MARK:
                data = self.map[pos + 32:pos + 32 + data_len].rstrip(b"\0")
                if data == b"begin":
                    self.begin = i
                history.mark(data, i)
            elif not flags & DISCARD:
                data = pos + sector
                pos += length * sector
            pos += sector
            self.entries.append(Entry(start * sector, length * sector, flags, data))
        history.ready()

    def bytes(self, e):
        return self.map[e.data:e.data + e.size]


def extents(f):
    """The parts of a file that hold data."""
    at = 0
    while True:
        try:
            start = os.lseek(f.fileno(), at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(f.fileno(), start, os.SEEK_HOLE)
        yield start, at


class Disk:
    """A base image that moves forward through the log, and a snapshot of it that is changed into
    one state, mounted and thrown away. Both are mapped: resetting copies only what any write
    of the log touches."""

    def __init__(self, directory, cfg, entries):
        self.dir, self.fs = directory, cfg.fs
        self.opts = "nouuid" if cfg.fs == "xfs" else cfg.mount_opts
        self.mnt = f"{directory}/disk"
        os.makedirs(self.mnt, exist_ok=True)
        subprocess.run(["cp", "--sparse=always", f"{directory}/base.img", f"{directory}/work.img"],
                       check=True)
        self.base_file = open(f"{directory}/work.img", "r+b")
        self.size = os.path.getsize(f"{directory}/work.img")
        self.state_file = open(f"{directory}/state.img", "w+b")
        self.state_file.truncate(self.size)
        self.find_used(entries)
        self.base_map = mmap.mmap(self.base_file.fileno(), self.size)
        self.state_map = mmap.mmap(self.state_file.fileno(), self.size)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.base_map))
        self.state = ctypes.addressof(ctypes.c_char.from_buffer(self.state_map))
        self.loop = subprocess.run(["losetup", "-f", "--show", f"{directory}/state.img"], check=True,
                                   capture_output=True, text=True).stdout.strip()

    def find_used(self, entries):
        """self.used: what may ever hold data; self.holes: the rest."""
        used = list(extents(self.base_file))
        used += [(e.offset, e.offset + e.size) for e in entries if is_write(e)]
        self.used = []
        for a, b in sorted((a & ~(BLOCK - 1), -(-b // BLOCK) * BLOCK) for a, b in used):
            if self.used and a <= self.used[-1][1] + 16 * BLOCK:
                self.used[-1][1] = max(b, self.used[-1][1])
            else:
                self.used.append([a, b])
        ends = [0] + [x for r in self.used for x in r] + [self.size]
        self.holes = [(a, b) for a, b in zip(ends[::2], ends[1::2]) if b > a]

    def put_base(self, offset, data):
        ctypes.memmove(self.base + offset, data, len(data))

    def put(self, offset, data):
        ctypes.memmove(self.state + offset, data, len(data))

    def reset(self):
        """The state is what the base is."""
        for a, b in self.used:
            ctypes.memmove(self.state + a, self.base + a, b - a)
        for a, b in self.holes:
            libc.fallocate(self.state_file.fileno(), FALLOC_PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(a),
                           ctypes.c_long(b - a))

    def mount(self, read_only=True):
        """0 or errno"""
        flags = (MS_RDONLY if read_only else 0) | MS_NOATIME
        if libc.mount(self.loop.encode(), self.mnt.encode(), self.fs.encode(), flags,
                      self.opts.encode() or None):
            return ctypes.get_errno()
        return 0

    def unmount(self):
        """Not only the mount but the filesystem is gone: one that another mount namespace still holds would
        be shown again as the next state."""
        mounted = True
        for _ in range(1000):
            mounted = mounted and libc.umount2(self.mnt.encode(), 0) != 0
            if not mounted and self.free():
                return
            time.sleep(0.01)
        raise RuntimeError(f"cannot unmount {self.mnt}")

    def free(self):
        try:
            os.close(os.open(self.loop, os.O_RDONLY | os.O_EXCL))
        except OSError as e:
            if e.errno != errno.EBUSY:
                raise
            return False
        return True

    def close(self):
        subprocess.run(["losetup", "-d", self.loop], check=False)
        for name in ("work.img", "state.img"):
            os.unlink(f"{self.dir}/{name}")
