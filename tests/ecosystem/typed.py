# SPDX-License-Identifier: MIT
# needs: torch types
# modes: fast
# timeout: 300
"""docs/examples and the package's types by mypy and pyright, strict; the wheel by auditwheel."""

import glob
import json
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(TOP, "tools/python")
EXAMPLES = os.path.join(TOP, "docs/examples")
TMP = os.environ["TMPDIR"]
BUILD = os.path.dirname(os.environ["CAIRN"])
BIN = os.path.dirname(sys.executable)
# A call of it with arguments that it does not take must be found: else nothing is checked.
WRONG = "import cairnfs\n\ncairnfs.save({}, 7)\n"


def mypy(path):
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", f"{TMP}/mypy", path],
                          env={**os.environ, "MYPYPATH": PACKAGE}, cwd=TMP,
                          capture_output=True, text=True, check=False)


def pyright(path):
    config = f"{TMP}/pyrightconfig.json"
    with open(config, "w", encoding="utf-8") as f:
        # PyTorch's own annotations leave much unknown; that is not the examples' fault.
        json.dump({"include": [path], "extraPaths": [PACKAGE], "typeCheckingMode": "strict",
                   "reportUnknownMemberType": "none",
                   "reportUnknownVariableType": "none", "reportUnknownArgumentType": "none",
                   "reportMissingTypeStubs": "none"}, f)
    return subprocess.run([f"{BIN}/basedpyright", "-p", config, "--pythonpath", sys.executable], cwd=TMP,
                          capture_output=True, text=True, check=False)


def save(_):
    wrong = os.path.join(TMP, "wrong.py")
    with open(wrong, "w", encoding="utf-8") as f:
        f.write(WRONG)
    for checker in (mypy, pyright):
        found = checker(EXAMPLES)
        assert found.returncode == 0, f"{checker.__name__}: {found.stdout}{found.stderr}"
        found = checker(wrong)
        assert found.returncode == 1 and "wrong.py:3" in found.stdout, \
            f"{checker.__name__} finds nothing: {found.stdout}{found.stderr}"

    env = {n: v for n, v in os.environ.items() if n not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    subprocess.run(["make", "-s", "-C", TOP, "-o", "all", f"BUILD={BUILD}", f"WHEELDIR={TMP}",
                    f"PYTHON={sys.executable}", "wheel"], check=True, env=env)
    wheel, = glob.glob(f"{TMP}/cairnfs-*.whl")
    tag, = re.findall(r"-([^-]*)\.whl$", wheel)
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel],
                           capture_output=True, text=True, check=True).stdout
    # its own tag, or one for older systems
    assert tag.startswith("manylinux_") and tag in re.sub(r"\s+", " ", shown), f"{tag}: {shown}"


def check(_):
    """Nothing of it is in the mount."""


if __name__ == "__main__":
    import eco
    eco.main(save, check)
