# SPDX-License-Identifier: MIT
"""Case s3 of tests/scale/run: three hosts of one store send to one bucket, and their processes and the server are killed.

The server is moto, which keeps all in memory and stays; a front before it (tests/lib/s3_fault.py) is what is killed: each
connection is cut in the midst of what it does. The judge (tests/lib/tier_judge.py) asks moto itself with plain HTTP. With
`--on ceph` the server is radosgw (RGW), which is killed itself, and starts again.
"""
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

from ceph import KEYS
from process import LIMIT, call, kill, until

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, f"{TOP}/tests/lib")
from tier_judge import Away, Judge  # noqa: E402

MOTO = os.environ.get("CAIRN_MOTO", f"{TOP}/build/scale/bin/moto_server")
KEYS_MOTO = {**KEYS, "SIGNED": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
                               "Signature=0"}
KINDS = {"tier": 25, "follower": 20, "runner": 15, "guard": 10, "server": 15, "worker": 8, "keeper": 7}
HOSTS = 3
SIZES = (1000, 20 << 20)
SPARE_S = 5  # between kills of a keeper, or keeper and worker, of one host


def lacks(build):
    """Why it cannot run here; None: it can."""
    if not os.access(f"{build}/cairn-tier", os.X_OK):
        return "no cairn-tier: tools/setup tier, then make"
    if not os.access(MOTO, os.X_OK):  # boto3, for RGW, comes with it
        return "no moto: tools/setup tier"
    return None


class Moto:
    """moto and the front."""
    keys = KEYS_MOTO

    def __init__(self, top):
        self.top, self.front, self.port = top, None, 0
        os.mkdir(f"{top}/front")
        with open(f"{top}/moto.out", "wb") as out:
            self.moto = subprocess.Popen([MOTO, "-H", "127.0.0.1", "-p", "0"], stdin=subprocess.DEVNULL, stdout=out,
                                         stderr=out)
        until("moto does not start", self.moto_port)
        request = urllib.request.Request(f"http://{self.upstream}/bucket", method="PUT",
                                         headers={"Authorization": self.keys["SIGNED"]})
        urllib.request.urlopen(request).close()
        self.start()

    def moto_port(self):
        with open(f"{self.top}/moto.out", encoding="utf-8", errors="replace") as f:
            found = re.search(r"http://(127\.0\.0\.1:\d+)", f.read())
        self.upstream = found[1] if found else None
        return found

    def start(self):
        url = f"{self.top}/front/url"
        if os.path.exists(url):
            os.unlink(url)
        with open(f"{self.top}/front/log", "w", encoding="utf-8"):
            pass
        self.front = subprocess.Popen([f"{TOP}/tests/lib/s3_fault.py", self.upstream, f"{self.top}/front",
                                       *([str(self.port)] if self.port else [])], stdin=subprocess.DEVNULL)
        until("the front does not start", lambda: os.path.exists(url))
        with open(url, encoding="ascii") as f:
            self.url = f.read()
        self.port = int(self.url.rpartition(":")[2])

    def kill(self):
        kill([self.front.pid])
        self.front.wait()

    def end(self):
        kill([p.pid for p in (self.front, self.moto) if p])


class Rgw:
    """radosgw on the cluster of `ceph`. The bucket is open to anybody, so that the judge need not sign."""
    keys = KEYS

    def __init__(self, ceph):
        self.ceph, self.url = ceph, KEYS["AWS_ENDPOINT_URL_S3"]
        self.upstream = self.url[7:]
        self.start = ceph.start_rgw
        ceph.first_rgw()
        call(f"{TOP}/build/scale/bin/python", f"{TOP}/tests/lib/s3_bucket.py", "fresh", "bucket")

    def kill(self):
        self.ceph.kill_server("rgw")

    def end(self):
        if "rgw" in self.ceph.running:
            self.kill()


class Watch(threading.Thread):
    """The judge: what was saved, and what the bucket has."""

    def __init__(self, content, place, fail):
        super().__init__(daemon=True)
        self.content, self.fail = content, fail
        self.judge, self.saved, self.complete = Judge(place, ""), {}, set()
        self.looks, self.stop = 0, False

    def add(self, step):
        """Before it is saved."""
        def bytes_of(name):
            return self.content.metadata(step) if name == ".metadata" else self.content.shard(step, name)
        self.saved[f"step-{step}"] = ([*self.content.all_names(), ".metadata"], bytes_of)

    def run(self):
        try:
            while not self.stop:
                try:
                    self.look()
                except Away:
                    time.sleep(0.1)
                time.sleep(0.01)
        except (AssertionError, ValueError) as err:
            self.fail(str(err))

    def look(self):
        states = self.judge.look(dict(self.saved))
        self.complete = {int(n[5:]) for n, s in states.items() if s == "complete"}
        self.looks += 1


