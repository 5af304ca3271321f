#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: relay
# timeout: 120
#
# A user without privileges, through fusermount3: the relay lane.
. "$(dirname "$0")/../lib/lib.sh"

command -v fusermount3 >/dev/null || skip "no fusermount3 here"
[ -u "$(readlink -f "$(command -v fusermount3)")" ] || skip "fusermount3 is not setuid root"
need_root
need_tool setpriv unshare
uid=65534
# Where only root may open /dev/fuse, a namespace gets one that is everybody's, as distributions have it.
if [ "$(stat -c %a /dev/fuse)" != 666 ] && [ -z "${CAIRN_OWN_FUSE:-}" ]; then
	mknod -m 666 "$TMP/fuse" c 10 229 || skip "cannot make a device node"
	CAIRN_OWN_FUSE=1 exec unshare -m "$LIB_TOP/tests/lib/own_mounts" bash -c 'mount --bind "$1/fuse" /dev/fuse && exec bash "$0"' "$0" "$TMP"
fi
chmod 755 "$TMP"
for dir in store mnt; do
	install -d -o $uid -g $uid "$TMP/$dir"
done
staging=$(mktemp -d /dev/shm/cairn-unprivileged.XXXXXX) || skip "no /dev/shm"
chown $uid "$staging"
pid=
clean_up()
{
	umount -l "$TMP/mnt" 2>/dev/null
	[ -z "$pid" ] || retry 20 lib_pid_gone "$pid" || kill -KILL "$pid"
	rm -rf "$staging"
}
on_exit clean_up
store=$TMP/store mnt=$TMP/mnt
as_user() { setpriv --reuid $uid --regid $uid --clear-groups --inh-caps=-all "$@"; }
as_user test -w /dev/fuse || skip "/dev/fuse is not the user's to open"
as_user test -x "$BUILD/cairnfs" || skip "the build directory is not the user's to read"

# Whoever has no name.
nameless=54321
if ! getent passwd $nameless >/dev/null; then
	install -d -o $nameless "$TMP/his" "$TMP/his/store" "$TMP/his/mnt"
	setpriv --reuid $nameless --regid $nameless --clear-groups --inh-caps=-all "$BUILD/cairnfs" \
		"$TMP/his/store" "$TMP/his/mnt" -o staging=64M,pool=0 >"$TMP/said" 2>&1 </dev/null &&
		die "mounted for a user without a name"
	[ "$(wc -l <"$TMP/said")" = 1 ] && grep -q "user id $nameless has no name" "$TMP/said" ||
		die "a user without a name: $(cat "$TMP/said")"
	[ -z "$(ls -A "$TMP/his/store")" ] || die "a start that failed leaves $(ls -A "$TMP/his/store")"
fi

as_user "$BUILD/cairnfs" "$store" "$mnt" -o "staging=64M,pool=0,staging_dir=$staging" \
	>"$TMP/said" 2>&1 </dev/null || die "exit code $?: $(cat "$TMP/said")"
pid=$(as_user cat "$mnt/.cairn/status.json" | python3 -c 'import json, sys
s = json.load(sys.stdin); print(s["keeper_pid"]); assert not s["passthrough"]') ||
	die "passthrough is said to work"
as_user mkdir "$mnt/t"
for table in names data map meta; do
	as_user mkdir "$mnt/$table"
	as_user "$BUILD/tests/mount/calls_$table" "$mnt/$table" --mnt "$mnt" --store "$store" ||
		die "calls_$table"
done
# modes that deny the user himself (mount/unwritable): what the mount allows reaches the store
as_user bash -ec 'cd "$1"; mkdir d; mkdir -m 555 ro; echo 1 >d/f; exec 3>d/g; chmod 555 d; echo 2 >>d/f; echo 3 >&3
	exec 3>&-; ! true >d/new' - "$mnt" 2>/dev/null || die "a directory of mode 0555"
as_user timeout $((20 * CAIRN_TEST_SLOW)) "$BUILD/cairn" wait -q "$mnt" || die "it is not durable"
[ "$(cat "$store/d/f" "$store/d/g")" = $'1\n2\n3' ] || die "d in the store"
as_user chmod 0 "$mnt/d" && as_user timeout $((20 * CAIRN_TEST_SLOW)) "$BUILD/cairn" wait -q "$mnt" || die "mode 0"
as_user ls "$mnt/d" 2>/dev/null && die "a directory of mode 0 is listed"
as_user bash -ec 'chmod 755 "$1"; ls "$1"' - "$mnt/d" >/dev/null || die "d is not listed with its new mode"
# who parses needs no privilege to have none
cp -r "$LIB_TOP/tests/assets/dcp" "$TMP/dcp" && chmod -R a+rX "$TMP/dcp"
as_user cp -r "$TMP/dcp" "$mnt/dcp"
"$BUILD/cairn" export -q "$TMP/dcp" "$TMP/model" 2>/dev/null
as_user cat "$mnt/.cairn/views/dcp/model.safetensors" | cmp - "$TMP/model" || die "its view"
umount_as_user()
{
	as_user fusermount3 -u "$mnt" || die "fusermount3 -u"
	retry 60 lib_pid_gone "$pid" || die "the daemon stays"
}
umount_as_user

# What only a tier has is read, and is the user's then.
install -d -o $uid -g $uid "$TMP/src" "$TMP/src/run" "$TMP/tier"
as_user cp -r "$TMP/dcp" "$TMP/src/run/step-1"
as_user "$BUILD/cairn" tier push -q "$TMP/src" "$TMP/tier" >/dev/null || die "push"
as_user "$BUILD/cairnfs" "$store" "$mnt" -o "staging=64M,pool=0,staging_dir=$staging,tier=$TMP/tier" \
	>"$TMP/said" 2>&1 </dev/null || die "exit code $?: $(cat "$TMP/said")"
pid=$(as_user cat "$mnt/.cairn/status.json" | python3 -c 'import json, sys; print(json.load(sys.stdin)["keeper_pid"])')
as_user "$BUILD/cairn" fetch -q "$mnt/run" >/dev/null || die "fetch"
as_user diff -r "$mnt/run/step-1" "$TMP/dcp" || die "what was fetched"
umount_as_user
