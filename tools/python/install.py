#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""install.py [--root DESTDIR] [--libcairn FILE] DIR | --remove [--root DESTDIR] DIR |
       --wheel OUT --libcairn FILE

Copies the package into DIR, a directory in which a Python finds packages, with the metadata for pip
(so that pip lists it and can remove it), and removes it again. No network, no build tools.
FILE is where libcairn.so is or will be; the package finds it relative to DIR, so this also works
below a DESTDIR, and after the whole tree is moved.

--wheel makes a wheel in the directory OUT, with FILE in it, for the machines that FILE runs on: its
platform is derived from the libraries it is linked with. It needs binutils.
"""

import argparse
import base64
import hashlib
import os
import re
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "cairnfs"


def setting(key):
    """Of pyproject.toml, read without a parser of TOML: before 3.11 there is none."""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as f:
        found = re.search(rf'^{key} = "(.*)"$', f.read(), re.MULTILINE)
    assert found, key
    return found[1]


# --- what is installed: {path: bytes} ---------------------------------------------------------


def package():
    source, files = os.path.join(HERE, NAME), {}
    for name in sorted(os.listdir(source)):
        if name.endswith(".py") or name == "py.typed":
            with open(os.path.join(source, name), "rb") as f:
                files[f"{NAME}/{name}"] = f.read()
    return files


def classifiers():
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as f:
        return re.findall(r'^    "(.+ :: .+)",$', f.read(), re.MULTILINE)


def description():
    """README.md without its links: they are relative, and a package's page has no such files."""
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        return re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", f.read())


def add_info(files, **more):
    """METADATA, other files of .dist-info, and RECORD of all."""
    info = f"{NAME}-{setting('version')}.dist-info"
    more["METADATA"] = (f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {setting('version')}\n"
                        f"Summary: {setting('description')}\nLicense: MIT\nLicense-File: LICENSE\n"
                        + "".join(f"Classifier: {c}\n" for c in classifiers()) +
                        f"Requires-Python: {setting('requires-python')}\n"
                        f"Description-Content-Type: text/markdown\n\n{description()}")
    with open(os.path.join(HERE, "..", "..", "LICENSE"), encoding="utf-8") as f:
        more["LICENSE"] = f.read()
    for name, text in more.items():
        files[f"{info}/{name}"] = text.encode()
    record = f"{info}/RECORD"
    files[record] = "".join([*(line(p, data) for p, data in files.items()), f"{record},,\n"]).encode()


def line(path, data):
    """A line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(data)}\n"


# --- in place ----------------------------------------------------------------------------------


def install(top, directory, libcairn):
    files = package()
    if libcairn:
        there = os.path.relpath(libcairn, os.path.join(directory, NAME))
        files[f"{NAME}/libcairn.path"] = f"{there}\n".encode()
    add_info(files, INSTALLER="make\n")
    for name, data in files.items():
        path = os.path.join(top, name)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        os.chmod(path, 0o644)


def remove(top):
    for name in os.listdir(top) if os.path.isdir(top) else []:
        if re.fullmatch(rf"{NAME}-[^-]+\.dist-info", name):
            shutil.rmtree(os.path.join(top, name))
    if os.path.isdir(os.path.join(top, NAME)):
        shutil.rmtree(os.path.join(top, NAME))


# --- a wheel -----------------------------------------------------------------------------------

# What manylinux lets a wheel expect of every Linux with glibc (PEP 600), of what C needs.
EVERYWHERE = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux.*)\.so\.\d+")


def linkage(libcairn):
    """Its soname, and its platform's tag: the newest version of glibc that one of its symbols needs."""
    said = subprocess.run(["objdump", "-p", libcairn], check=True, stdout=subprocess.PIPE, text=True).stdout
    foreign = [n for n in re.findall(r"^ *NEEDED +(\S+)", said, re.MULTILINE) if not EVERYWHERE.fullmatch(n)]
    glibc = [(int(a), int(b)) for a, b in re.findall(r"\bGLIBC_(\d+)\.(\d+)", said)]
    soname = re.search(r"^ *SONAME +(\S+)", said, re.MULTILINE)
    if foreign:
        sys.exit(f"install.py: {libcairn} is linked with {', '.join(foreign)}, which not every machine has")
    if not glibc or not soname:
        sys.exit(f"install.py: {libcairn} is no shared library of glibc's; use make install-python")
    return soname[1], "manylinux_%d_%d_%s" % (*max(glibc), platform.machine())


def wheel(out, libcairn):
    soname, machines = linkage(libcairn)
    files = package()
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["strip", "--strip-unneeded", "-o", f"{d}/lib", libcairn], check=True)
        with open(f"{d}/lib", "rb") as f:
            files[f"{NAME}/{soname}"] = f.read()
    files[f"{NAME}/libcairn.path"] = f"{soname}\n".encode()
    add_info(files, WHEEL=f"Wheel-Version: 1.0\nGenerator: install.py\nRoot-Is-Purelib: false\n"
                          f"Tag: py3-none-{machines}\n")
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"{NAME}-{setting('version')}-py3-none-{machines}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)       # of no date: the same bytes each time
            entry.external_attr = (0o100755 if name.endswith(soname) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    print(path)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--root", default="")
    p.add_argument("--libcairn")
    p.add_argument("--remove", action="store_true")
    p.add_argument("--wheel", metavar="OUT")
    p.add_argument("directory", nargs="?", default="")
    args = p.parse_args()
    if args.wheel:
        if not args.libcairn:
            sys.exit("install.py: --wheel needs --libcairn")
        wheel(args.wheel, args.libcairn)
        return
    if not os.path.isabs(args.directory):
        sys.exit(f"install.py: {args.directory or 'the directory'} is not an absolute path")
    top = args.root + args.directory
    remove(top)     # also an older version's files
    if not args.remove:
        install(top, args.directory, args.libcairn)


if __name__ == "__main__":
    main()
