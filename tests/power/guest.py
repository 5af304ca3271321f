# SPDX-License-Identifier: MIT
"""One run of a workload in a guest, which leaves a log of every block write, and histories.

The guest is User Mode Linux with dm-log-writes: each write, FLUSH and FUA that reaches the disk
is logged, and the workload puts marks into the same log. So what may be on the disk at a power
cut is known exactly, whatever the host's page cache does.
"""
import dataclasses
import json
import os
import random
import re
import signal
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(TOP, "build")))
TOOLS = os.path.join(BUILD, "power")
KERNEL = os.path.join(BUILD, "deps", "uml")
SCRATCH = os.environ.get("POWER_DIR", "/dev/shm/cairn-power")

MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-I", "256", "-N", "4096", "-J", "size=8",
             "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K", "-l", "size=64m"],
}
DISK_BYTES = {"ext4": 128 << 20, "xfs": 320 << 20}
LOG_BYTES = 1 << 30
MEMORY = "6G"  # less, and no file takes the fast lane; only what is touched is taken
LANES = {"fast": "", "relay": ",nopassthrough", "posix": ",engine=posix"}


@dataclasses.dataclass
class Config:
    """What a run is. The workloads a to e and m are described in load.c; kX is X with kills."""
    fs: str = "ext4"
    mount_opts: str = "data=ordered"
    workload: str = "a"
    mode: str = "strict"
    lane: str = "fast"
    seed: int = 1
    ops: int = 200
    writers: int = 1
    staging_mib: int = 64
    limit_s: int = 240  # most take 5 to 15 s; this is for a guest that hangs
    bin: str = BUILD

    def killed(self):
        return self.workload.startswith("k")

    def cairn_opts(self):
        return f"staging={self.staging_mib}M,pool=0" + LANES[self.lane]

    def label(self):
        workload = self.workload + (str(self.writers) if self.writers > 1 and not self.killed() else "")
        return f"{self.fs} {self.mount_opts} {workload} {self.mode} {self.lane}"


def load_config(directory):
    with open(f"{directory}/config.json", encoding="utf-8") as f:
        return Config(**json.load(f))


def missing():
    """Why the guest cannot run here, or None."""
    if not os.access(f"{KERNEL}/linux", os.X_OK):
        return "no guest kernel: run tools/setup power"
    if not os.path.exists(f"{TOOLS}/load"):
        return "the workload is not built: make check-power builds it"
    try:
        starts = subprocess.run([f"{KERNEL}/linux", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:  # its loader is named by its path: gone, when the build directory was moved
        starts = False
    if not starts:
        return "the guest kernel does not start: remove build/deps/uml and run tools/setup power"
    if os.geteuid() != 0:
        return "loop devices and mounts need root"
    return None


def make_disks(cfg, out):
    """base.img is the empty filesystem, disk.img what the guest writes, log.img the block log."""
    for name, size in (("base", DISK_BYTES[cfg.fs]), ("log", LOG_BYTES)):
        with open(f"{out}/{name}.img", "wb") as f:
            f.truncate(size)
    subprocess.run(MKFS[cfg.fs] + [f"{out}/base.img"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cp", "--sparse=always", f"{out}/base.img", f"{out}/disk.img"], check=True)


def command(cfg, out):
    choice = random.Random(cfg.seed)
    kills = ",".join(str(choice.randrange(3000, 120000)) for _ in range(3))
    env = {
        "TOOLS": TOOLS, "MODULES": f"{KERNEL}/modules", "BIN": cfg.bin, "OUT": out, "FS": cfg.fs,
        "MOUNT_OPTS": cfg.mount_opts, "CAIRN_OPTS": cfg.cairn_opts(), "WORKLOAD": cfg.workload,
        "SEED": cfg.seed, "OPS": cfg.ops, "MODE": cfg.mode, "WRITERS": cfg.writers, "KILLS": kills,
    }
    return [f"init={HERE}/guest_init", f"ubda={out}/disk.img", f"ubdb={out}/log.img"], env


def boot(arguments, env, console, limit_s):
    """Runs a guest until it is gone. False: it was ended after limit_s."""
    argv = ([f"{KERNEL}/linux", f"mem={MEMORY}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/",
             "ro", "con=null", "ssl=null", "con0=null,null", "quiet"] + arguments +
            [f"{k}={v}" for k, v in env.items()])
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                         env={**os.environ, "TMPDIR": "/dev/shm"}, start_new_session=True)
    try:
        p.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        return False


def last_words(out):
    """What the guest's kernel said when it died."""
    try:
        with open(f"{out}/console", encoding="utf-8", errors="replace") as f:
            lines = [x.strip() for x in f if x.strip()]
    except OSError:
        lines = []
    told = [x for x in lines if re.search(r"panic|BUG|Oops|fault|Modules linked|^RIP", x)]
    return "; ".join(told[:3] or lines[-3:]) or "without a word"


def run(cfg, out):
    """Runs the workload; `out` is made. None when the guest came to its end, else why it did not."""
    os.makedirs(out, exist_ok=True)
    with open(f"{out}/config.json", "w", encoding="utf-8") as f:
        json.dump(dataclasses.asdict(cfg), f)
    make_disks(cfg, out)
    with open(f"{out}/console", "wb") as console:
        in_time = boot(*command(cfg, out), console, cfg.limit_s)
    os.unlink(f"{out}/disk.img")
    end = ""
    if os.path.exists(f"{out}/end"):
        with open(f"{out}/end", encoding="utf-8") as f:
            end = f.read().strip()
    if end == "done":
        return None
    if end:
        return f"its init gave up at: {end}"
    return f"its kernel died: {last_words(out)}" if in_time else f"it was ended after {cfg.limit_s} s; {out}/hang"
