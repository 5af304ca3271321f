#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/lib/documents.py TOP - what the documents of a tree name and is not there, a line each.

Links to files of the tree; `tests/...` paths; `make` targets; and the messages of
docs/TROUBLESHOOTING.md, each of which must be in one string of a source, "…" standing for anything.
"""

import glob
import os
import re
import sys

STRING = r'"(?:[^"\\]|\\.)*"'
MESSAGE = re.compile(r"`([^`]+)`")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def strings(top):
    """Each string of the programs as it is printed; adjacent ones are one."""
    found = []
    for folder in ("fs", "staging", "io", "tools/cairn"):
        for path in glob.glob(os.path.join(top, folder, "**", "*.[ch]"), recursive=True):
            for m in re.finditer(rf"{STRING}(?:\s*{STRING})*", re.sub(r"/\*.*?\*/", " ", read(path), flags=re.DOTALL)):
                whole = "".join(part[1:-1] for part in re.findall(STRING, m[0]))
                found.append(whole.replace("\\n", "").replace('\\"', '"').replace("%%", "%"))
    return [re.sub(r"\s+", " ", s) for s in found]


def messages(text):
    """Those of a list of messages: a text in backticks with a space, where an item or its line begins."""
    for item in re.split(r"^(?=- |#|$)", text, flags=re.MULTILINE):
        if not item.startswith("- "):
            continue
        for m in MESSAGE.finditer(item):
            if "…" in m[1] or m.start() == 2:
                yield re.sub(r"\s+", " ", m[1])


def has_in_order(text, parts):
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def is_printed(message, printed):
    """The program's name may come first."""
    short = re.sub(r"^(cairnfs|cairn): ", "", message)
    parts = [part.strip(" ") for part in short.split("…")]
    return any(has_in_order(s, parts) for s in printed)


def links(top, doc, text):
    """A link of this tree that leads nowhere."""
    for m in re.finditer(r"\]\(([^)#\s]+)(#[^)]*)?\)", re.sub(r"^    .*$", "", text, flags=re.MULTILINE)):
        if "://" not in m[1] and not os.path.exists(os.path.join(os.path.dirname(doc), m[1])):
            yield f"there is no {m[1]}"
    for m in re.finditer(r"`((?:tests|tools|docs)/[\w./-]+)`", text):
        path = m[1].rstrip("/")
        if re.search(r"\b[A-Z]+\b", path) and not os.path.exists(os.path.join(top, path)):
            continue  # tests/unit/NAME.cc
        if not any(os.path.exists(os.path.join(top, path + end)) for end in ("", ".sh", ".cc")):
            yield f"there is no {m[1]}"


def targets(makefile, text):
    known = set(re.findall(r"^([\w -]+):(?!=)", makefile, re.MULTILINE))
    known = {word for line in known for word in line.split()}
    for m in re.finditer(r"`make ([a-z][a-z-]+)[^`]*`", re.sub(r"\s+", " ", text)):
        if m[1] not in known:
            yield f"there is no target: make {m[1]}"


def main():
    top = sys.argv[1]
    printed, makefile = strings(top), read(os.path.join(top, "Makefile"))
    docs = sorted(glob.glob(os.path.join(top, "*.md")) + glob.glob(os.path.join(top, "docs", "**", "*.md"), recursive=True))
    wrong = []
    for doc in docs:
        text = read(doc)
        found = list(links(top, doc, text)) + list(targets(makefile, text))
        if os.path.basename(doc) == "TROUBLESHOOTING.md":
            found += [f"nothing prints: {m}" for m in messages(text) if not is_printed(m, printed)]
        wrong += [f"{os.path.relpath(doc, top)}: {what}" for what in found]
    print("".join(f"{w}\n" for w in wrong), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
