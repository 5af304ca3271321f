# SPDX-License-Identifier: MIT
"""What the store may hold at a power cut, from the histories of a run (load.c writes them).

A *moment* of a process is the tree of its directory after its first k operations. A tree is
compared by one number, the sum of its names' hashes (content.h).
"""
import bisect
import ctypes
import os
import re

import guest

NEVER = 1 << 60
MASK64 = (1 << 64) - 1


class Lib:
    """libscan.so, loaded when it is first needed."""
    lib = None

    @classmethod
    def get(cls):
        if not cls.lib:
            lib = ctypes.CDLL(f"{guest.TOOLS}/libscan.so")
            lib.entry.restype = ctypes.c_uint64
            lib.entry.argtypes = [ctypes.c_char_p, ctypes.c_char, ctypes.c_uint, ctypes.c_uint64,
                                  ctypes.c_uint64]
            lib.scan.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_char_p,
                                 ctypes.c_size_t]
            cls.lib = lib
        return cls.lib


def scan(path):
    """(errno of a failed read or 0, the tree's number)"""
    total = ctypes.c_uint64()
    err = Lib.get().scan(path.encode(), ctypes.byref(total), None, 0)
    return err, total.value


def listing(path):
    """Each name below path: (type, mode, content, xattr)."""
    total, text = ctypes.c_uint64(), ctypes.create_string_buffer(8 << 20)
    Lib.get().scan(path.encode(), ctypes.byref(total), text, len(text))
    found = {}
    for line in text.value.decode(errors="replace").splitlines():
        kind, mode, _size, content, xattr, _err, name = line.split(" ", 6)
        found[name] = (kind, int(mode, 8), int(content, 16), int(xattr, 16))
    if os.path.isdir(path):
        found["."] = ("d", 0o755, 0, 0)
    return found


