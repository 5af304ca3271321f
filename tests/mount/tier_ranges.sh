#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# A large file of a bucket is read by ranges: the first read of its middle is answered by one request for that, while the
# server holds all others back; what has a wrong checksum never reaches a reader, and is asked for once more; a killed fetch
# is gone on with, and so is a listing. The same of a directory, with a copy that is damaged in one range.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_fault_bucket
t=s3://bucket/a ref=$TMP/ref large=__2_0.distcp
mkdir -p "$ref/run" "$TMP/dir"
for i in 1 2; do
	cp -r "$assets/dcp" "$ref/run/step-$i"
	head -c 40M /dev/urandom >"$ref/run/step-$i/$large"	# five ranges
done
expect 0 "$cairn" tier push -q "$ref" "$t"
expect 0 "$cairn" tier push -q "$ref" "$TMP/dir"

new_node()	# new_node TIER: an empty store
{
	rm -rf --one-file-system "$s"
	start_mount "$s" "$m" "tier=$1"
	[ -e "$m/.cairn/tier/run/step-1/$large" ] || die "no listing of $1"
	: >"$TMP/fault/log"
}
# part STEP MIB: a piece of the large file, as the mount has it
part() { dd if="$m/.cairn/tier/run/step-$1/$large" bs=64k skip=$(($2 * 16)) count=1 status=none 2>"$TMP/err"; }
same_part()
{
	part "$@" >"$TMP/part" || die "step-$1, at $2 MiB: $(cat "$TMP/err")"
	dd if="$ref/run/step-$1/$large" bs=64k skip=$(($2 * 16)) count=1 status=none | cmp - "$TMP/part" || die "step-$1, at $2 MiB: other bytes"
}
requests()	# of the large file: method, range, status
{
	python3 -c 'import json, sys
for r in map(json.loads, open(sys.argv[1])):
    if r["path"].endswith(sys.argv[2]) and not (r["fault"] == "late" and r["status"] != "waits"):
        print(r["method"], r["range"], r["status"])' "$TMP/fault/log" "$large" | sort
}
count_requests() { requests | grep -c "$1" || true; }
in_store() { [ -e "$s/run/step-$1/.metadata" ]; }
server()
{
	local guard runner
	for guard in $(lib_children "$(keeper_pid "$m")"); do
		for runner in $(lib_children "$guard"); do
			ps -o pid=,args= --ppid "$runner" | sed -n 's/^ *\([0-9]*\) .*tier serve.*/\1/p'
		done
	done
}
fetchers() { local pid; for pid in $(server); do lib_children "$pid"; done; }
# reads_in_background STEP MIB: its code is in $TMP/code when it has ended
reads_in_background()
{
	rm -f "$TMP/code"
	(rc=0; part "$1" "$2" >"$TMP/late" || rc=$?; echo $rc >"$TMP/code.new"; mv "$TMP/code.new" "$TMP/code") &
	reader=$!
}
late_is_right() { dd if="$ref/run/step-$1/$large" bs=64k skip=$(($2 * 16)) count=1 status=none | cmp - "$TMP/late" || die "step-$1, at $2 MiB: other bytes"; }
hold() { s3_rule late 1 0 "GET .*$large bytes=(?!$1-)"; }	# all but the range that begins there

# The clients of the next fetch are started before that is asked for; it takes these.
clients() { local pid; for pid in $(fetchers); do lib_children "$pid"; done; }
prepared() { ready=$(clients); [ "$(wc -w <<<"$ready")" = 2 ]; }
same_clients() { [ "$(clients | grep -cxF -- "$ready")" = 2 ] || die "the fetch started other clients: $(clients) for $ready"; }

# The middle first: the fourth range. Its request, and at most one more, which waits.
new_node "$t"
hold 25165824
retry 30 prepared || die "no client is prepared"
same_part 1 25
same_clients
[ "$(count_requests 'GET bytes=25165824-33554431 206')" = 1 ] || die "requests: $(requests)"
[ "$(requests | wc -l)" -le 2 ] || die "more than two requests: $(requests)"
has '"HEAD"' "$TMP/fault/log" && die "a size was asked for, which costs a round trip: $(cat "$TMP/fault/log")"
same_part 1 31
[ "$(requests | wc -l)" -le 2 ] || die "what is there was asked for again: $(requests)"
note "requests of the object: $(requests | tr '\n' ';')"
in_store 1 && die "in the store, and not all of it came"

# Who waits for another range gets it when that is there, also when the worker was killed meanwhile.
reads_in_background 1 0
waits() { [ -n "$(count_requests waits)" ] && [ "$(count_requests waits)" -ge 1 ]; }
retry 20 waits || die "nothing waits: $(requests)"
kill -KILL "$(worker_pid "$m")"
same_part 1 26
[ ! -e "$TMP/code" ] || die "read what did not come"

