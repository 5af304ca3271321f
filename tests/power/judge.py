# SPDX-License-Identifier: MIT
"""Judges one run: replays its block log into states of the disk, mounts each and asks the model.

A state has a name, by which it is made again (`tests/power/run state DIR NAME`). i is a position
in the log:
	prefix:i	all writes up to i
	whole:i:k	a seeded part of the writes since the last FLUSH before i
	mid:i		the same, where no FLUSH follows
	t4k:i:k t512:i:k	the same, some of them torn at 4 KiB or 512 bytes, the FUA write at i too
"""
import collections
import json
import os
import random
import re
import subprocess
import time

import blocklog
import guest
import model
from blocklog import FLUSH, FUA, MARK

# States that are made of each write (prefix) and of each FLUSH or FUA (the others).
STATES = {"prefix": 1, "whole": 2, "t512": 2, "t4k": 1}
MID = 0.05
WORST = 40  # a run with so many bad states needs no more
LIMIT_S = 240  # of a command on a mounted state: for one that hangs, however busy the machine


def own_mounts():
    """Mounts that nobody else sees: whoever makes a mount namespace meanwhile has a copy of those that
    are there, and a state would be mounted again as the filesystem that it was before. The same the
    other way: copies of other mounts of stores and disks are let go of."""
    if os.geteuid():
        return
    CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 1 << 18, 2
    libc = blocklog.libc
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError("no mount namespace")
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        lines = [line.split() for line in f]
    for words in reversed(lines):
        kind, source = words[words.index("-") + 1:][:2]
        if kind.startswith("fuse") or source == "cairnfs-staging" or source.startswith("/dev/loop"):
            libc.umount2(words[4].encode(), MNT_DETACH)


