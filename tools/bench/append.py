#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""append.py FILE [--make]: what an appender to a large file waits for.

--make writes 1 GiB. Otherwise it opens FILE, appends 100 bytes and closes it, a hundred times, and prints
how long each took, as METRIC<tab>UNIT<tab>VALUE.
"""

import os
import sys
import time

path = sys.argv[1]
if "--make" in sys.argv:
    block = os.urandom(8 << 20)
    with open(path, "wb") as f:
        for n in range(128):
            f.write(block[n:] + block[:n])
    sys.exit()
for _ in range(100):
    start = time.monotonic()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"x" * 100)
    os.close(fd)
    print("wait", "ms", f"{(time.monotonic() - start) * 1e3:.6g}", sep="\t", flush=True)
