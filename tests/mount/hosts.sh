#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 240
# set: rest
# waits: yes
# The hosts of a store: each says that it is alive, cairn hosts lists them and what they left, and
# the others tell of one that was killed. A clean end is none. Times are the store's.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare setfattr

s=$TMP/store a=$TMP/a cairn=$BUILD/cairn
relay=; [ "$MODE" != relay ] || relay=,nopassthrough
own=$(uname -n)

mount_as()
{
	mkdir -p "$TMP/$1" "$TMP/staging-$1"
	# shellcheck disable=SC2016
	unshare --uts sh -c 'hostname "$0" && exec "$@"' "$1" "$BUILD/cairnfs" "$s" "$TMP/$1" -o \
		"staging=64M,pool=0,staging_dir=$TMP/staging-$1$relay" </dev/null || die "host $1 does not mount"
	LIB_STORE[$TMP/$1]=$s
	LIB_KEEPER[$TMP/$1]=$(keeper_pid "$TMP/$1")
	LIB_STAGING[$(status_field "$TMP/$1" staging.dir)]=1
}

# A value of a host in cairn hosts --json; nothing: it is not listed.
host()
{
	"$cairn" hosts --json "$s" | python3 -c 'import json, sys
for h in json.load(sys.stdin)["hosts"]:
    if h["name"] == sys.argv[1]:
        for key in sys.argv[2].split("."): h = h[key]
        print(h)' "$1" "$2"
}
is() { [ "$(host "$1" state)" = "$2" ]; }
mtime() { stat -c %.9Y "$s/.cairn/$1/alive"; }

# Alone on a local disk: it says it once, and the disk is left alone.
start_mount "$s" "$a" staging=64M
retry 20 test -e "$s/.cairn/$own/alive" || die "it does not say that it is alive"
is "$own" here || die "its own host: $("$cairn" hosts "$s")"
"$cairn" hosts "$s" >/dev/null || die "nobody is silent: $("$cairn" hosts "$s")"
[ "$(host "$own" pid)" = "$(keeper_pid "$a")" ] || die "pid: $(host "$own" pid)"
first=$(mtime "$own")

# With others each sets the time again, also one that was there before.
mount_as node-b
mount_as node-c
retry 20 is node-b here || die "node-b: $("$cairn" hosts "$s")"
beats() { [ "$(mtime "$1")" != "$2" ]; }
b=$(mtime node-b)
retry 60 beats "$own" "$first" || die "a host that was there before does not beat: $("$cairn" hosts "$s")"
retry 60 beats node-b "$b" || die "node-b does not beat: $("$cairn" hosts "$s")"
# As another machine reads it, which knows no locks and no processes of this one.
other() { sed -i 's/^boot .*/boot 00000000-0000-0000-0000-000000000000/' "$s/.cairn/$1/alive"; }
none_gone() { [ "$(status_field "$a" hosts.alive)" = 2 ] && [ "$(status_field "$a" hosts_gone)" = '[]' ]; }
retry 60 none_gone || die "others: $(status_field "$a" hosts), gone: $(status_field "$a" hosts_gone)"
[ "$("$cairn" hosts "$a")" != "" ] && "$cairn" hosts "$a" | has '^node-c  *[0-9]*  served by this machine' || die "by the mount: $("$cairn" hosts "$a")"

