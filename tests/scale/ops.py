# SPDX-License-Identifier: MIT
"""Case ops of tests/scale/run: which operations of a save reach the brick, by the brick's own count (volume profile).

Four hosts save checkpoints of 32 shards into new directories: through cairnfs; with plain calls on the same clients, by
which each file is written under another name, synced, closed and renamed, and its directory synced; and one host that is
alone in its store saves as many. Then nothing is saved, and one shard is missing, for some seconds. The limits are somewhat above what was
measured (docs/SCALE.md).
"""
import collections
import os
import threading
import time
import xml.etree.ElementTree

from gluster import VOLUME

SHARDS, SIZE = 8, 1 << 20  # of each host
WARM, STEPS = 2, 5
LAST = WARM + STEPS + 1  # the checkpoint that waits
WAIT_S = 20
MOST_PLAIN = 10    # operations on metadata per shard, beyond those of plain calls
MOST_ALONE = 5     # ... beyond those of a host that is alone: what it costs to be several
MOST_WAIT = 2.5      # operations a second, while one shard is missing
MOST_IDLE = 1.5    # operations a second of each host that does nothing
BYTES = {"READ", "WRITE", "FSYNC", "FLUSH", "FALLOCATE", "DISCARD", "ZEROFILL", "TRUNCATE", "FTRUNCATE"}
NOT_SENT = {"FORGET", "RELEASE", "RELEASEDIR"}


def hits(shared):
    """How often each was asked for since the volume was started."""
    told = shared.ask("--xml", "volume", "profile", VOLUME, "info", "cumulative").stdout
    found = collections.Counter()
    for fop in xml.etree.ElementTree.fromstring(told).iter("fop"):
        name = fop.findtext("name")
        if name not in NOT_SENT:
            found[name] += int(fop.findtext("hits"))
    return found


def together(hosts, do):
    threads = [threading.Thread(target=do, args=(host,)) for host in hosts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def through_cairnfs(run, step):
    together(run.hosts, lambda host: run.save_shards(host, step, sync=True))
    run.save_metadata(run.hosts[0], step)
    run.wait(f"step-{step} is not published", lambda: step in run.complete)


def plainly(run, step):
    def write(path, data):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".part", "wb", buffering=0) as f:
            f.write(data)
            os.fsync(f.fileno())
        os.rename(path + ".part", path)
        above = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(above)
        os.close(above)

    def shards(host):
        for name in run.content.names(host.number):
            write(f"{host.client}/cairn/plain/step-{step}/{name}", run.content.shard(step, name))
    together(run.hosts, shards)
    write(f"{run.hosts[0].client}/cairn/plain/step-{step}/.metadata", run.content.metadata(step))


def measure(run, save, idle):
    """Of one checkpoint, on average, without what is asked for anyway (idle: a second)."""
    for step in range(WARM):
        save(run, step)
    time.sleep(2)
    before, began = hits(run.shared), time.monotonic()
    for step in range(WARM, WARM + STEPS):
        save(run, step)
    time.sleep(2)
    after, took = hits(run.shared), time.monotonic() - began
    return {name: max(after[name] - before[name] - idle.get(name, 0) * took, 0) / STEPS
            for name in after if after[name] > before[name]}


def rate(run, seconds):
    before = hits(run.shared)
    time.sleep(seconds)
    after = hits(run.shared)
    return {name: (after[name] - before[name]) / seconds for name in after if after[name] > before[name]}


def metadata_of(counts):
    return sum(n for name, n in counts.items() if name not in BYTES)


def table(columns):
    names = sorted({name for counts in columns.values() for name in counts})
    print(f"  {'':14}" + "".join(f"{title:>12}" for title in columns))
    for name in names:
        print(f"  {name:14}" + "".join(f"{counts.get(name, 0):12.1f}" for counts in columns.values()))
    print(f"  {'of metadata':14}" + "".join(f"{metadata_of(counts):12.1f}" for counts in columns.values()), flush=True)


def waiting(run):
    """While one shard is missing."""
    step, late = LAST, run.hosts[-1]
    together(run.hosts[:-1], lambda host: run.save_shards(host, step))
    names = run.content.names(late.number)
    for name in names[1:]:
        run.write(late, f"step-{step}/{name}", run.content.shard(step, name), False)
    run.save_metadata(run.hosts[0], step, sync=False)
    run.wait("it is not held", lambda: run.is_held(step))
    time.sleep(5)  # it is asked about less and less often
    counts = rate(run, WAIT_S)
    run.save_shards(late, step)
    run.wait("it is not published", lambda: step in run.complete)
    return counts


def columns(run, alone):
    run.shared.ask("volume", "profile", VOLUME, "start")
    os.mkdir(f"{run.shared.root}/cairn/plain")
    through_cairnfs(run, 0)  # from here on each host knows of the others
    time.sleep(12)
    idle = rate(run, WAIT_S)
    found = {"cairnfs": measure(run, lambda r, step: through_cairnfs(r, step + 1), idle),
             "plain": measure(run, plainly, idle), "idle/s": idle, "waiting/s": waiting(run)}
    other = alone()
    try:
        found["alone"] = measure(other, through_cairnfs, rate(other, WAIT_S))
    finally:
        other.end()
    return found


def count(run, alone, fail):
    """alone: makes a case of one host that saves as much."""
    found = columns(run, alone)
    table(found)
    shards = SHARDS * len(run.hosts)
    of = {title: metadata_of(counts) / shards for title, counts in found.items()}
    plain, single = of["cairnfs"] - of["plain"], of["cairnfs"] - of["alone"]
    idle = sum(found["idle/s"].values())
    wait = sum(found["waiting/s"].values()) - idle
    idle /= len(run.hosts)
    said = (f"{plain:.1f} more operations on metadata per shard than with plain calls (at most {MOST_PLAIN}), "
            f"{single:.1f} more than for a host alone (at most {MOST_ALONE}), {wait:.1f} a second while a shard is "
            f"missing (at most {MOST_WAIT}), {idle:.1f} a second of an idle host (at most {MOST_IDLE})")
    if plain > MOST_PLAIN or single > MOST_ALONE or wait > MOST_WAIT or idle > MOST_IDLE:
        raise fail(said)
    return said
