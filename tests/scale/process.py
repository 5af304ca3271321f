# SPDX-License-Identifier: MIT
"""Commands and processes, in the namespaces of this process."""
import os
import signal
import subprocess
import time

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


def send_kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def await_gone(pids):
    for pid in pids:
        until(f"process {pid} survives SIGKILL", lambda p=pid: gone(p))


def kill(pids):
    send_kill(pids)
    await_gone(pids)
