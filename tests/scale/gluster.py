# SPDX-License-Identifier: MIT
"""GlusterFS with one brick, in the namespaces of this process: glusterd, a brick process, a client for each node."""
import os
import signal
import subprocess
import time

ADDRESS = "192.0.2.2"
VOLUME = "v0"
LIMIT = 60 * int(os.environ.get("CAIRN_TEST_SLOW", "3"))


class Unavailable(Exception):
    """It cannot run here; why."""


def call(*argv, check=True):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=LIMIT, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.returncode}: {done.stdout.strip()}")
    return done


def until(what, test, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not test():
        if time.monotonic() > end:
            raise RuntimeError(f"after {seconds} s: {what}")
        time.sleep(0.02)


def processes():
    """(pid, command line) of all."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                yield int(pid), f.read().decode(errors="replace").split("\0")[:-1]
        except OSError:
            pass


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for pid in pids:
        until(f"process {pid} survives SIGKILL", lambda p=pid: gone(p))


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

    def start(self):
        for name in ("lib", "log", "brick"):
            os.mkdir(f"{self.top}/{name}")
        try:
            call("ip", "link", "set", "lo", "up")
            # It refuses the loopback address.
            call("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
            call("mount", "--bind", f"{self.top}/lib", "/var/lib/glusterd")
            call("mount", "--bind", f"{self.top}/log", "/var/log/glusterfs")
            call("mount", "-t", "tmpfs", "tmpfs", "/run")
            with open(f"{self.top}/glusterd.out", "wb") as out:
                subprocess.Popen(["glusterd", "-N"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            until("glusterd does not answer", lambda: self.ask("volume", "list", check=False).returncode == 0)
            self.ask("volume", "create", VOLUME, f"{ADDRESS}:{self.view}", "force")
            self.ask("volume", "start", VOLUME)
            self.mount(self.root)
            os.mkdir(f"{self.root}/cairn")
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as err:
            raise Unavailable(str(err)) from err

    def ask(self, *words, check=True):
        return call("gluster", "--mode=script", *words, check=check)

    def mount(self, where):
        """Also while the server starts again."""
        os.makedirs(where, exist_ok=True)

        def mounted():
            return call("mount", "-t", "glusterfs", f"{ADDRESS}:/{VOLUME}", where, check=False).returncode == 0
        until(f"{where} cannot be mounted", mounted)

    def kill_client(self, where):
        kill([pid for pid, argv in processes()
              if argv and argv[0].endswith("/glusterfs") and argv[-1] == where])

    def mount_again(self, where):
        call("umount", "-l", where, check=False)
        self.mount(where)

    def kill_server(self, _):
        kill([pid for pid, argv in processes() if argv and argv[0].endswith("/glusterfsd")])

    def start_server(self, _):
        def started():
            return self.ask("volume", "start", VOLUME, "force", check=False).returncode == 0
        until("the brick does not start", started)
