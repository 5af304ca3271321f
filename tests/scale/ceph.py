# SPDX-License-Identifier: MIT
"""CephFS in the namespaces of this process: mon, mgr, an osd on a file, mds, and a ceph-fuse for each node."""
import json
import os
import shlex
import subprocess
import urllib.error
import urllib.request
import uuid

from network import SERVER, Network
from process import Unavailable, call, kill, processes, until

RGW_PORT = 7480
BLOCK = 40 << 30  # of the osd, sparse
POOLS = ("metadata", "data")
CONF = """[global]
fsid = {fsid}
mon_host = {address}
public_addr = {address}
cluster_addr = {address}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_cluster_mode = crc
ms_service_mode = crc
ms_client_mode = crc
ms_mon_cluster_mode = crc
ms_mon_service_mode = crc
ms_mon_client_mode = crc
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_data_avail_warn = 1
mon_data_avail_crit = 0
bluestore_block_size = {block}
osd_memory_target = 1073741824
mgr_initial_modules =
mon_cluster_log_file = {top}/log/cluster.log
admin_socket = {top}/run/$name.$pid.asok
run_dir = {top}/run
crash_dir = {top}/log
mon_data = {top}/mon
mgr_data = {top}/mgr
osd_data = {top}/osd
mds_data = {top}/mds
rgw_data = {top}/rgw
rgw_gc_obj_min_wait = 1
rgw_gc_processor_period = 5
rgw_gc_processor_max_time = 5
"""
# What cairn-tier is told about RGW.
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "not-to-be-seen", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": f"http://{SERVER}:{RGW_PORT}", "SIGNED": ""}


class Ceph:
    name, group = "CephFS", "ceph"
    tools = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph", "monmaptool")
    s3_tools = (*tools, "radosgw", "radosgw-admin")
    servers = {"osd": ["ceph-osd", "-i", "0"], "mds": ["ceph-mds", "-i", "a"]}
    rgw = ["radosgw", "-n", "client.rgw", "--rgw-frontends", f"beast endpoint={SERVER}:{RGW_PORT}"]
    kinds, pause = {"evicted": 4}, 1.5  # a new mds takes seconds

    def __init__(self, top):
        self.top = top
        self.view = self.root = f"{top}/view"  # a client that is not killed
        self.network, self.at = Network(top), {}  # which node a client is on
        self.running, self.killed, self.starter = {}, 0, None

    def start(self):
        try:
            self.cluster()
            self.mount(self.view)
            os.mkdir(f"{self.view}/cairn")
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as err:
            raise Unavailable(str(err)) from err

    def cluster(self):
        for name in ("log", "run", "mon", "mgr", "osd", "mds", "rgw"):
            os.mkdir(f"{self.top}/{name}")
        fsid = str(uuid.uuid4())
        os.environ["CEPH_CONF"] = f"{self.top}/ceph.conf"
        self.starter = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        with open(os.environ["CEPH_CONF"], "w", encoding="ascii") as f:
            f.write(CONF.format(fsid=fsid, address=SERVER, block=BLOCK, top=self.top))
        self.network.start()
        call("mount", "-t", "tmpfs", "tmpfs", "/run")
        call("monmaptool", "--create", "--fsid", fsid, "--addv", "a",
             f"[v2:{SERVER}:3300,v1:{SERVER}:6789]", f"{self.top}/monmap")
        call("ceph-mon", "--mkfs", "-i", "a", "--monmap", f"{self.top}/monmap")
        self.run("mon", "ceph-mon", "-i", "a")
        until("the mon does not answer", lambda: self.ask("status", check=False).returncode == 0)
        self.run("mgr", "ceph-mgr", "-i", "a")
        osd = str(uuid.uuid4())
        self.ask("osd", "new", osd)
        call("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        for name in self.servers:
            self.start_server(name)
        for pool in POOLS:
            self.ask("osd", "pool", "create", pool)
        self.ask("fs", "new", "fs", *POOLS)
        until("the mds is not active", lambda: "up:active" in self.ask("mds", "stat").stdout)
        # Before its first report statfs(2) has nothing.
        until("the mgr reports nothing", lambda: json.loads(
            self.ask("df", "--format", "json").stdout)["stats"]["total_bytes"])

    def ask(self, *words, check=True):
        return call("ceph", "--connect-timeout", "30", *words, check=check)

    def run(self, name, *argv):
        """By a process that has no file of a mount open: closing one, between fork and exec, waits for a dead server."""
        words = [*argv, "-f", "--log-file", f"{self.top}/log/{name}.log"]
        self.starter.stdin.write(f"{shlex.join(words)} </dev/null >>{self.top}/log/{name}.out 2>&1 & echo $!\n")
        self.starter.stdin.flush()
        self.running[name] = int(self.starter.stdout.readline())

    def mount(self, where, node=None):
        """Also while a server starts again. Without a node: beside the servers."""
        os.makedirs(where, exist_ok=True)
        self.at[where] = node
        within = node.within if node else ()
        until(f"{where} cannot be mounted", lambda: call(*within, "ceph-fuse", where, check=False).returncode == 0)

    def clients(self, where):
        return [pid for pid, argv in processes() if argv and argv[0].endswith("ceph-fuse") and where in argv]

    def kill_client(self, where):
        kill(self.clients(where))

    def evict(self, where):
        """What the mds does to a client of which it hears nothing: its session and its unwritten bytes are gone."""
        def done():
            told = self.ask("tell", "mds.a", "session", "ls", "--format", "json", check=False).stdout
            try:
                sessions = json.loads(told[told.index("["):])
            except ValueError:
                return False
            return all(self.ask("tell", "mds.a", "client", "evict", f"id={s['id']}", check=False).returncode == 0
                       for s in sessions if s["client_metadata"].get("mount_point") == where)
        until(f"{where} is not evicted", done)

    def mount_again(self, where):
        """Every eighth time the mds has to find out by itself that the client has gone: after a minute."""
        self.killed += 1
        if self.killed % 8:
            self.evict(where)
        call("umount", "-l", where, check=False)
        self.mount(where, self.at[where])

    def hurt(self, _, where):
        """A client that lives, and is evicted: each call fails until it is mounted again."""
        self.evict(where)

    def kill_server(self, name):
        pid = self.running.pop(name)
        kill([pid])
        # Its locks are held until the last of its threads has ended.
        until(f"{name} is not reaped", lambda: not os.path.exists(f"/proc/{pid}"))

    def start_server(self, name):
        self.run(name, *self.servers[name])

    # ---- RGW, where cluster() was called

    def start_rgw(self):
        self.run("rgw", *self.rgw)
        until("radosgw does not answer", self.rgw_answers)

    @staticmethod
    def rgw_answers():
        try:
            with urllib.request.urlopen(KEYS["AWS_ENDPOINT_URL_S3"], timeout=10):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def first_rgw(self):
        """With a user whose keys are KEYS."""
        self.start_rgw()
        call("radosgw-admin", "user", "create", "--uid", "cairn", "--display-name", "cairn",
             "--access-key", KEYS["AWS_ACCESS_KEY_ID"], "--secret-key", KEYS["AWS_SECRET_ACCESS_KEY"])
