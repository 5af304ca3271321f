#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# `make install` and `make install-python` below a DESTDIR: all is there, what is installed runs, the
# Python package finds the library that lies beside it, and both can be removed again.
. "$(dirname "$0")/../lib/lib.sh"

need_tool make python3 pkg-config cc nm
nm -D "$BUILD/libcairn.so" | has -E '__(asan|tsan|ubsan)_' && skip "built with sanitizers: nobody else can load it"
unset MAKEFLAGS MFLAGS MAKELEVEL CAIRN_LIBRARY PYTHONPATH PYTHONHOME
root=$TMP/root usr=$TMP/root/opt/cairn lib=$TMP/root/opt/cairn/lib py=/opt/cairn/lib/python

# -o all: what is tested is there, and is not built again with other flags
build() { make -s -C "$LIB_TOP" -o all BUILD="$BUILD" DESTDIR="$root" PREFIX=/opt/cairn PYTHONDIR="$py" "$@"; }

build install install-python >"$TMP/said" 2>&1 || die "make install: $(cat "$TMP/said")"
for f in bin/cairnfs bin/cairn include/cairn.h lib/libcairn.a lib/libcairn.so lib/pkgconfig/libcairn.pc \
	share/man/man1/cairn.1 share/man/man8/cairnfs.8 share/man/man3/libcairn.3 \
	lib/python/cairnfs/__init__.py lib/python/cairnfs/stager.py; do
	[ -s "$usr/$f" ] || die "$f is not installed"
done
[ -z "$(find "$root" -type f -perm /022)" ] || die "others may write: $(find "$root" -type f -perm /022)"

# The programs, and a program that is linked with the library, as the .pc file says.
"$usr/bin/cairn" --version >"$TMP/said" || die "cairn --version"
mkdir "$TMP/store" "$TMP/mnt"
real=$BUILD BUILD=$usr/bin
start_mount "$TMP/store" "$TMP/mnt"
BUILD=$real
cat >"$TMP/use.c" <<'EOF'
#include <cairn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	cairn_stage *stage;
	cairn_shard *shard;
	if (argc != 2 || cairn_stage_open(argv[1], NULL, &stage) ||
	    cairn_shard_create(stage, "file", 3, 0, &shard) || cairn_shard_commit(shard, 3)) {
		printf("%s\n", cairn_error());
		return 1;
	}
	return cairn_stage_close(stage);
}
EOF
flags=$(PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --cflags --libs libcairn) ||
	die "pkg-config"
# shellcheck disable=SC2086	# several flags
cc -o "$TMP/use" "$TMP/use.c" $flags || die "linked with: $flags"
(cd "$TMP/mnt" && LD_LIBRARY_PATH=$lib "$TMP/use" "$TMP/mnt") >"$TMP/said" || die "use: $(cat "$TMP/said")"
[ "$(stat -c %s "$TMP/mnt/file")" = 3 ] || die "its file"

# The package. Without torch only what needs none can be imported: tests/ecosystem/installed.py has it.
cat >"$TMP/use.py" <<'EOF'
import importlib, importlib.metadata, sys, types
top, version = sys.argv[1:]
package = types.ModuleType("cairnfs")
package.__path__ = [top + "/cairnfs"]
sys.modules["cairnfs"] = package
lib = importlib.import_module("cairnfs._lib").library()
print(lib.path)
assert lib.version == version, lib.version
assert importlib.metadata.version("cairnfs") == version
for f in importlib.metadata.files("cairnfs"):
    assert f.hash is None or f.read_binary() is not None and f.size == len(f.read_binary()), f