# The fetch is killed, then the clients of the next one: what came is not asked for again, and who waits goes on waiting.
# shellcheck disable=SC2046	# a word each
kill -KILL $(fetchers)
same_part 1 27
has_clients() { [ "$(clients | wc -l)" = 2 ]; }
retry 20 has_clients || die "no client is started again: $(clients)"
# shellcheck disable=SC2046	# a word each
kill -KILL $(clients)
same_part 1 28
log_has() { has -- "$1" "$s"/.cairn/*/log; }
retry 20 log_has 'run/step-1: .*cairn-tier has ended; it is fetched again' || die "it was not told"
[ "$(count_requests bytes=25165824-)" = 1 ] || die "asked for again: $(requests)"
s3_rule
wait $reader
[ "$(cat "$TMP/code")" = 0 ] || die "after the server went on: $(cat "$TMP/err")"
late_is_right 1 0
retry 60 in_store 1 || die "not in the store after it was read: $(status_field "$m" fetch)"
[ "$(count_requests 'bytes=25165824-33554431 206')" = 1 ] || die "asked for again: $(requests)"
expect 0 "$cairn" verify "$m/run/step-1"
says out '^4 ok, .* 0 unverifiable'
diff -r "$ref/run/step-1" "$s/run/step-1" || die "step-1"

# Who was prepared long ago has credentials that have expired since: it asks for those of now.
retry 30 prepared || die "no client is prepared"
s3_rule 403 1 1 'GET .*step-2/manifest'
: >"$TMP/fault/log"
same_part 2 39
has '"403"' "$TMP/fault/log" || die "nothing was refused: $(cat "$TMP/fault/log")"

# Other bytes on the way: asked for once more. The reader gets the right ones.
retry 60 in_store 2 || die "not in the store after it was read: $(status_field "$m" fetch)"
stop_mount "$m"
new_node "$t"
s3_rule rot 1 1 "GET .*step-2/$large bytes=16777216-"
: >"$TMP/fault/log"
same_part 2 17
same_part 2 5
retry 60 in_store 2 || die "not in the store after it was read: $(status_field "$m" fetch)"
has '"rot"' "$TMP/fault/log" || die "nothing was damaged: $(requests)"
diff -r "$ref/run/step-2" "$s/run/step-2" || die "step-2"
stop_mount "$m"

# For good: EIO for that range, all others are read, and the checkpoint never appears. Then the right bytes are there.
new_node "$t"
s3_rule rot 1 0 "GET .*step-2/$large bytes=16777216-"
part 2 17 >"$TMP/part" && die "a damaged range was read"
says err 'Input/output error'
same_part 2 25
same_part 2 1
retry 30 log_has "run/step-2 cannot be fetched from the tier: .*$large: not the bytes that its manifest lists" || die "it was not told"
in_store 2 && die "it appeared in the store"
s3_rule
same_part 2 17
retry 60 in_store 2 || die "not in the store after it was read: $(status_field "$m" fetch)"
stop_mount "$m"

new_node "$TMP/dir"
printf X | dd of="$TMP/dir/run/step-2/$large" bs=1 seek=17000000 conv=notrunc status=none
same_part 2 25
part 2 17 >"$TMP/part" && die "a damaged range was read"
says err 'Input/output error'
same_part 2 39
retry 30 log_has "run/step-2 cannot be fetched from the tier: .*$large: not the bytes that its manifest lists" || die "it was not told"
in_store 2 && die "it appeared in the store"
same_part 1 25
retry 30 in_store 1 || die "not in the store after it was read"
diff -r "$ref/run/step-1" "$s/run/step-1" || die "step-1"
stop_mount "$m"

# Who lists the bucket is killed, then its client: whoever waits for the first listing waits for the next one.
rm -rf --one-file-system "$s"
: >"$TMP/fault/log"
s3_rule late 1 0 'GET .*step-2/manifest'
start_mount "$s" "$m" "tier=$t"
lists() { [ "$(grep -c '"waits"' "$TMP/fault/log")" = "$1" ] && [ -n "$(clients)" ]; }
rm -f "$TMP/code"
(rc=0; readlink "$m/.cairn/latest/run" >"$TMP/late" || rc=$?; echo $rc >"$TMP/code.new"; mv "$TMP/code.new" "$TMP/code") &
reader=$!
retry 20 lists 1 || die "nothing lists the bucket: $(cat "$TMP/fault/log")"
# shellcheck disable=SC2046	# a word each
kill -KILL $(fetchers)
retry 20 lists 2 || die "who lists it was killed, and it is not listed again: $(cat "$TMP/fault/log")"
# shellcheck disable=SC2046
kill -KILL $(clients)
retry 20 lists 3 || die "its client was killed, and it is not listed again: $(cat "$TMP/fault/log")"
[ ! -e "$TMP/code" ] || die "latest without a listing: $(cat "$TMP/code" "$TMP/late")"
log_has 'was killed; the tier is listed again' || die "it was not told"
s3_rule
wait $reader
[ "$(cat "$TMP/late")" = ../../.cairn/tier/run/step-2 ] || die "latest: $(cat "$TMP/code" "$TMP/late")"
stop_mount "$m"
