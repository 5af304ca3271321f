#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tier.py [-n ROUNDS] [-s MIB] --build BUILD --work DIR [--peers DIR] [WHAT...]: a bucket as a tier, against other clients.

The row `tier` of tools/bench/run. WHAT: first rate blocked drain fetch (default: all). The server is SeaweedFS on this
machine, from tools/setup peers; or, with CAIRN_S3_SERVER=NAME, the one that AWS_ENDPOINT_URL_S3 names. In each round every
client does the same, one after the other. Samples go to stdout as LABEL<tab>METRIC<tab>UNIT<tab>VALUE.

	drain    `cairn tier push` of 8 files, MIB in all, against `s5cmd cp`, `aws s3 cp`, `rclone copy` from the same
	         directory into a bucket; "best peer" is the one with the best median. Memory of cairn-tier meanwhile
	fetch    the same objects into a new directory; cairn's are on stable storage, the peers' also with a sync
	first    the first byte of a file that only the bucket has, through a mount, without two round trips of a request
	rate     how far off `--rate` is, in per cent
	blocked  a save into a mount without a tier, with one that is never done, and with one that is gone. The server, which
	         elsewhere is another machine, gets what processor time is left
"""

import argparse
import contextlib
import glob
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ASSETS = os.path.join(HERE, "..", "..", "tests", "assets")
FILES = 8
STEPS = 12  # that a trainer saves
MIB = 1 << 20
KEYS = {"accessKey": "bench", "secretKey": "bench-secret"}


def sample(label, metric, unit, value):
    print(label, metric, unit, f"{value:.6g}", sep="\t", flush=True)


def note(text):
    print(f"tier.py: {text}", file=sys.stderr, flush=True)


def until(seconds, what, done):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            sys.exit(f"tier.py: {what}: not within {seconds} s")
        time.sleep(0.02)


# --- the server ----------------------------------------------------------------------------------


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def server(o):
    """Sets the environment for its clients."""
    if os.environ.get("CAIRN_S3_SERVER"):
        os.environ["AWS_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL_S3"]
        o.server = 0
        yield os.environ["CAIRN_S3_SERVER"]
        return
    base = 21000 + os.getpid() % 1000 * 4  # its ports for gRPC are 10000 above
    folder = os.path.join(o.work, "server")
    os.makedirs(folder)
    keys = os.path.join(o.work, "keys.json")
    with open(keys, "w", encoding="utf-8") as f:
        json.dump({"identities": [{"name": "bench", "credentials": [KEYS],
                                   "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}, f)
    with open(os.path.join(o.work, "server.log"), "w", encoding="utf-8") as log:
        child = subprocess.Popen(
            [os.path.join(o.peers, "weed"), "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1",
             "-ip.bind=127.0.0.1", f"-master.port={base}", f"-volume.port={base + 1}", "-filer",
             f"-filer.port={base + 2}", "-s3", f"-s3.port={base + 3}", f"-s3.config={keys}", "-s3.iam=false",
             "-s3.port.iceberg=0", "-s3.port.lance=0", "-metricsPort=0", "-master.telemetry=false",
             "-master.volumeSizeLimitMB=4096", "-volume.max=64"], stdout=log, stderr=log, start_new_session=True)
    o.server = child.pid
    os.environ.update(AWS_ACCESS_KEY_ID=KEYS["accessKey"], AWS_SECRET_ACCESS_KEY=KEYS["secretKey"],
                      AWS_REGION="us-east-1", AWS_ENDPOINT_URL=f"http://127.0.0.1:{base + 3}")
    os.environ["AWS_ENDPOINT_URL_S3"] = os.environ["AWS_ENDPOINT_URL"]
    os.environ.pop("AWS_CA_BUNDLE", None)  # the server has no TLS
    try:
        until(60, "the server does not listen", lambda: listens(base + 3))
        until(60, "the server takes no bucket", lambda: not s5cmd(o, "mb", "s3://bench-ready", check=False).returncode)
        yield subprocess.run([os.path.join(o.peers, "weed"), "version"], capture_output=True, text=True,
                             check=True).stdout.strip()
    finally:
        child.terminate()
        child.wait()


def s5cmd(o, *args, check=True):
    return subprocess.run([os.path.join(o.peers, "s5cmd"), "--endpoint-url", os.environ["AWS_ENDPOINT_URL"], *args],
                          check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


@contextlib.contextmanager
def bucket(o, name):
    s5cmd(o, "mb", f"s3://{name}")
    try:
        yield name
    finally:
        s5cmd(o, "rm", f"s3://{name}/*", check=False)
        s5cmd(o, "rb", f"s3://{name}", check=False)


# --- checkpoints, clients ------------------------------------------------------------------------


def make(store, name, files, size):
    """A complete checkpoint: DCP's metadata, and files that nothing can compress."""
    folder = os.path.join(store, name)
    shutil.copytree(os.path.join(ASSETS, "dcp"), folder, dirs_exist_ok=True)
    for i in range(files):
        with open(os.path.join(folder, f"__{i + 2}_0.distcp"), "wb") as f:
            for at in range(0, size, 8 * MIB):
                f.write(os.urandom(min(8 * MIB, size - at)))
    return folder