def stuck(directory):
    """What the threads of the processes that are about a directory wait for."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if directory.encode() not in f.read():
                    continue
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/stack", encoding="utf-8") as f:
                    calls = re.findall(r"(\w+)\+0x", f.read())
                found.append(f"{pid}/{task}: {' < '.join(calls[:6])}")
        except OSError:  # it is gone
            continue
    return "; ".join(found[:12]) or "no process of it is left"


class Judge:
    def __init__(self, directory, seed=1, most=0, restarts=3, only=None, stop=None):
        """most: states (0: all); restarts: states on which cairnfs is started; stop: a time."""
        self.dir, self.cfg = directory, guest.load_config(directory)
        self.seed, self.most, self.restarts, self.only, self.stop = seed, most, restarts, only, stop
        self.history = model.History(directory)
        self.log = blocklog.BlockLog(f"{directory}/log.img", self.history)
        self.disk = blocklog.Disk(directory, self.cfg, self.log.entries)
        self.count = collections.Counter()
        self.bad, self.torn_fs = [], []
        self.random = random.Random(seed)  # of one state; seeded anew for each
        self.choose = random.Random(seed + 5)
        self.choose_restart = random.Random(seed + 77)
        self.restart_share = 0.0

    # --- one state ------------------------------------------------------------------------

    def fail(self, name, what):
        self.bad.append({"state": name, "what": what})

    def fs_fail(self, kind, name, what):
        """ext4 and xfs write metadata of 4 KiB in place and rely on their journals for whole
        sectors only in the journal itself: a filesystem error of a state torn at 512 bytes is
        counted apart. Torn at 4 KiB, or not at all, it is a violation."""
        if kind == "t512":
            self.torn_fs.append({"state": name, "what": what})
        else:
            self.fail(name, what)

    def check(self, kind, name, done_at, begun_by):
        """The disk holds the state."""
        self.count[kind] += 1
        err = self.disk.mount()
        if err:
            self.fs_fail(kind, name, f"does not mount: {os.strerror(err)}")
            return
        try:
            good = self.check_mounted(kind, name, done_at, begun_by)
        finally:
            self.disk.unmount()
        if good and self.choose_restart.random() < self.restart_share:
            Restart(self, name).check()

    def check_mounted(self, kind, name, done_at, begun_by):
        store = f"{self.disk.mnt}/store"
        seen = [model.scan(f"{store}/p{i}") for i in range(len(self.history.procs))]
        err = next((e for e, _ in seen if e), 0)
        if err:
            self.fs_fail(kind, name, f"the filesystem cannot be read: {os.strerror(err)}")
            return False
        what = self.history.violation([s for _, s in seen], done_at, begun_by)
        if what:
            what = "; ".join([what] + self.history.difference(store, done_at, begun_by))
        elif not self.cfg.killed() and os.listdir(f"{store}/.cairn/lost+found"):
            what = "lost+found is not empty"
        else:
            strange = [x for x in os.listdir(store) if x != ".cairn" and not re.match(r"p\d+$", x)]
            what = f"strange names in the store: {strange}" if strange else None
        if what:
            self.fail(name, what)
        return not what

    # --- states ---------------------------------------------------------------------------

    def torn(self, e, unit):
        """The pieces of a write that reached the disk."""
        data = self.log.bytes(e)
        cuts = [0] + list(range(unit - e.offset % unit, len(data), unit)) + [len(data)]
        parts = list(zip(cuts, cuts[1:]))
        how = self.random.randrange(4)
        if how == 0:
            keep = parts[:self.random.randrange(len(parts) + 1)]
        elif how == 1:
            keep = parts[self.random.randrange(len(parts) + 1):]
        elif how == 2:
            keep = [p for p in parts if self.random.random() < 0.5]
        else:
            hole = self.random.randrange(len(parts))
            keep = parts[:hole] + parts[hole + 1:]
        return [(e.offset + a, data[a:b]) for a, b in keep]

    def reordered(self, kind, name, pending, flying, cut):
        """Of what was not flushed some is there, whole or torn. flying: the FUA write at the cut."""
        r = self.random
        keep, tear = r.choice(((0.15, 0.1), (0.5, 0.15), (0.85, 0.15), (0.97, 0.02), (0.0, 1.0)))
        writes = []
        for e in pending + ([flying] if flying else []):
            x = r.random()
            if kind != "whole" and (x < tear or e is flying and r.random() < 0.6):
                writes += self.torn(e, 512 if kind == "t512" else 4096)
            elif x < tear + keep:
                writes.append((e.offset, self.log.bytes(e)))
        if self.only and name != self.only:
            return
        self.disk.reset()
        for offset, data in writes:
            self.disk.put(offset, data)
        self.check(kind, name, cut, cut)

    def prefix(self, name, pending, done_at, begun_by):
        if self.only and name != self.only:
            return
        self.disk.reset()
        for e in pending:
            self.disk.put(e.offset, self.log.bytes(e))
        self.check("prefix", name, done_at, begun_by)

    def body(self):
        """Positions and entries of the log that count."""
        return [(i, e) for i, e in enumerate(self.log.entries)
                if i > self.log.begin and not e.flags & MARK and (e.size or e.flags & FLUSH)]

    def share(self, body):
        """Which part of all possible states is made."""
        syncs = sum(1 for _, e in body if e.flags & (FLUSH | FUA))
        writes = sum(1 for _, e in body if e.size)
        want = writes * STATES["prefix"] + syncs * (STATES["whole"] + STATES["t512"] + STATES["t4k"])
        share = min(1.0, self.most / max(1, want)) if self.most else 1.0
        self.restart_share = self.restarts / max(1, want * share)
        return share

    def at_sync(self, i, e, pending, share):
        for kind in ("whole", "t512", "t4k"):
            for k in range(STATES[kind]):
                self.random.seed(f"{self.seed} {i} {kind} {k}")
                if self.choose.random() < share and (pending or e.size):
                    flying = e if e.flags & FUA and e.size else None
                    self.reordered(kind, f"{kind}:{i}:{k}", pending, flying, i)

    def run(self):
        """Returns a dict for the campaign's results."""
        began = time.time()
        for e in self.log.entries[:self.log.begin]:
            if blocklog.is_write(e):
                self.disk.put_base(e.offset, self.log.bytes(e))
        body, pending = self.body(), []
        share = self.share(body)
        for x, (i, e) in enumerate(body):
            following = body[x + 1][0] if x + 1 < len(body) else len(self.log.entries)
            if e.flags & (FLUSH | FUA):
                self.at_sync(i, e, pending, share)
            elif len(pending) > 3 and self.choose.random() < MID * share:
                self.random.seed(f"{self.seed} {i}")
                self.reordered("whole", f"mid:{i}", pending, None, i)
            if blocklog.is_write(e):
                if e.flags & FUA:
                    self.disk.put_base(e.offset, self.log.bytes(e))
                else:
                    pending.append(e)
                if self.choose.random() < share:
                    self.prefix(f"prefix:{i}", pending, following, i + 1)
            if e.flags & FLUSH:
                for p in pending:
                    self.disk.put_base(p.offset, self.log.bytes(p))
                pending = []
            if len(self.bad) >= WORST or self.stop and time.time() > self.stop:
                break
        self.disk.close()
        return {"states": sum(self.count[k] for k in STATES), "count": dict(self.count),
                "ops": sum(len(p.ops) for p in self.history.procs), "syncs": len(self.history.syncs),
                "bad": self.bad, "torn_fs": self.torn_fs[:5], "seconds": round(time.time() - began, 1)}


