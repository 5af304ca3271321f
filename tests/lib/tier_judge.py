#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/lib/tier_judge.py PLACE REF [END] - reads a tier with plain calls, and compares it with what was saved.

PLACE: a directory, or a URL of what is below the tier's prefix (with SIGNED, a header's value or nothing, in the environment). REF has
directories, one for each checkpoint of PLACE/run: what was saved there. It fails if a commit file (.metadata) or a manifest is
there before all that it lists, or with other bytes, or if the newest that has a manifest is older than one seen before.
Without END it looks once, and prints "NAME STATE" for each: none, committed (a commit file), complete (a manifest). With END it
looks until that file exists, and prints how often. "HTTP ERROR" of a server that is gone is no answer: it looks again.
"""
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


class Away(Exception):
    """The server does not answer."""


def step_of(name):
    """For sorting: by the numbers in it."""
    return [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", name)]


class Place:
    def __init__(self, place):
        self.place = place

    def read(self, path):
        """None: it is not there."""
        if self.place.startswith("/"):
            try:
                with open(f"{self.place}/{path}", "rb") as f:
                    return f.read()
            except FileNotFoundError:
                return None
        signed = os.environ["SIGNED"]
        request = urllib.request.Request(f"{self.place}/{urllib.parse.quote(path)}",
                                         headers={"Authorization": signed} if signed else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as err:
            if err.code == 404:
                return None
            raise Away(str(err)) from err
        except (OSError, http.client.HTTPException) as err:
            raise Away(str(err)) from err


class Judge:
    def __init__(self, place, top="run"):
        self.at, self.top = Place(place), f"{top}/" if top else ""
        self.right = set()  # checkpoints whose bytes were read
        self.newest = None

    def state(self, name, want):
        """want: the files' names, and a function that gives the bytes of one."""
        names, bytes_of = want
        # In the other order than they are written: what is there now was there when the files are read.
        manifest = self.at.read(f".cairn/manifests/{self.top}{name}/manifest.json")
        commit = self.at.read(f"{self.top}{name}/.metadata")
        if manifest is None and commit is None:
            return "none"
        if manifest is not None:
            files = sorted(f["path"] for f in json.loads(manifest)["files"])
            assert files == sorted(f"{self.top}{name}/{n}" for n in names), f"{name}: the manifest lists {files}"
        if name not in self.right:
            for n in names:
                found = commit if n == ".metadata" else self.at.read(f"{self.top}{name}/{n}")
                assert found == bytes_of(n), f"{name}: {'a manifest' if manifest else 'a commit file'}, and {n} is " + \
                    ("not there" if found is None else "another one")
            if manifest is not None:
                self.right.add(name)
        return "complete" if manifest is not None else "committed"

    def look(self, saved):
        """saved: name -> want, of all that was saved."""
        states, newest = {}, None
        for name in sorted(saved, key=step_of):
            states[name] = self.state(name, saved[name])
            if states[name] == "complete":
                newest = name
        assert self.newest is None or (newest and step_of(newest) >= step_of(self.newest)), \
            f"the newest complete was {self.newest}, and is {newest}"
        self.newest = newest
        return states


def saved_below(ref):
    def want(name):
        def bytes_of(n):
            with open(f"{ref}/{name}/{n}", "rb") as f:
                return f.read()
        return os.listdir(f"{ref}/{name}"), bytes_of
    return {name: want(name) for name in os.listdir(ref)}


def main():
    place, ref, *end = sys.argv[1:]
    judge, looks = Judge(place), 0
    if not end:
        for name, state in judge.look(saved_below(ref)).items():
            print(name, state)
        return
    last, states = False, {}
    while not last:
        last = os.path.exists(end[0])
        try:
            states = judge.look(saved_below(ref))
            looks += 1
        except Away:
            last = False
        time.sleep(0.01)
    print(f"{looks} looks, {sum(s == 'complete' for s in states.values())} complete")


if __name__ == "__main__":
    main()