def peers(o):
    """name: (command that copies a directory to a bucket, and back)."""
    url = os.environ["AWS_ENDPOINT_URL"]
    s5 = [os.path.join(o.peers, "s5cmd"), "--log", "error", "--endpoint-url", url, "cp"]
    aws = [os.path.join(o.peers, "aws"), "s3", "cp", "--quiet", "--recursive"]
    rclone = [os.path.join(o.peers, "rclone"), "--config", "/dev/null", "--s3-provider", "Other", "--s3-env-auth",
              "--s3-endpoint", url, "--s3-force-path-style", "copy"]
    return {
        "s5cmd": (lambda d, b: [*s5, d + "/", f"s3://{b}/"], lambda b, d: [*s5, f"s3://{b}/run/step-1/*", d + "/"]),
        "aws": (lambda d, b: [*aws, d, f"s3://{b}"], lambda b, d: [*aws, f"s3://{b}/run/step-1", d]),
        "rclone": (lambda d, b: [*rclone, d, f":s3:{b}"], lambda b, d: [*rclone, f":s3:{b}/run/step-1", d]),
    }


class Memory(threading.Thread):
    """The most that any cairn-tier of this session has had in memory, MiB."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.ended = 0.0, threading.Event()

    def run(self):
        while not self.ended.wait(0.05):
            for path in glob.glob("/proc/[0-9]*/status"):
                with contextlib.suppress(OSError), open(path, encoding="utf-8") as f:
                    text = f.read()
                    peak = re.search(r"VmHWM:\s*(\d+)", text)  # one that has ended has none
                    if text.startswith("Name:\tcairn-tier\n") and peak and \
                            os.getsid(int(path.split("/")[2])) == os.getsid(0):
                        self.most = max(self.most, int(peak[1]) / 1024)


def timed(command, name, what):
    """Seconds, None: it failed. Its processor time is a sample."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if code:
        note(f"{' '.join(map(str, command[:4]))}: exit status {code}")
        return None
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    sample(name, f"{what} CPU", "s", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return seconds


def tell_speeds(metric, speeds):
    """speeds: {client: [GB/s]}; that of cairn, of each peer, and of the peer with the best median."""
    for name, v in speeds.items():
        for speed in v:
            sample(name, metric, "GB/s", speed)
    rest = {k: v for k, v in speeds.items() if k != "cairn" and v}
    if rest:
        best = max(rest, key=lambda k: statistics.median(rest[k]))
        for speed in rest[best]:
            sample("best peer", metric, "GB/s", speed)


def all_bytes(folder):
    return sum(os.stat(os.path.join(folder, f)).st_size for f in os.listdir(folder))


def row_drain(o):
    store = os.path.join(o.work, "store")
    folder = make(store, "run/step-1", FILES, o.size * MIB // FILES)
    total = all_bytes(folder)
    clients = {"cairn": lambda b: [o.cairn, "tier", "push", "-q", store, f"s3://{b}"],
               **{k: (lambda b, to=v[0]: to(folder, b)) for k, v in peers(o).items()}}
    speeds = {k: [] for k in clients}
    for n in range(o.rounds):
        for name, command in clients.items():
            with bucket(o, f"bench-{name}-{n}") as b:
                memory = Memory()
                memory.start()
                seconds = timed(command(b), name, "drain")
                memory.ended.set()
            if seconds:
                speeds[name].append(total / seconds / 1e9)
            if name == "cairn":
                sample(name, "drain memory", "MiB", memory.most)
        note(f"drain, round {n + 1}: " + ", ".join(f"{k} {v[-1]:.3f}" for k, v in speeds.items() if v) + " GB/s")
    tell_speeds("drain", speeds)
    shutil.rmtree(store)


def row_fetch(o):
    store, to = os.path.join(o.work, "store"), os.path.join(o.work, "to")
    total = all_bytes(make(store, "run/step-1", FILES, o.size * MIB // FILES))
    clients = {"cairn": lambda d: [o.cairn, "tier", "fetch", "-q", "s3://bench-fetch", d],
               **{k: (lambda d, get=v[1]: get("bench-fetch", d)) for k, v in peers(o).items()}}
    speeds, synced = {k: [] for k in clients}, {k: [] for k in clients}
    with bucket(o, "bench-fetch"):
        subprocess.run([o.cairn, "tier", "push", "-q", store, "s3://bench-fetch"], check=True, stdout=sys.stderr)
        shutil.rmtree(store)
        for n in range(o.rounds):
            for name, command in clients.items():
                os.mkdir(to)
                subprocess.run(["sync", "-f", to], check=True)
                memory = Memory()
                memory.start()
                seconds = timed(command(to), name, "fetch")
                memory.ended.set()
                start = time.monotonic()
                subprocess.run(["sync", "-f", to], check=True)
                if seconds:
                    speeds[name].append(total / seconds / 1e9)
                    # cairn has synced each file itself
                    more = time.monotonic() - start if name != "cairn" else 0
                    synced[name].append(total / (seconds + more) / 1e9)
                if name == "cairn":
                    sample(name, "fetch memory", "MiB", memory.most)
                shutil.rmtree(to)
            note(f"fetch, round {n + 1}: " + ", ".join(f"{k} {v[-1]:.3f}" for k, v in speeds.items() if v) + " GB/s")
    tell_speeds("fetch", speeds)
    tell_speeds("fetch+sync", synced)


# --- through a mount -----------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(o, name, *options):
    store, mnt = os.path.join(o.work, name + "-store"), os.path.join(o.work, name + "-mnt")
    os.makedirs(store)
    os.makedirs(mnt)
    subprocess.run([o.cairnfs, store, mnt, "-o", ",".join(("staging=1G", *options))], check=True)
    try:
        yield mnt
    finally:
        subprocess.run(["umount", mnt], check=True)
        until(60, f"{mnt} stays mounted", lambda: not os.path.ismount(mnt))
        for _ in range(100):  # a follower may be inside of a call
            shutil.rmtree(store, ignore_errors=True)
            if not os.path.exists(store):
                break
            time.sleep(0.2)
        os.rmdir(mnt)


def round_trip(n=20):
    """Of a request that the server refuses, on a connection that is there; the median, ms."""
    conn = http.client.HTTPConnection(os.environ["AWS_ENDPOINT_URL"].split("//")[1])
    times = []
    for _ in range(n):
        start = time.monotonic()
        conn.request("GET", "/bench-first/run/step-1/.metadata")
        conn.getresponse().read()
        times.append((time.monotonic() - start) * 1e3)
    conn.close()
    return statistics.median(times)


def row_first(o):
    store = os.path.join(o.work, "store")
    make(store, "run/step-1", 2, 64 * MIB)
    with bucket(o, "bench-first"):
        subprocess.run([o.cairn, "tier", "push", "-q", store, "s3://bench-first"], check=True, stdout=sys.stderr)
        for _ in range(o.rounds * 2):
            with mounted(o, "first", "tier=s3://bench-first") as mnt:
                path = os.path.join(mnt, ".cairn/tier/run/step-1/__2_0.distcp")
                until(30, "no listing", lambda: os.path.exists(path))
                time.sleep(1)
                trip = round_trip()
                start = time.monotonic()
                with open(path, "rb", buffering=0) as f:
                    byte = f.read(1)
                ms = (time.monotonic() - start) * 1e3
                with open(os.path.join(store, "run/step-1/__2_0.distcp"), "rb") as f:
                    assert f.read(1) == byte
                sample("mount", "first byte", "ms", ms)
                sample("server", "round trip", "ms", trip)
                sample("mount", "first byte less 2 round trips", "ms", ms - 2 * trip)
                until(60, "not fetched", lambda: os.path.exists(os.path.join(mnt, "run/step-1/.metadata")))
    shutil.rmtree(store)


def row_rate(o):
    store = os.path.join(o.work, "store")
    total = all_bytes(make(store, "run/step-1", 4, 48 * MIB))
    for n in range(o.rounds):
        with bucket(o, f"bench-rate-{n}") as b:
            seconds = timed([o.cairn, "tier", "push", "-q", "--rate", "10M", store, f"s3://{b}"], "cairn", "rate")
            sample("cairn", "rate", "%", abs(total / seconds / (10 * MIB) - 1) * 100)
    shutil.rmtree(store)


def save(mnt, name, block, count):
    """Seconds that a save of 4 files blocks its caller."""
    start = time.monotonic()
    os.mkdir(os.path.join(mnt, name))
    for i in range(4):
        with open(os.path.join(mnt, name, f"__{i}_0.distcp"), "wb", buffering=0) as f:
            for _ in range(count):
                f.write(block)
    shutil.copyfile(os.path.join(ASSETS, "dcp", ".metadata"), os.path.join(mnt, name, ".metadata"))
    return time.monotonic() - start


def settle(mnt):
    """Until the page pool is full, as between any two measured saves (docs/PERFORMANCE.md, Method)."""
    def full():
        with open(os.path.join(mnt, ".cairn/status.json"), encoding="utf-8") as f:
            staging = json.load(f)["staging"]
        return staging["pool_bytes"] + staging["used_bytes"] + 8 * MIB >= staging["pool_target_bytes"]
    until(60, "the page pool is not full", full)


@contextlib.contextmanager
def unimportant(pid):
    """The session of that process has the lowest priority (sched(7), autogroup)."""
    def set_nice(value):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/autogroup", "w", encoding="utf-8") as f:
            f.write(value)
    set_nice("19")
    try:
        yield
    finally:
        set_nice("0")


def row_blocked(o):
    with unimportant(o.server):
        compare_blocked(o)


def compare_blocked(o):
    """Mounts one after the other: a mount's page pool is memory."""
    block = bytes(4 * MIB)
    tiers = {"no tier": [], "slow tier": ["tier=s3://bench-blocked", "tier_rate=20M"],
             "tier that is gone": ["tier=s3://bench-blocked"]}
    url = os.environ["AWS_ENDPOINT_URL_S3"]
    for n in range(o.rounds):
        order = list(tiers) * 2  # each is the first one of a round as often: memory gets colder within one
        for label in order[n % 3:n % 3 + 3]:
            options = tiers[label]
            os.environ["AWS_ENDPOINT_URL_S3"] = "http://127.0.0.1:9" if "gone" in label else url
            with bucket(o, "bench-blocked"), mounted(o, "blocked", "fsync=staged", *options) as mnt:
                for step in range(STEPS):
                    settle(mnt)
                    seconds = save(mnt, f"step-{step}", block, 16)
                    if step > 1:  # sizes are known from the third on
                        sample(label, "blocked", "ms", seconds * 1e3)
                    subprocess.run([o.cairn, "wait", mnt], check=True, stdout=subprocess.DEVNULL)
                    if step:
                        shutil.rmtree(os.path.join(mnt, f"step-{step - 1}"))
            os.environ["AWS_ENDPOINT_URL_S3"] = url
        note(f"blocked, round {n + 1}")


ROWS = {"first": row_first, "rate": row_rate, "blocked": row_blocked, "drain": row_drain, "fetch": row_fetch}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("-n", dest="rounds", type=int, default=5)
    a.add_argument("-s", dest="size", type=int, default=4096)
    a.add_argument("--build", default="build")
    a.add_argument("--work", required=True)
    a.add_argument("--peers", default="build/peers/bin")
    a.add_argument("what", nargs="*", choices=[*ROWS, []])
    o = a.parse_args()
    o.cairn, o.cairnfs = (os.path.abspath(os.path.join(o.build, x)) for x in ("cairn", "cairnfs"))
    o.peers = os.path.abspath(o.peers)
    o.work = os.path.join(os.path.abspath(o.work), "tier")
    shutil.rmtree(o.work, ignore_errors=True)
    os.makedirs(o.work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in list(os.environ):
        if name.startswith("AWS_") and not os.environ.get("CAIRN_S3_SERVER"):
            del os.environ[name]
    with server(o) as version:
        note(f"server: {version}")
        for what in o.what or ROWS:
            ROWS[what](o)
    shutil.rmtree(o.work)


main()