class Killer:
    def __init__(self, run, server, seed):
        self.run, self.server, self.rng = run, server, random.Random(f"s3 {seed}")
        self.done, self.missed, self.spared = collections.Counter(), 0, {}

    def tier(self, host, key):
        try:
            return int(json.loads(host.status())["tier"][key])
        except (ValueError, KeyError, TypeError):
            return 0

    def s3_client(self, host):
        """The cairn-tier of the host's follower."""
        todo = [self.tier(host, "pid")]
        while todo and todo[0]:
            pid = todo.pop()
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8") as f:
                    if f.read() == "cairn-tier\n":
                        return pid
                with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
                    todo += map(int, f.read().split())
            except OSError:
                pass
        return 0

    def one(self):
        end = time.monotonic() + self.rng.random() * 0.6
        while time.monotonic() < end:
            self.run.check()
            time.sleep(0.01)
        kind = self.rng.choices(list(KINDS), KINDS.values())[0]
        host = self.rng.choice(self.run.hosts)
        if kind == "server":
            self.server.kill()
            time.sleep(self.rng.random())
            self.server.start()
        elif kind == "worker":
            if not host.may_die() or self.killed_lately(host):
                return
            host.kill_worker()
        elif kind == "keeper":
            if self.killed_lately(host):
                return
            self.spared[host.name] = time.monotonic()
            kill([host.keeper])
            until(f"{host.name} has no keeper", lambda: self.new_keeper(host))
        else:
            pid = self.s3_client(host) if kind == "tier" else self.tier(host, "pid" if kind == "follower" else kind)
            if not pid:
                self.missed += 1
                return
            kill([pid])
        self.done[kind] += 1

    @staticmethod
    def new_keeper(host):
        try:
            pid = int(json.loads(host.status())["keeper_pid"])
        except (ValueError, KeyError):
            return False
        fresh = pid != host.keeper and os.path.exists(f"/proc/{pid}")
        if fresh:
            host.keeper = pid
        return fresh

    def killed_lately(self, host):
        """Its worker or its keeper: both at once, or a keeper without a spare, end a mount (DURABILITY.md)."""
        last = max([self.spared.get(host.name, 0), *host.deaths])
        return time.monotonic() - last < SPARE_S

    def total(self):
        return sum(self.done.values())


def campaign(args, shared, build, new_run, bad):
    """new_run(opts, sizes): the hosts of a store on this machine."""
    top, kind = shared.top, Rgw if hasattr(shared, "rgw") else Moto
    os.environ.update(kind.keys)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        os.environ.pop(name, None)
    server = kind(shared if kind is Rgw else top)
    os.environ["AWS_ENDPOINT_URL_S3"] = server.url
    run = None
    try:
        run = new_run(HOSTS, "staging=64M,tier=s3://bucket/x", SIZES)
        watch = Watch(run.content, f"http://{server.upstream}/bucket/x", run.fail)
        watch.start()
        killer, steps = Killer(run, server, args.seed), 0
        stop = threading.Event()

        def save():
            nonlocal steps
            while not stop.is_set():
                watch.add(steps)
                for host in run.hosts:
                    run.save_shards(host, steps)
                run.save_metadata(run.hosts[0], steps)
                steps += 1
                run.wait("the bucket falls behind", lambda: steps - 3 <= len(watch.complete) or stop.is_set())
        trainer = threading.Thread(target=guarded(save, run), daemon=True)
        trainer.start()
        end = time.monotonic() + args.seconds
        while killer.total() < args.kills if args.kills else time.monotonic() < end:
            killer.one()
            if args.kills and killer.total() % 50 == 0:
                print(f"# {killer.total()} kills, {steps} checkpoints, {len(watch.complete)} in the bucket", flush=True)
        stop.set()
        run.wait("the trainer does not end", lambda: not trainer.is_alive())
        run.wait("not all gets to the bucket", lambda: watch.complete.issuperset(range(steps)))
        watch.stop = True
        watch.join(LIMIT)
        run.check()
        for host in run.hosts:
            run.unmount(host)
        done = call(f"{build}/cairn", "tier", "verify", "-q", "s3://bucket/x", check=False)
        if done.returncode:
            raise bad(f"verify: {done.stdout}")
        if not steps or not watch.looks:
            raise bad("nothing was saved, or nobody looked")
        return (f"{killer.total()} kills ({', '.join(f'{n} {k}' for k, n in killer.done.items())}), {steps} checkpoints, "
                f"{watch.looks} looks, 0 violations")
    except (bad, RuntimeError) as err:
        if args.keep and run:
            keep(args.keep, run, top, str(err))
        raise
    finally:
        if run:
            run.end()
        server.end()


def guarded(work, run):
    def do():
        try:
            work()
        except Exception as err:  # whatever ends it ends the campaign
            run.fail(f"the trainer: {err!r}")
    return do


def keep(to, run, top, why):
    os.makedirs(f"{to}/s3", exist_ok=True)
    with open(f"{to}/s3/why", "w", encoding="utf-8") as f:
        f.write(why + "\n")
    for host in run.hosts:
        with open(f"{to}/s3/{host.name}.status.json", "w", encoding="utf-8") as f:
            f.write(host.status())
    for name in ("front", "log"):
        if os.path.exists(f"{top}/{name}"):
            shutil.copytree(f"{top}/{name}", f"{to}/s3/{name}", dirs_exist_ok=True)
    for name in ("log", "tier"):
        call("sh", "-c", f"cp -a {run.hosts[0].store}/.cairn/*/{name} {to}/s3/", check=False)