class Process:
    """The operations of one process, and the number of its tree after each."""

    def __init__(self, path):
        self.ops, self.sums, self.tree = [], [0], {}
        self.hashes = {}
        self.read(path)
        for op in self.ops:
            self.apply(op)
            self.sums.append(sum(self.hash(p, e) for p, e in self.tree.items()) & MASK64)
        self.moments = {}
        for k, number in enumerate(self.sums):
            self.moments.setdefault(number, []).append(k)

    def read(self, path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                w = line.split()
                if w[0] == "O" and len(w) == 9:
                    self.ops.append({"kind": w[2], "sync": int(w[3]), "a": w[4], "b": w[5],
                                     "mode": int(w[6], 8), "hash": int(w[8], 16),
                                     "begun": NEVER, "ended": NEVER})

    def hash(self, path, e):
        key = (path, *e)
        if key not in self.hashes:
            self.hashes[key] = Lib.get().entry(path.encode(), e[0].encode(), e[1], e[2], e[3])
        return self.hashes[key]

    def apply(self, op):
        """An entry is a list [type, mode, content, xattr]; names of one inode share the list."""
        t, kind, a, b = self.tree, op["kind"], op["a"], op["b"]
        if kind == "mkdir":
            t[a] = ["d", op["mode"], 0, 0]
        elif kind in ("file", "fsync"):
            if a in t:
                t[a][2] = op["hash"]
            else:
                t[a] = ["f", op["mode"], op["hash"], 0]
        elif kind == "symlink":
            t[a] = ["l", 0o777, op["hash"], 0]
        elif kind == "link":
            t[b] = t[a]
        elif kind == "chmod":
            t[a][1] = op["mode"]
        elif kind == "setx":
            t[a][3] = op["hash"]
        elif kind in ("unlink", "rmdir"):
            del t[a]
        elif kind == "rename":
            for p in [p for p in t if p == a or p.startswith(a + "/")]:
                t[b + p[len(a):]] = t.pop(p)
        elif kind not in ("none", "wait"):
            raise ValueError(f"unknown operation {kind}")

    def end_at_close(self):
        """With fsync=staged an fsync makes no version: its operation ends with the close."""
        closed = {}
        for op in reversed(self.ops):
            if op["kind"] == "file":
                closed[op["a"]] = op["ended"]
            elif op["kind"] == "fsync":
                op["ended"] = max(op["ended"], closed.get(op["a"], NEVER))

    def last_change(self, k):
        """The last of the first k operations that changed the tree, or None."""
        return next((m for m in range(k - 1, -1, -1) if self.sums[m + 1] != self.sums[m]), None)

    def next_change(self, k):
        """The first operation from k on that changed the tree, or None."""
        return next((m for m in range(k, len(self.ops)) if self.sums[m + 1] != self.sums[m]), None)

    def state(self, k):
        """The tree at moment k, for a report."""
        self.tree = {}
        for op in self.ops[:k]:
            self.apply(op)
        return {p: tuple(e) for p, e in self.tree.items()}


class History:
    """All processes of a run, and when (by positions in the block log) each operation was."""

    def __init__(self, directory):
        self.mode = guest.load_config(directory).mode
        self.procs = []
        while os.path.exists(f"{directory}/history.{len(self.procs)}"):
            self.procs.append(Process(f"{directory}/history.{len(self.procs)}"))
        self.syncs = []  # (answered at, begun at, process, operation), sorted
        self.begun, self.ended = [], []

    def mark(self, text, at):
        m = re.match(rb"([be])(\d+)\.(\d+)$", text)
        if m:
            self.procs[int(m[2])].ops[int(m[3])]["begun" if m[1] == b"b" else "ended"] = at

    def ready(self):
        """After the last mark."""
        for i, p in enumerate(self.procs):
            if self.mode == "staged":
                p.end_at_close()
            for n, op in enumerate(p.ops):
                if op["sync"] and op["ended"] != NEVER:
                    self.syncs.append((op["ended"], self.covers(p, n), i, n))
        self.syncs.sort()
        self.begun = [[op["begun"] for op in p.ops] for p in self.procs]
        self.ended = [[op["ended"] for op in p.ops] for p in self.procs]

    @staticmethod
    def covers(p, n):
        """What had ended before this is covered by the sync n of process p.

        `cairn wait` promises what is below its path: of other processes only what came before
        the last change there.
        """
        if p.ops[n]["kind"] != "wait":
            return p.ops[n]["begun"]
        last = max((m for m in range(n) if p.ops[m]["kind"] not in ("none", "wait")), default=0)
        return p.ops[last]["begun"]

    def bounds(self, done_at, begun_by):
        """The least and the most operations of each process that a disk may show.

        done_at: calls that were answered before this position are done; begun_by: writes up to
        this position may be on the disk.
        """
        low = [0] * len(self.procs)
        n = bisect.bisect_left(self.syncs, (done_at,))
        for _, covered, proc, op in self.syncs[max(0, n - 8 * len(self.procs)):n]:
            for i in range(len(self.procs)):
                k = op + 1 if i == proc else bisect.bisect_left(self.ended[i], covered)
                low[i] = max(low[i], k)
        high = [bisect.bisect_left(b, begun_by) for b in self.begun]
        for i, p in enumerate(self.procs):  # an operation without a change leaves no trace
            while high[i] < len(p.ops) and p.sums[high[i] + 1] == p.sums[high[i]]:
                high[i] += 1
        return low, high

    def violation(self, sums, done_at, begun_by):
        """None when a disk that was cut there may show these trees, else a text."""
        low, high = self.bounds(done_at, begun_by)
        moments = []
        for i, p in enumerate(self.procs):
            known = p.moments.get(sums[i], [])
            allowed = [k for k in known if low[i] <= k <= high[i]]
            if not allowed:
                return f"p{i}: the tree {self.wrong(known, low[i])}; {low[i]}..{high[i]} are allowed"
            moments.append(allowed)
        return self.overtaken(moments) if len(self.procs) > 1 else None

    @staticmethod
    def wrong(known, low):
        if not known:
            return "is no moment of the history"
        if max(known) < low:
            return f"is moment {known[:5]}: an fsync that was answered is missing"
        return f"is moment {known[:5]}: later than the cut"

    def overtaken(self, moments):
        """None, or which change is there although one that had ended before it began is not."""
        k = [m[-1] for m in moments]
        again = True
        while again:
            again = False
            for i, p in enumerate(self.procs):
                miss = p.next_change(k[i])
                if miss is None:
                    continue
                for j, q in enumerate(self.procs):
                    last = q.last_change(k[j])
                    if j == i or last is None or self.begun[j][last] <= self.ended[i][miss]:
                        continue
                    lower = [c for c in moments[j] if c < k[j]]
                    if not lower:
                        return (f"p{j} has operation {last}, begun after p{i}'s operation {miss} had "
                                f"ended, which is missing")
                    k[j] = lower[-1]
                    again = True
        return None

    def difference(self, store, done_at, begun_by):
        """What stands against the nearest allowed moment, for a report."""
        low, high = self.bounds(done_at, begun_by)
        lines = []
        for i, p in enumerate(self.procs):
            got = listing(f"{store}/p{i}")
            diffs = [(k, set(got.items()) ^ set(p.state(k).items())) for k in range(low[i], high[i] + 1)]
            k, diff = min(diffs, key=lambda d: len(d[1]), default=(0, set()))
            known = {op["hash"]: n for n, op in enumerate(p.ops) if op["kind"] in ("file", "fsync")}
            for path, e in sorted(diff)[:6]:
                content = f"operation {known[e[2]]}" if e[2] in known else f"{e[2]:x}"
                where = "in the store" if got.get(path) == e else "expected"
                lines.append(f"p{i} against moment {k}: {path} {e[0]} {content} {where}")
        return lines