# Each has a number of its own, with which the ids of its files begin.
numbers() { "$cairn" hosts --json "$s" | python3 -c 'import json, sys
print(*sorted(h["number"] for h in json.load(sys.stdin)["hosts"]))'; }
all=$(numbers)
[ "$(tr ' ' '\n' <<<"$all" | sort -u | grep -cv '^0$')" = 3 ] || die "numbers: $all"
maker() { echo $(($(stat -c %i "$1") >> 50)); }
echo 1 >"$a/of-a"
echo 1 >"$TMP/node-b/of-b"
echo 1 >"$TMP/node-c/of-c"
[ "$(for i in a/of-a node-b/of-b node-c/of-c; do maker "$TMP/$i"; done | sort -u | wc -l)" = 3 ] || die "ids of two hosts begin alike"

# A clean end is told, and no reason to tell of anybody.
stop_mount "$TMP/node-c"
[ -e "$s/.cairn/node-c/ended" ] && [ ! -e "$s/.cairn/node-c/alive" ] || die "node-c does not say that it ended: $(ls "$s/.cairn/node-c")"
is node-c ended || die "node-c: $("$cairn" hosts "$s")"
"$cairn" hosts "$s" >/dev/null || die "an unmount is no silence: $("$cairn" hosts "$s")"

# A worker that dies is followed by one that says it again; a host that is killed is gone.
kill -KILL "$(worker_pid "$TMP/node-b")"
retry 20 status_field "$TMP/node-b" pid >/dev/null
is node-b here || die "node-b after its worker's death: $("$cairn" hosts "$s")"
kill_mount "$TMP/node-b"
: >"$s/.cairn/node-b/tmp/0123456789abcdef"
head -c 1000 /dev/zero >"$s/.cairn/node-b/tmp/00000000000000ff"
echo no version >"$s/.cairn/node-b/tmp/l0123456789abcde"
is node-b silent || die "this machine knows at once that it is gone: $("$cairn" hosts "$s")"
other node-b
is node-b alive || die "another machine cannot know yet: $("$cairn" hosts "$s")"
touch -d '-90 sec' "$s/.cairn/node-b/alive"
"$cairn" hosts "$s" >"$TMP/out" && die "the exit code for a silent host: 0"
has '^node-b  *[0-9]*  SILENT, last heard of 1:[0-9]* ago.*; 2 files not published, 1000 B' "$TMP/out" || die "$(cat "$TMP/out")"
[ "$(host node-b unpublished.files) $(host node-b unpublished.bytes)" = "2 1000" ] || die "$("$cairn" hosts --json "$s")"
gone() { [ "$(status_field "$a" hosts.gone)" = 1 ]; }
retry 60 gone || die "the others do not see it: $(status_field "$a" hosts)"
[ "$(status_field "$a" hosts_gone.0.name)" = node-b ] || die "gone: $(status_field "$a" hosts_gone)"
[ "$(status_field "$a" hosts_gone.0.since_s)" -ge 90 ] || die "since: $(status_field "$a" hosts_gone)"
[ "$(metric "$a" hosts_gone)" = 1 ] || die "metrics: $(metric "$a" hosts_gone)"
has '^cairnfs_host_gone_seconds{.*gone="node-b"} [0-9]' "$a/.cairn/metrics" || die "metrics: $(grep host_gone "$a/.cairn/metrics")"
has 'HOST GONE  node-b' "$a/.cairn/status" || die "status: $(cat "$a/.cairn/status")"
"$cairn" status "$a" | has 'HOST GONE *node-b is silent for' || die "cairn status: $("$cairn" status "$a")"

# By a person's word what it left goes to lost+found, and nobody tells of it any more. Not of one that lives, nor of
# one that was heard of lately.
for verb in adopt discard; do
	"$cairn" hosts $verb "$s" node-b 2>"$TMP/err"; [ $? = 2 ] || die "$verb without --force"
	has -e '--force is needed' "$TMP/err" || die "$verb without --force: $(cat "$TMP/err")"
	"$cairn" hosts $verb --force "$s" "$own" 2>"$TMP/err"; [ $? = 1 ] || die "$verb of a host that is served"
	has 'served by a process of this machine' "$TMP/err" || die "$verb: $(cat "$TMP/err")"
	"$cairn" hosts $verb --force "$s" nobody 2>"$TMP/err"; [ $? = 1 ] || die "$verb of no host"
	has 'the store has no such host' "$TMP/err" || die "$verb: $(cat "$TMP/err")"
	touch "$s/.cairn/node-b/alive"
	"$cairn" hosts $verb --force "$s" node-b 2>"$TMP/err"; [ $? = 1 ] || die "$verb of a host that was just heard of"
	has 'it was alive within the last minute' "$TMP/err" || die "$verb: $(cat "$TMP/err")"
	touch -d '-90 sec' "$s/.cairn/node-b/alive"
	mkdir "$s/.cairn/other"
	"$cairn" hosts $verb --force "$s" other 2>"$TMP/err"; [ $? = 1 ] || die "$verb of what is no host"
	: >"$s/.cairn/other/lock"
	"$cairn" hosts $verb --force "$s" other 2>"$TMP/err"; [ $? = 1 ] || die "$verb of a host that never said anything"
	rm -r "$s/.cairn/other"
done
[ "$(host node-b unpublished.files)" = 2 ] || die "a refusal took something: $("$cairn" hosts "$s")"
lost=$s/.cairn/lost+found
setfattr -n user.cairn.checksum -v xxh3:0 "$s/.cairn/node-b/tmp/00000000000000ff"
echo mine >"$lost/node-b.0123456789abcdef"
"$cairn" hosts adopt --force "$a" node-b >"$TMP/out" 2>"$TMP/err"; [ $? = 1 ] || die "what is in lost+found is replaced"
[ "$(cat "$lost/node-b.0123456789abcdef")" = mine ] && [ -e "$s/.cairn/node-b/tmp/0123456789abcdef" ] || die "replaced: $(ls -l "$lost")"
is node-b alive || is node-b silent || die "it is taken for ended, though something is left: $("$cairn" hosts "$s")"
rm "$lost/node-b.0123456789abcdef"
"$cairn" hosts adopt --force "$a" node-b >>"$TMP/out" || die "adopt: $(cat "$TMP/out")"
has '^lost+found/node-b.00000000000000ff  1000 B, whole$' "$TMP/out" || die "adopt: $(cat "$TMP/out")"
has '^lost+found/node-b.0123456789abcdef  0 B, bytes may be missing$' "$TMP/out" || die "adopt: $(cat "$TMP/out")"
[ "$(stat -c %s "$lost/node-b.00000000000000ff")" = 1000 ] && [ -e "$lost/node-b.0123456789abcdef" ] || die "lost+found: $(ls -l "$lost")"
is node-b ended && [ "$(host node-b unpublished.files)" = 0 ] || die "after adopt: $("$cairn" hosts "$s")"
[ ! -e "$s/.cairn/node-b/reserve" ] || die "its reserve stays"
: >"$s/.cairn/node-b/tmp/00000000000000aa"
"$cairn" hosts discard --force "$s" node-b >"$TMP/out" || die "discard: $(cat "$TMP/out")"
[ "$(host node-b unpublished.files)" = 0 ] && [ "$(ls "$lost" | wc -l)" = 2 ] || die "discard: $(ls "$lost")"
not_told() { [ "$(status_field "$a" hosts.gone)" = 0 ]; }
retry 60 not_told || die "it is still told after adopt: $(status_field "$a" hosts_gone)"

# It comes back.
mount_as node-b
is node-b here || die "node-b is back: $("$cairn" hosts "$s")"
back() { [ "$(status_field "$a" hosts.gone)" = 0 ]; }
retry 60 back || die "it is still told: $(status_field "$a" hosts_gone)"
stop_mount "$TMP/node-b"
[ "$(numbers)" = "$all" ] || die "a host has another number when it comes back: $(numbers), it was $all"
stop_mount "$a"

# In a container with a new hostname each time: the host is what the option says.
hostname_is() { unshare --uts sh -c 'hostname "$0" && exec "$@"' "$@"; }
mkdir -p "$TMP/staging-p"
for i in 1 2; do
	hostname_is "container-$i" "$BUILD/cairnfs" "$s" "$a" -o "host=pod-0,staging=64M,pool=0,staging_dir=$TMP/staging-p" ||
		die "-o host=pod-0"
	LIB_STORE[$a]=$s LIB_KEEPER[$a]=$(keeper_pid "$a")
	LIB_STAGING[$(status_field "$a" staging.dir)]=1
	retry 20 is pod-0 here || die "pod-0: $("$cairn" hosts "$s")"
	[ "${pod:=$(host pod-0 number)}" = "$(host pod-0 number)" ] || die "pod-0 has another number"
	has 'host="pod-0"' "$a/.cairn/metrics" || die "host= in metrics"
	stop_mount "$a"
done
[ ! -e "$s/.cairn/container-1" ] && [ ! -e "$s/.cairn/container-2" ] || die "a directory for the hostname"
for bad in host= host=.hidden host=a/b "host=$(printf %065d 0)"; do
	"$BUILD/cairnfs" "$s" "$a" -o "$bad" 2>"$TMP/err" && die "$bad is taken"
	has 'host= takes a name' "$TMP/err" || die "$bad: $(cat "$TMP/err")"
done
# a start that is refused leaves no host: what commits would wait for its shards for ever
start_mount "$s" "$a" staging=64M,host=served
mkdir "$TMP/other"
"$BUILD/cairnfs" "$s" "$TMP/other" -o host=typo,staging=64M 2>"$TMP/err" && die "the staging of another is taken"
[ ! -e "$s/.cairn/typo" ] || die "a refused start left $(ls -A "$s/.cairn/typo")"
[ -e "$s/.cairn/served/lock" ] || die "and removed another host"
stop_mount "$a"
"$BUILD/cairnfs" "$TMP/none" "$TMP/other" 2>/dev/null && die "no store"
is "$own" ended || die "the last one: $("$cairn" hosts "$s")"
"$cairn" hosts "$TMP" 2>/dev/null; [ $? = 2 ] || die "no store: exit code"
"$cairn" hosts 2>/dev/null; [ $? = 2 ] || die "no operand: exit code"
