#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/lib/commands.py KIND FILE... - the commands that documents give, as they stand.

Prints the lines of each block of ```sh that follows a line `<!-- run: KIND -->`. Fails if there is none.
"""

import re
import sys


def main():
    kind, files = sys.argv[1], sys.argv[2:]
    found = []
    for path in files:
        with open(path, encoding="utf-8") as f:
            found += re.findall(rf"^<!-- run: {kind} -->\n```sh\n(.*?)^```$", f.read(), re.DOTALL | re.MULTILINE)
    if not found:
        sys.exit(f"commands: no block `run: {kind}` in {' '.join(files)}")
    print("".join(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
