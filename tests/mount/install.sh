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
