# SPDX-License-Identifier: MIT
"""GlusterFS with one brick, in the namespaces of this process: glusterd, a brick process, a client for each node."""
import os
import subprocess

from network import SERVER, Network
from process import Unavailable, call, kill, processes, until

VOLUME = "v0"
PING_S = 2  # without an answer for so long, a client fails its calls (42 by default)


class Gluster:
    name, group = "GlusterFS", "scale"
    tools, s3_tools = ("glusterd", "gluster", "mount.glusterfs"), ()
    servers = ("brick",)
    pause = 0.5  # between kills, in seconds, at most
    kinds = {}  # of kills, besides those that any shared filesystem has

    def __init__(self, top):
        self.top = top
        self.view = f"{top}/brick"    # what the judge reads
        self.root = f"{top}/first"    # a client that is not killed
        self.network = Network(top)
        self.at = {}                  # which node a client is on

    def start(self):
        for name in ("lib", "log", "brick"):
            os.mkdir(f"{self.top}/{name}")
        try:
            self.network.start()
            call("mount", "--bind", f"{self.top}/lib", "/var/lib/glusterd")
            call("mount", "--bind", f"{self.top}/log", "/var/log/glusterfs")
            call("mount", "-t", "tmpfs", "tmpfs", "/run")
            with open(f"{self.top}/glusterd.out", "wb") as out:
                subprocess.Popen(["glusterd", "-N"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            until("glusterd does not answer", lambda: self.ask("volume", "list", check=False).returncode == 0)
            self.ask("volume", "create", VOLUME, f"{SERVER}:{self.view}", "force")
            self.ask("volume", "set", VOLUME, "network.ping-timeout", str(PING_S))
            self.ask("volume", "start", VOLUME)
            self.mount(self.root)
            os.mkdir(f"{self.root}/cairn")
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as err:
            raise Unavailable(str(err)) from err

    def ask(self, *words, check=True):
        return call("gluster", "--mode=script", *words, check=check)

    def mount(self, where, node=None):
        """Also while the server starts again. Without a node: beside the servers."""
        os.makedirs(where, exist_ok=True)
        self.at[where] = node
        within = node.within if node else ()

        def mounted():
            return call(*within, "mount", "-t", "glusterfs", f"{SERVER}:/{VOLUME}", where, check=False).returncode == 0
        until(f"{where} cannot be mounted", mounted)

    def kill_client(self, where):
        kill([pid for pid, argv in processes()
              if argv and argv[0].endswith("/glusterfs") and argv[-1] == where])

    def mount_again(self, where):
        call("umount", "-l", where, check=False)
        self.mount(where, self.at[where])

    def kill_server(self, _):
        kill([pid for pid, argv in processes() if argv and argv[0].endswith("/glusterfsd")])

    def start_server(self, _):
        def started():
            return self.ask("volume", "start", VOLUME, "force", check=False).returncode == 0
        until("the brick does not start", started)
