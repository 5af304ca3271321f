#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# set: rest
# timeout: 600
# `make deb`: the packages are built, lintian finds nothing in them, dpkg installs them into a root of their own, and
# what is installed runs: the programs, a mount, a program that is linked with the library.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool dpkg-buildpackage dh dpkg lintian pkg-config cc
nm -D "$BUILD/libcairn.so" | has -E '__(asan|tsan|ubsan)_' && skip "built with sanitizers: the packages are others"
unset MAKEFLAGS MFLAGS MAKELEVEL
export SOURCE_DATE_EPOCH=1700000000

make -s -C "$LIB_TOP" DEBDIR="$TMP/deb" deb >"$TMP/said" 2>&1 || die "make deb: $(cat "$TMP/said")"
grep -v -e '^  /' -e '^setup: ' "$TMP/said" && die "lintian found something"
[ "$(cd "$TMP/deb" && printf '%s\n' *.deb | sed 's/_.*//' | grep -v dbgsym | paste -sd' ')" = \
	"cairnfs libcairn-dev libcairn0" ] || die "the packages: $(ls "$TMP/deb")"

# It can find something.
mkdir "$TMP/bad"
dpkg-deb -R "$TMP"/deb/cairnfs_*.deb "$TMP/bad/root"
rm "$TMP/bad/root/usr/share/doc/cairnfs/copyright"
dpkg-deb -b --root-owner-group "$TMP/bad/root" "$TMP/bad/bad.deb" >/dev/null || die "dpkg-deb"
lintian --allow-root "$TMP/bad/bad.deb" >"$TMP/said" 2>&1
has no-copyright-file "$TMP/said" || die "lintian takes a package without a license"

# Installed. Nothing runs at the installation, so a root without anything else does.
root=$TMP/root
mkdir -p "$root/var/lib/dpkg"
: >"$root/var/lib/dpkg/status"
dpkg --root="$root" --force-depends -i "$TMP"/deb/cairnfs_*.deb "$TMP"/deb/libcairn*.deb >"$TMP/said" 2>&1 ||
	die "dpkg -i: $(cat "$TMP/said")"
scripts=$(find "$root/var/lib/dpkg/info" -name '*.postinst' -o -name '*.prerm' -o -name '*.postrm')
[ -z "$scripts" ] || die "scripts of maintainers: $scripts"
for f in share/man/man1/cairn.1.gz share/man/man8/cairnfs.8.gz share/man/man3/libcairn.3.gz include/cairn.h \
	share/bash-completion/completions/cairn share/doc/cairnfs/copyright share/doc/cairnfs/changelog.gz \
	share/doc/cairnfs/examples/deploy/README.md; do
	[ -s "$root/usr/$f" ] || die "$f is not installed"
done
unit=$(find "$root" -path '*/systemd/system/cairnfs@.service')
[ -s "$unit" ] || die "no unit"
has /usr/local "$unit" && die "the unit calls what make install installs"
grep -o '/usr/bin/[a-z]*' "$unit" >"$TMP/programs" || die "the unit calls nothing"
while read -r program; do
	[ -x "$root$program" ] || die "the unit calls $program"
done <"$TMP/programs"
[ "$("$root/usr/bin/cairn" --version)" = "$("$BUILD/cairn" --version)" ] || die "cairn --version"
"$root/usr/bin/cairnfs" --help | has 'usage: cairnfs' || die "cairnfs --help"

# What it is linked with is what the package depends on, and it mounts.
for lib in $(objdump -p "$root/usr/bin/cairnfs" | awk '$1 == "NEEDED" { print $2 }'); do
	file=$(ldconfig -p | awk -v lib="$lib" '$1 == lib { print $NF; exit }')
	package=$(dpkg -S "$(readlink -f "$file")" "$file" 2>/dev/null | sed -n '1s/:.*//p')
	[ -n "$package" ] || { note "$file is of no package"; continue; }
	dpkg -f "$TMP"/deb/cairnfs_*.deb Depends | has "$package" ||
		die "$lib is of $package, on which cairnfs does not depend"
done
real=$BUILD BUILD=$root/usr/bin
start_mount "$TMP/store" "$TMP/mnt"
echo text >"$TMP/mnt/f"
stop_mount "$TMP/mnt"
BUILD=$real
[ "$(cat "$TMP/store/f")" = text ] || die "what was written"

# libcairn.
libs=$(echo "$root"/usr/lib/*/pkgconfig) libs=${libs%/*}
cat >"$TMP/use.c" <<'END'
#include <cairn.h>
#include <stdio.h>
int main(void)
{
	return puts(cairn_version()) < 0;
}
END
flags=$(PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$libs/pkgconfig PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 \
	PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 pkg-config --cflags --libs libcairn) || die "pkg-config"
# shellcheck disable=SC2086	# several flags
cc -o "$TMP/use" "$TMP/use.c" $flags || die "linked with: $flags"
[ "cairn $(LD_LIBRARY_PATH=$libs "$TMP/use")" = "$("$BUILD/cairn" --version)" ] || die "libcairn's version"
# A name that is exported has a line in the symbols file, and the other way round.
diff <(nm -D --defined-only "$libs/libcairn.so.0" | awk '{ print $3 }' | sort) \
	<(sed -n 's/^ \([^@]*\)@.*/\1/p' "$LIB_TOP/tools/debian/libcairn0.symbols" | sort) || die "the symbols file"
exit 0
