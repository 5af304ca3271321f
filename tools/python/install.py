#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""install.py [--root DESTDIR] [--libcairn FILE] DIR | --remove [--root DESTDIR] DIR

Copies the package into DIR, where a Python looks for packages, with what pip wants to know of it
(so pip lists it and can remove it), and removes it again. No network, no build tools.
FILE is where libcairn.so is or will be; the package finds it by its place beside DIR, so it does
below a DESTDIR too, and wherever the whole is moved.
"""

import argparse
import base64
import hashlib
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "cairnfs"


def setting(key):
    """Of pyproject.toml, read without a parser of TOML: before 3.11 there is none."""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as f:
        found = re.search(rf'^{key} = "(.*)"$', f.read(), re.MULTILINE)
    assert found, key
    return found[1]


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o644)


def line(top, path):
    """A line of RECORD."""
    with open(path, "rb") as f:
        data = f.read()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{os.path.relpath(path, top)},sha256={digest},{len(data)}\n"


def install(top, directory, libcairn):
    package, info = os.path.join(top, NAME), os.path.join(top, f"{NAME}-{setting('version')}.dist-info")
    for folder in (package, info):
        os.makedirs(folder, mode=0o755, exist_ok=True)
    files = []
    source = os.path.join(HERE, NAME)
    for name in sorted(os.listdir(source)):
        if name.endswith(".py") or name == "py.typed":
            files.append(os.path.join(package, name))
            shutil.copyfile(os.path.join(source, name), files[-1])
            os.chmod(files[-1], 0o644)
    if libcairn:
        files.append(os.path.join(package, "libcairn.path"))
        write(files[-1], os.path.relpath(libcairn, os.path.join(directory, NAME)) + "\n")
    files.append(os.path.join(info, "METADATA"))
    write(files[-1], f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {setting('version')}\n"
                     f"Summary: {setting('description')}\nLicense: MIT\n"
                     f"Requires-Python: {setting('requires-python')}\n")
    files.append(os.path.join(info, "INSTALLER"))
    write(files[-1], "make\n")
    record = os.path.join(info, "RECORD")
    write(record, "".join(line(top, f) for f in files) + os.path.relpath(record, top) + ",,\n")


def remove(top):
    for name in os.listdir(top) if os.path.isdir(top) else []:
        if re.fullmatch(rf"{NAME}-[^-]+\.dist-info", name):
            shutil.rmtree(os.path.join(top, name))
    if os.path.isdir(os.path.join(top, NAME)):
        shutil.rmtree(os.path.join(top, NAME))


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--root", default="")
    p.add_argument("--libcairn")
    p.add_argument("--remove", action="store_true")
    p.add_argument("directory")
    args = p.parse_args()
    if not os.path.isabs(args.directory):
        sys.exit(f"install.py: {args.directory or 'the directory'} is no absolute path")
    top = args.root + args.directory
    remove(top)     # also an older version's files
    if not args.remove:
        install(top, args.directory, args.libcairn)


if __name__ == "__main__":
    main()
