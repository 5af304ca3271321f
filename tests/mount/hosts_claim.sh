#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 400
# set: rest
# waits: yes
# One cairnfs serves a store as a host, also where the lock tells nothing: a client of a network filesystem (here bindfs)
# has locks of its own. A start by another client is refused while the first one lives, and changes nothing; of many that
# start at once one gets in. A killed one is in nobody's way.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool bindfs flock

n=6 server=$TMP/server
mkdir -p "$server"
for ((i = 0; i < n; i++)); do
	mkdir -p "$TMP/client-$i" "$TMP/m-$i" "$TMP/staging-$i"
	bindfs "$server" "$TMP/client-$i" || skip "bindfs does not mount here"
	LIB_DISK[client-$i]=1
done
flock -n "$TMP/client-0" flock -n "$TMP/client-1" true || skip "this bindfs shares locks"

# mount_by NUMBER STORE: each has the staging of a machine of its own
mount_by()
{
	"$BUILD/cairnfs" "$2" "$TMP/m-$1" -o "host=one,staging=64M,pool=0,staging_dir=$TMP/staging-$1" </dev/null 2>"$TMP/err-$1"
}
mounted() # NUMBER STORE
{
	LIB_STORE[$TMP/m-$1]=$2
	LIB_KEEPER[$TMP/m-$1]=$(keeper_pid "$TMP/m-$1") || die "m-$1 does not answer"
	LIB_STAGING[$(status_field "$TMP/m-$1" staging.dir)]=1
}
start_by() { mount_by "$@" || die "m-$1: $(cat "$TMP/err-$1")"; mounted "$@"; }
refused() # NUMBER
{
	has "another cairnfs serves the store .* -o host=NAME" "$TMP/err-$1" || die "m-$1 is refused with: $(cat "$TMP/err-$1")"
}
refuse() # NUMBER STORE
{
	mount_by "$@" && mounted "$@" && die "two serve it as one host, now $2, too"
	refused "$1"
}
# What may only be added to while it lives. The question for its heartbeat is the only file that goes.
ours() { (cd "$server/$1/.cairn/one" && find . -name asks -o -printf '%p %y %i\n' | sort && cat lock); }

# first_lives STORE FIRST SECOND: by which clients. The first one has unpublished bytes in the store: more than staging.
first_lives()
{
	local s=$1 before
	mkdir "$server/$s"
	start_by 0 "$2/$s"
	exec 5>"$TMP/m-0/open"
	head -c 100M /dev/urandom >"$TMP/data"
	cat "$TMP/data" >&5
	before=$(ours "$s")
	[[ $before = *./tmp/????????????????' f '* ]] || die "$s: no bytes are unpublished: $before"
	refuse 1 "$3/$s"
	[ -z "$(grep -vxF "$(ours "$s")" <<<"$before")" ] || die "$s: the refused start changed: $(diff <(echo "$before") <(ours "$s"))"
	exec 5>&-
	wait_durable "$TMP/m-0"
	cmp "$TMP/data" "$server/$s/open" || die "$s: bytes of the first one"
	stop_mount "$TMP/m-0"
	start_by 1 "$3/$s"
	stop_mount "$TMP/m-1"
}
first_lives direct "$server" "$TMP/client-1"
# Alone on a local disk it sets no times: by another client nobody can know that it is gone.
start_by 0 "$server/direct"
touch -d '-90 sec' "$server/direct/.cairn/one/alive"
: >"$server/direct/.cairn/one/tmp/0123456789abcdef"
"$BUILD/cairn" hosts "$TMP/client-1/direct" >"$TMP/out" || die "a live host counts as silent: $(cat "$TMP/out")"
has "^one .* unknown: it reaches the store on a disk" "$TMP/out" || die "by another client: $(cat "$TMP/out")"
"$BUILD/cairn" hosts discard --force "$TMP/client-1/direct" one >"$TMP/out" 2>&1 && die "discard of a live host's bytes: $(cat "$TMP/out")"
[ -e "$server/direct/.cairn/one/tmp/0123456789abcdef" ] || die "removed: $(cat "$TMP/out")"
"$BUILD/cairn" hosts "$server/direct" | has "^one .* served by this machine" || die "by its own client"
stop_mount "$TMP/m-0"
first_lives reverse "$TMP/client-0" "$server"
first_lives clients "$TMP/client-0" "$TMP/client-1"

# race STORE: all at once. winner: the one that got in.
race()
{
	local i pids=()
	for ((i = 0; i < n; i++)); do
		mount_by $i "$TMP/client-$i/$1" &
		pids+=($!)
	done
	winner=
	for ((i = 0; i < n; i++)); do
		wait "${pids[i]}" || continue
		mounted $i "$TMP/client-$i/$1"
		winner="$winner $i"
	done
	winner=${winner# }
	[[ $winner != *\ * ]] || die "$1: these serve it as one host: $winner"
	[ -n "$winner" ] || die "$1: none got in: $(cat "$TMP"/err-?)"
	for ((i = 0; i < n; i++)); do
		[ $i = "$winner" ] || refused $i
	done
}
mkdir "$server/race"
race race
echo first >"$TMP/m-$winner/file"
wait_durable "$TMP/m-$winner"
# The claim of a dead one, of which nothing was heard for long, and one that was killed while it took that.
kill_mount "$TMP/m-$winner"
host=$server/race/.cairn/one
sed 's/^instance .*/instance 00000000000000aa/' "$host/alive" >"$host/after.$(sed -n 's/^instance //p' "$host/alive")"
touch -d '-90 sec' "$host"/{alive,after.*}
race race
[ "$(cat "$TMP/m-$winner/file")" = first ] || die "what the killed one made durable"
[ -z "$(find "$host" -name 'claim.*' -o -name asks)" ] || die "left: $(ls "$host")"

# By the same client the lock tells that it is dead: the next start does not wait.
kill_mount "$TMP/m-$winner"
start_by "$winner" "$TMP/client-$winner/race"
! has -v "ends with this\|no fallocate" "$TMP/err-$winner" || die "the next start: $(cat "$TMP/err-$winner")"
# By another one it waits until the heartbeat was still for long.
kill_mount "$TMP/m-$winner"
other=$(((winner + 1) % n))
start_by $other "$TMP/client-$other/race"
has "waiting up to" "$TMP/err-$other" || die "it does not say that it waits: $(cat "$TMP/err-$other")"
stop_mount "$TMP/m-$other"
