#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# set: rest
# Hosts of a store on a network filesystem, which each reach by a client of their own: none sees another's lock, so only
# the heartbeat tells who lives. A second machine of the same name (many images are called localhost) is told so.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare bindfs

cairn=$BUILD/cairn
mkdir "$TMP/server" "$TMP/client-a" "$TMP/client-b"
for i in a b; do
	bindfs "$TMP/server" "$TMP/client-$i" || skip "bindfs does not mount here"
	LIB_DISK[client-$i]=1
	mkdir -p "$TMP/$i" "$TMP/staging-$i" "$TMP/client-$i/store"
done
flock -n "$TMP/client-a/store" flock -n "$TMP/client-b/store" true || skip "this bindfs shares locks"

# mount_as HOSTNAME MOUNT [OPTIONS]: by the client of that mount
mount_as()
{
	# shellcheck disable=SC2016
	unshare --uts sh -c 'hostname "$0" && exec "$@"' "$1" "$BUILD/cairnfs" "$TMP/client-$2/store" "$TMP/$2" -o \
		"staging=64M,pool=0,staging_dir=$TMP/staging-$2${3:+,$3}" </dev/null 2>"$TMP/err" || return
	LIB_STORE[$TMP/$2]=$TMP/client-$2/store
	LIB_KEEPER[$TMP/$2]=$(keeper_pid "$TMP/$2")
	LIB_STAGING[$(status_field "$TMP/$2" staging.dir)]=1
}
state_at() # CLIENT HOST
{
	"$cairn" hosts --json "$TMP/client-$1/store" | python3 -c 'import json, sys
for h in json.load(sys.stdin)["hosts"]:
    if h["name"] == sys.argv[1]: print(h["state"])' "$2"
}

mount_as node-a a || die "node-a: $(cat "$TMP/err")"
mount_as node-b b || die "node-b: $(cat "$TMP/err")"
says_alive() { [ -e "$TMP/server/store/.cairn/node-b/alive" ]; }
retry 20 says_alive || die "node-b does not say that it is alive"
[ "$(state_at b node-b)" = here ] || die "by its own client: $("$cairn" hosts "$TMP/client-b/store")"
[ "$(state_at a node-b)" = alive ] || die "by another client: $("$cairn" hosts "$TMP/client-a/store")"
"$cairn" hosts "$TMP/client-a/store" >"$TMP/out" || die "a live host counts as silent: $(cat "$TMP/out")"

# Its clock is of no account: only what the store says of the file, against what it says of another file of now.
kill_mount "$TMP/b"
[ "$(state_at a node-b)" = alive ] || die "nobody can know yet: $("$cairn" hosts "$TMP/client-a/store")"
touch -d '-61 sec' "$TMP/server/store/.cairn/node-b/alive"
[ "$(state_at a node-b)" = silent ] || die "after a minute: $("$cairn" hosts "$TMP/client-a/store")"
stop_mount "$TMP/a"

# Two machines with one name. The other one is node-a's kernel by another id, and is heard of again and again.
alive=$TMP/server/store/.cairn/localhost/alive
mount_as localhost a || die "localhost: $(cat "$TMP/err")"
echo first >"$TMP/a/file"
retry 20 test -e "$alive" || die "localhost does not say that it is alive"
other() { sed -i -e 's/^boot .*/boot 00000000-0000-0000-0000-000000000000/' -e 's/^instance .*/instance 0/' "$alive"; }
other
wait_durable "$TMP/a"
before=$(ls -lR "$TMP/server/store/.cairn/localhost/tmp")
mount_as localhost b && die "two machines serve the store as localhost"
has "waiting up to 25 s" "$TMP/err" || die "it does not say that it waits: $(cat "$TMP/err")"
has "another cairnfs serves the store .* host=NAME" "$TMP/err" || die "refused with: $(cat "$TMP/err")"
[ "$(ls -lR "$TMP/server/store/.cairn/localhost/tmp")" = "$before" ] || die "the refused start changed the other's files"
wait_durable "$TMP/a"
[ "$(cat "$TMP/server/store/file")" = first ] || die "the first one's file"
# The first one sees it, too: another may have taken its claim while the store did not answer it.
told() { has "another cairnfs serves this store as the host localhost" "$TMP/a/.cairn/status.json"; }
retry 40 told || die "the first one is not told: $(status_field "$TMP/a" notices)"
mount_as localhost b host=node-c || die "with host=: $(cat "$TMP/err")"
stop_mount "$TMP/b"

# One that is silent is no other machine: it was started again, or moved to another one.
kill_mount "$TMP/a"
other
touch -d '-20 sec' "$alive"
mount_as localhost a || die "after the machine was started again: $(cat "$TMP/err")"
[ "$(cat "$TMP/a/file")" = first ] || die "the next start"
stop_mount "$TMP/a"