EOF
version=$(readlink -f "$lib/libcairn.so") version=${version##*.so.}
use() { PYTHONPATH=$usr/lib/python python3 -B "$TMP/use.py" "$usr/lib/python" "$version"; }
said=$(use) || die "the package"
[ "$said" = "$lib/libcairn.so.${version%%.*}" ] || die "it took $said"
# moved, all of it
mv "$root" "$TMP/moved"
root=$TMP/moved usr=$TMP/moved/opt/cairn lib=$TMP/moved/opt/cairn/lib
[ "$(use)" = "$lib/libcairn.so.${version%%.*}" ] || die "moved: it took $(use)"
stop_mount "$TMP/mnt"

# Over an older one, whose files go.
touch "$usr/lib/python/cairnfs/gone.py"
mkdir "$usr/lib/python/cairnfs-0.0.1.dist-info"
build install-python || die "make install-python again"
[ ! -e "$usr/lib/python/cairnfs/gone.py" ] && [ ! -e "$usr/lib/python/cairnfs-0.0.1.dist-info" ] ||
	die "an older version's files: $(ls "$usr/lib/python")"

touch "$usr/lib/python/other.py"
build uninstall uninstall-python || die "make uninstall"
[ "$(cd "$root" && find . ! -type d)" = ./opt/cairn/lib/python/other.py ] || die "left: $(find "$root" ! -type d)"

# The wheel: libcairn is in it, it is found there, and the tag says what it is linked with.
need_tool objdump strip
wheel() { make -s -C "$LIB_TOP" -o "$BUILD/libcairn.so" BUILD="$BUILD" WHEELDIR="$1" wheel; }
whl=$(wheel "$TMP/wheel") || die "make wheel"
wheel "$TMP/again" >/dev/null && cmp "$whl" "$TMP/again/${whl##*/}" || die "two wheels of one build differ"
python3 -m zipfile -l "$whl" | has dist-info/LICENSE || die "the wheel has no LICENSE"
glibc=$(objdump -T "$BUILD/libcairn.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
glibc=${glibc#GLIBC_}
case $whl in
*/cairnfs-"$version-py3-none-manylinux_${glibc/./_}_$(uname -m)".whl) ;;
*) die "$whl wants glibc $glibc" ;;
esac
if python3 -m pip --version >/dev/null 2>&1; then
	python3 -m pip -q --disable-pip-version-check install --no-index --no-deps --target "$TMP/site" "$whl" || die "pip install"
else
	python3 -m zipfile -e "$whl" "$TMP/site" || die "unzip"
fi
said=$(PYTHONPATH=$TMP/site python3 -B "$TMP/use.py" "$TMP/site" "$version") || die "the wheel's package"
[ "$said" = "$TMP/site/cairnfs/libcairn.so.${version%%.*}" ] || die "it took $said"
cc -shared -fPIC -Wl,-soname,libcairn.so.0 -o "$TMP/foreign.so" -x c /dev/null -Wl,--no-as-needed -lgcc_s || die "cc"
python3 "$LIB_TOP/tools/python/install.py" --wheel "$TMP/no" --libcairn "$TMP/foreign.so" 2>"$TMP/said" &&
	die "a wheel that needs what not every machine has"
has 'linked with libgcc_s' "$TMP/said" || die "$(cat "$TMP/said")"

# Without libcairn it says so, once; and not where that is wanted.
cat >"$TMP/none.py" <<'EOF'
import importlib, os, sys, types
package = types.ModuleType("cairnfs")
package.__path__ = [sys.argv[1]]
sys.modules["cairnfs"] = package
lib = importlib.import_module("cairnfs._lib")
lib.ctypes.util.find_library = os.path.exists = lambda path: None   # nothing is installed here
assert lib.library() is None and lib.library() is None
EOF
CAIRN_LIBRARY='' python3 -B "$TMP/none.py" "$LIB_TOP/tools/python/cairnfs" 2>"$TMP/said" || die "without, on purpose"
[ ! -s "$TMP/said" ] || die "it is wanted so: $(cat "$TMP/said")"
python3 -B "$TMP/none.py" "$LIB_TOP/tools/python/cairnfs" 2>"$TMP/said" || die "without"
[ "$(grep -c 'libcairn.so is not found' "$TMP/said")" = 1 ] || die "what is missing: $(cat "$TMP/said")"

# A type checker knows each name, or says that there is none: it sees no __getattr__.
python3 - "$LIB_TOP/tools/python/cairnfs" <<'EOF' || die "every name type-checks"
import ast, glob, sys

def seen(body):
    for x in body:
        if isinstance(x, ast.If) and isinstance(x.test, ast.Name) and x.test.id == "TYPE_CHECKING":
            yield from seen(x.body)
        else:
            yield x
            yield from seen(getattr(x, "body", []) if isinstance(x, (ast.If, ast.Try, ast.ClassDef)) else [])

for path in glob.glob(sys.argv[1] + "/*.py"):
    with open(path, encoding="utf-8") as f:
        for x in seen(ast.parse(f.read()).body):
            assert getattr(x, "name", "") not in ("__getattr__", "__getattribute__"), (path, x.lineno)
EOF
