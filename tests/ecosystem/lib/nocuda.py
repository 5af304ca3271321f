#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""nocuda.py DIR - stand-ins for the CUDA libraries that the programs in DIR are linked with.

PyPI's Linux wheel of torch names a dozen CUDA libraries, several GB to download, without which
the loader refuses it; on a machine without a GPU none of them is called for anything but
registration and "how many devices are there?". For each that is missing, a library with the same
soname, symbols and symbol versions is written into DIR; every function in it answers
cudaErrorNoDevice (100).
"""

import os
import re
import subprocess
import sys
import tempfile

NO_DEVICE = 100
# What is called and answers otherwise than by an error code.
SPECIAL = {
    "cudaGetDeviceCount": f"int cudaGetDeviceCount(int *n) {{ *n = 0; return {NO_DEVICE}; }}",
    "cudaGetErrorString": 'const char *cudaGetErrorString(int e) { (void)e; return "no CUDA"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int e) { (void)e; return "no CUDA"; }',
}
CUDA = re.compile(r"lib(cu|nv|nccl)")


def run(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", path))


def versions(path):
    """{version: soname}, what the loader will ask each library for."""
    found, soname = {}, None
    for line in run("readelf", "-VW", path).splitlines():
        if m := re.search(r"File: (\S+)", line):
            soname = m[1]
        elif soname and (m := re.search(r"Name: (\S+)\s+Flags:", line)):
            found[m[1]] = soname
    return found


def symbols(path, which):
    """(name, version or None) of the dynamic symbols; weak undefined ones are nobody's loss."""
    for line in run("nm", "-D", which, path).splitlines():
        kind, name = line.split()[-2:]
        if which == "--undefined-only" and kind in "wv":
            continue
        name, _, version = name.partition("@")
        yield name, version.lstrip("@") or None


def write_library(folder, soname, names):
    """names: {version or None: names of functions}."""
    with tempfile.TemporaryDirectory() as tmp:
        source, script = os.path.join(tmp, "s.c"), os.path.join(tmp, "s.map")
        with open(source, "w", encoding="ascii") as f:
            for name in sorted(set().union(*names.values())):
                f.write(SPECIAL.get(name, f"int {name}(void) {{ return {NO_DEVICE}; }}") + "\n")
        with open(script, "w", encoding="ascii") as f:
            for version in filter(None, names):
                f.write("%s { global: %s };\n" % (version, "".join(n + "; " for n in names[version])))
        versioned = [f"-Wl,--version-script,{script}"] if any(names) else []
        run(os.environ.get("CC", "gcc"), "-w", "-shared", "-fPIC", "-fno-builtin", source,
            f"-Wl,-soname,{soname}", *versioned, "-o", os.path.join(folder, soname))


def main(folder):
    paths = [os.path.join(folder, n) for n in sorted(os.listdir(folder)) if ".so" in n]
    there = {os.path.basename(p) for p in paths}
    missing, undefined, defined, owner = set(), set(), set(), {}
    for path in paths:
        missing |= {n for n in needed(path) if n not in there and CUDA.match(n)}
        undefined |= set(symbols(path, "--undefined-only"))
        defined |= {name for name, _ in symbols(path, "--defined-only")}
        owner |= versions(path)
    # Whose the unversioned ones are is written nowhere; the loader looks in every library.
    loose = {n for n, v in undefined if v is None and not n.startswith("_Z")} - defined
    for soname in missing:
        names = {v: {n for n, w in undefined if v == w} for v, s in owner.items() if s == soname}
        if soname == min(missing):
            names[None] = loose
        write_library(folder, soname, names or {None: set()})
    print(f"{len(missing)} stand-ins for CUDA libraries in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])
