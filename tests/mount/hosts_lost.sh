#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 240
# set: rest
# waits: yes
# A cairnfs that the store did not answer for long loses its claim to another one of the same name (two machines, here two
# clients of bindfs). It publishes nothing more, says who has it, takes nothing that it could not store, and keeps what it
# has, as the other leaves alone what is not its own. When that one has ended, it goes on by itself.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool bindfs flock

server=$TMP/server s=$TMP/server/store a=$TMP/m-a b=$TMP/m-b cairn=$BUILD/cairn assets=$LIB_TOP/tests/assets/dcp
relay=; [ "$MODE" != relay ] || relay=,nopassthrough
mkdir -p "$s"
for i in a b; do
	mkdir -p "$TMP/client-$i" "$TMP/m-$i" "$TMP/staging-$i"
	bindfs "$server" "$TMP/client-$i" || skip "bindfs does not mount here"
	LIB_DISK[client-$i]=1
done
flock -n "$TMP/client-a" flock -n "$TMP/client-b" true || skip "this bindfs shares locks"

mount_by() # a or b, its client
{
	"$BUILD/cairnfs" "$2/store" "$TMP/m-$1" -o "host=one,staging=64M,pool=0,staging_dir=$TMP/staging-$1$relay" </dev/null 2>"$TMP/err-$1"
}
start_by()
{
	mount_by "$@" || die "m-$1: $(cat "$TMP/err-$1")"
	mounted "$@"
}
mounted()
{
	LIB_STORE[$TMP/m-$1]=$2/store
	LIB_KEEPER[$TMP/m-$1]=$(keeper_pid "$TMP/m-$1") || die "m-$1 does not answer"
	LIB_STAGING[$(status_field "$TMP/m-$1" staging.dir)]=1
}
notices() { status_field "$a" notices | tr ',' '\n' | grep -c "another cairnfs serves this store as the host one"; }
lost() { [ "$(status_field "$a" store_gone)" != null ]; }
kept() { [ "$(status_field "$a" store_gone)" = null ]; }

# The first one was not heard, though it was asked; unless it says that it is alive just now.
take_over()
{
	touch -d "-90 sec" "$s/.cairn/one"/{alive,asks}
	mount_by b "$TMP/client-b"
}

# lose CLIENT: the first one reaches the store by it. It has a .metadata that waits for another host's shards, a file behind
# that, and an open file. What no log of the other one knows may be the only copy of what outgrew memory.
lose()
{
	mkdir -p "$s/.cairn/other" && : >"$s/.cairn/other/lock"
	start_by a "$1"
	echo durable >"$a/durable"
	wait_durable "$a/durable"
	exec 5>"$a/open"
	head -c 1M /dev/urandom >"$TMP/open"
	cat "$TMP/open" >&5
	mkdir "$a/step"
	cp "$assets/.metadata" "$a/step"
	echo accepted >"$a/step/after"

	[ "$(status_field "$a" log.pending)" -gt 0 ] || die "nothing waits: this shows nothing"
	echo only >"$s/.cairn/one/tmp/0123456789abcdef"
	retry 100 take_over || die "m-b: $(cat "$TMP/err-b")"
	mounted b "$TMP/client-b"
	retry 20 lost || die "it does not see that another serves the store: $(cat "$a/.cairn/status")"
	cp "$assets"/*.distcp "$s/step" # what it waited for
	has "CLAIM LOST .*pid $(keeper_pid "$b")" "$a/.cairn/status" || die "status: $(cat "$a/.cairn/status")"
	COLUMNS=999 "$cairn" status "$a" | has "CLAIM LOST" || die "cairn status: $("$cairn" status "$a")"
	[ "$(notices)" = 1 ] || die "told $(notices) times: $(status_field "$a" notices)"
	[ "$(cat "$a/step/after")" = accepted ] || die "what it accepted cannot be read"
	{ echo more >"$a/more"; } 2>/dev/null && die "it takes what it may never store"
	"$cairn" wait -q "$a" && die "it says that all is durable"
	echo other >"$b/other"
	wait_durable "$b/other"
	# b's client has locks of its own: its claim tells that it lives
	"$cairn" rm --keep-last 1 "$s/step" >"$TMP/out" 2>&1 && die "the store is changed beside a mount: $(cat "$TMP/out")"
	has "a cairnfs serves this store: use the path on its mount (host one, on $(uname -n)" "$TMP/out" || die "rm: $(cat "$TMP/out")"
	sleep 5 # it looks each second whether it may go on
	[ ! -e "$s/step/after" ] && [ ! -e "$s/step/.metadata" ] || die "two publish as one host: $(ls "$s")"
	[ "$(notices)" = 1 ] || die "told again: $(status_field "$a" notices)"
	[ "$(status_field "$a" restarts)" -lt 4 ] || die "it starts worker after worker: $(status_field "$a" restarts)"

	stop_mount "$b"
	[ -n "$(find "$s/.cairn/one" -name 0123456789abcdef -size +0)" ] || die "the other one removed what may be the only copy"
	retry 20 kept || die "it does not go on: $(cat "$a/.cairn/status")"
	exec 5>&-
	"$cairn" wait -q "$a" || die "cairn wait: $(cat "$a/.cairn/status")"
	[ "$(cat "$s/step/after" "$s/other" "$s/durable" | tr '\n' ' ')" = "accepted other durable " ] || die "the store: $(ls -l "$s")"
	cmp "$assets/.metadata" "$s/step/.metadata" || die "the .metadata"
	cmp "$TMP/open" "$s/open" || die "the open file"
	[ -z "$(ls "$s/.cairn/lost+found")" ] || die "lost+found: $(ls "$s/.cairn/lost+found")"
	stop_mount "$a"
	rm -rf "$s" && mkdir "$s"
}
lose "$TMP/client-a"
lose "$server" # alone on a local disk, where it says that it is alive only when it is asked