class Restart:
    """The next start of cairnfs on a state must leave a good store alone and go on from it."""

    SIZES = (5, 3000, 700000)

    def __init__(self, judge, name):
        self.judge, self.name, self.disk = judge, name, judge.disk
        self.bin = judge.cfg.bin
        self.store, self.mnt = f"{judge.disk.mnt}/store", f"{judge.dir}/mnt"
        self.trees = len(judge.history.procs)
        os.makedirs(self.mnt, exist_ok=True)

    def expect(self, good, what):
        if not good:
            self.judge.fail(self.name, f"restart: {what}")

    def sums(self, where):
        return [model.scan(f"{where}/p{i}")[1] for i in range(self.trees)]

    def command(self, *argv):
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as p:
            try:
                out, err = p.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired as e:
                where = stuck(self.judge.dir)
                p.kill()
                raise OSError(f"{argv[0]} did not end within {LIMIT_S} s; {where}") from e
        return subprocess.CompletedProcess(argv, p.returncode, out, err)

    def check(self):
        self.judge.count["restart"] += 1
        err = self.disk.mount(read_only=False)
        if err:
            self.expect(False, f"does not mount read-write: {os.strerror(err)}")
            return
        try:
            self.before = self.sums(self.store)
            self.lost = sorted(os.listdir(f"{self.store}/.cairn/lost+found"))
            if self.start():
                self.use()
                self.end()
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            self.expect(False, repr(e))
        finally:
            subprocess.run(["umount", "-l", self.mnt], capture_output=True, check=False)
            self.disk.unmount()

    def start(self):
        log = f"{self.judge.dir}/daemon.log"
        serve = (f"hostname powercut; exec {self.bin}/cairnfs {self.store} {self.mnt} "
                 f"-o staging=64M,pool=0 </dev/null >{log} 2>&1")
        r = self.command("unshare", "--uts", "sh", "-c", serve)
        if r.returncode:
            with open(log, encoding="utf-8") as f:
                self.expect(False, f"cairnfs ended with {r.returncode}: {f.read()[:300]}")
        return not r.returncode

    def use(self):
        self.expect(self.sums(self.mnt) == self.before, "the mount does not show what the store has")
        r = self.command(f"{self.bin}/cairn", "verify", "-q", self.mnt)
        self.expect(not r.returncode, f"verify: {r.stdout[:200]} {r.stderr[:200]}")
        os.mkdir(f"{self.mnt}/after")
        for k, size in enumerate(self.SIZES):
            with open(f"{self.mnt}/after/f{k}", "wb") as f:
                f.write(b"%d" % k * size)
                if k == 2:
                    f.flush()
                    os.fsync(f.fileno())
        with open(f"{self.mnt}/.cairn/status.json", encoding="utf-8") as f:
            notices = str(json.load(f).get("notices", ""))
        self.expect("conflict" not in notices, notices)

    def end(self):
        r = self.command(f"{self.bin}/cairn", "umount", "-q", self.mnt)
        self.expect(not r.returncode, f"cairn umount: {r.stderr[:200]}")
        self.expect(self.sums(self.store) == self.before, "the store changed")
        sizes = [os.path.getsize(f"{self.store}/after/f{k}") for k in range(len(self.SIZES))]
        self.expect(sizes == list(self.SIZES), "what was written after it is not whole")
        lost = sorted(os.listdir(f"{self.store}/.cairn/lost+found"))
        self.expect(lost == self.lost, "something was moved to lost+found")
        tmp = f"{self.store}/.cairn/powercut/tmp"
        left = os.listdir(tmp) if os.path.isdir(tmp) else []
        self.expect(not left, f"left in tmp/: {left[:3]}")
        r = self.command(f"{self.bin}/cairn", "verify", "-q", self.store)
        self.expect(not r.returncode, f"verify of the store: {r.stdout[:200]} {r.stderr[:200]}")
