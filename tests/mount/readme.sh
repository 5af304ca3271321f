#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: relay
# timeout: 180
# The README's commands, as they stand: for an ordinary user, and for root after `make install`. Only the places
# that they name are this case's own. (make check-docs types them in fresh systems, and INSTALL's as well.)
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool make python3 setpriv unshare
command -v fusermount3 >/dev/null || skip "no fusermount3 here"
[ -u "$(readlink -f "$(command -v fusermount3)")" ] || skip "fusermount3 is not setuid root"
[ ! -e "$BUILD/sanitizer" ] || skip "what is built with a sanitizer is not installed"

# /srv, /mnt and /usr/local of its own; /dev/fuse as distributions have it.
if [ -z "${CAIRN_OWN_PLACES:-}" ]; then
	mkdir "$TMP/srv" "$TMP/mnt" "$TMP/local"
	mknod -m 666 "$TMP/fuse" c 10 229 || skip "cannot make a device node"
	# shellcheck disable=SC2016	# the other shell's
	CAIRN_OWN_PLACES=1 exec unshare -m "$LIB_TOP/tests/lib/own_mounts" bash -c 'for p in srv mnt; do mount --bind "$1/$p" /$p || exit; done
		mount --bind "$1/fuse" /dev/fuse && exec bash "$0"' "$0" "$TMP"
fi
uid=65534
chmod 755 "$TMP"
setpriv --reuid $uid --clear-groups test -x "$BUILD/cairnfs" || skip "the build directory is not a user's to read"

# A tree as `make` leaves it, wherever the build is.
mkdir "$TMP/tree" && ln -s "$BUILD" "$TMP/tree/build" && ln -s "$LIB_TOP/tests" "$TMP/tree/tests"
commands() { python3 "$LIB_TOP/tests/lib/commands.py" "$@"; }
keep_staging()
{
	local id
	for id in "$TMP"/home/ckpt-store/.cairn/id "$TMP"/srv/ckpt-store/.cairn/id; do
		[ -r "$id" ] && rm -rf "/dev/shm/cairnfs-$(cat "$id")"
	done
}
on_exit keep_staging

commands user "$LIB_TOP/README.md" >"$TMP/user" || die "README.md has no commands for a user"
has 'cairnfs .*ckpt' "$TMP/user" || die "they mount nothing: $(cat "$TMP/user")"
install -d -o $uid -g $uid "$TMP/home"
(cd "$TMP/tree" && HOME=$TMP/home within 60 setpriv --reuid $uid --regid $uid --clear-groups --inh-caps=-all \
	bash -ex "$TMP/user") >"$TMP/said" 2>&1 </dev/null || die "a user's commands: $(cat "$TMP/said")"
diff -r "$LIB_TOP/tests/assets/dcp" "$TMP/home/ckpt-store/step-100" || die "what a user saved"
is_mounted "$TMP/home/ckpt" && die "the user's mount stays"

make -s -C "$LIB_TOP" -o all BUILD="$BUILD" PREFIX="$TMP/local" install >"$TMP/said" 2>&1 ||
	die "make install: $(cat "$TMP/said")"
commands root "$LIB_TOP/README.md" >"$TMP/root" || die "README.md has no commands for root"
(cd "$TMP/tree" && PATH=$TMP/local/bin:$PATH within 60 bash -ex "$TMP/root") >"$TMP/said" 2>&1 </dev/null ||
	die "root's commands: $(cat "$TMP/said")"
diff -r "$LIB_TOP/tests/assets/dcp" /srv/ckpt-store/step-100 || die "what root saved"
is_mounted /mnt/ckpt && die "root's mount stays"

# A command that fails is noticed.
echo 'false | true; build/cairn verify /nowhere' >"$TMP/bad"
(cd "$TMP/tree" && bash -ex "$TMP/bad") >/dev/null 2>&1 && die "a command that fails passes"
commands nobody "$LIB_TOP/README.md" 2>/dev/null && die "commands that no document has are found"
exit 0
