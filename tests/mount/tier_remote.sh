#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# Reading back from a tier: an empty store with the tier of another node shows its checkpoints below .cairn/tier, `latest`
# leads there, and opening a file fetches it. Nothing at the checkpoints' own paths; permissions; a damaged copy, a hostile
# manifest, a tier that is gone or does not answer; worker, server and fetch killed while a file waits.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
t=$TMP/tier ref=$TMP/ref
export COLUMNS=400	# one line each

expect 1 "$BUILD/cairnfs" "$TMP" "$TMP" -o tier=/x,tier_wait=never
says err 'tier_wait=never: give a number'

mkdir -p "$t" "$ref"
save()	# save N: a checkpoint, through the mount
{
	cp -r "$assets/dcp" "$ref/step-$1"
	head -c 3M /dev/urandom >"$ref/step-$1/__2_0.distcp"
	chmod "$2" "$ref/step-$1/__2_0.distcp"
	mkdir -p "$m/run"
	cp -rp "$ref/step-$1" "$m/run"
}
server()	# of the tier: the keeper's guards have runners, one of which has it
{
	local guard runner
	for guard in $(lib_children "$(keeper_pid "$m")"); do
		for runner in $(lib_children "$guard"); do
			ps -o pid=,args= --ppid "$runner" | sed -n 's/^ *\([0-9]*\) .*tier serve.*/\1/p'
		done
	done
}
has_server() { [ -n "$(server)" ]; }
signal_server()	# signal_server SIGNAL: all that are seen; two were, once
{
	local pid all
	all=$(server)
	[ "$(wc -w <<<"$all")" = 1 ] || note "servers: $(tr '\n' ' ' <<<"$all"): $(ps -eo pid,ppid,stat,args | grep '[c]airn')"
	for pid in $all; do
		kill "-$1" "$pid" 2>/dev/null
	done
}
fetchers() { local pid; for pid in $(server); do lib_children "$pid"; done; }
new_node()	# new_node [OPTIONS]: an empty store, the same tier
{
	rm -rf --one-file-system "$s"
	start_mount "$s" "$m" "tier=$t${1:+,$1}"
}
log_has() { has -- "$1" "$s"/.cairn/*/log; }
# reads_in_background FILE: its code is in $TMP/code when it has ended
reads_in_background()
{
	rm -f "$TMP/code" "$TMP/read"
	(exec 7<&-; rc=0; cat "$1" >"$TMP/read" 2>"$TMP/err" || rc=$?; echo $rc >"$TMP/code.new"; mv "$TMP/code.new" "$TMP/code") &
	reader=$!
}
fetching() { [ "$(status_field "$m" fetch.fetching)" = "$1" ]; }

start_mount "$s" "$m" "tier=$t"
for i in 1 2 3 4 5; do
	save $i 644
done
save 6 600
expect 0 "$cairn" wait --tier "$m"
stop_mount "$m"

# A new node: at once.
new_node
[ "$(readlink "$m/.cairn/latest/run")" = ../../.cairn/tier/run/step-6 ] || die "latest: $(readlink "$m/.cairn/latest/run")"
[ "$(ls "$m/.cairn/latest")" = run ] || die ".cairn/latest lists: $(ls "$m/.cairn/latest")"
expect 0 "$cairn" latest "$m"
says out "^$m/.cairn/tier/run/step-6$"
expect 0 "$cairn" latest "$m/run"
says out "^$m/.cairn/tier/run/step-6$"
expect 2 "$cairn" latest "$m/nothing"
says err 'No such file'
[ -z "$(ls -A "$m")" ] || die "the mount lists: $(ls -A "$m")"
[ "$(ls -v "$m/.cairn/tier/run" | tr '\n' ' ')" = "step-1 step-2 step-3 step-4 step-5 step-6 " ] || die "$(ls "$m/.cairn/tier/run")"
(cd "$ref/step-6" && stat -c '%n %s %y %a' .metadata ./*.distcp) >"$TMP/want"
(cd "$m/.cairn/tier/run/step-6" && stat -c '%n %s %y %a' .metadata ./*.distcp) >"$TMP/have"
diff "$TMP/want" "$TMP/have" || die "sizes, times or modes"
[ "$(state "$m/.cairn/tier/run/step-6/.metadata")" = remote ] || die "state: $(state "$m/.cairn/tier/run/step-6/.metadata")"
expect 0 "$cairn" ls "$m/.cairn/tier/run"
says out '^remote  *step-6/  dcp, step 6, 4 files, 3.0 MiB, complete, '
expect 0 "$cairn" ls "$m"
says out '^remote  *run/$'
expect 0 "$cairn" ls "$m/run"
says out '^remote  *step-5/  dcp, step 5, 4 files, 3.0 MiB, complete, '
expect 0 env -C "$m" "$cairn" ls run/step-5
says out '^remote  *./  dcp, step 5, '
expect 2 "$cairn" ls "$m/nothing"
[ "$(status_field "$m" fetch.fetched) $(status_field "$m" fetch.checkpoints)" = "0 6" ] || die "$(status_field "$m" fetch)"
touch "$m/.cairn/tier/run/x" 2>/dev/null && die "a file was made in the tier"
sh -c "echo >>'$m/.cairn/tier/run/step-6/.metadata'" 2>/dev/null && die "the tier was written to"

# Two readers at once: one fetch. What was read is in the store then, as it was.
cat "$m/.cairn/latest/run/__2_0.distcp" >"$TMP/one" &
cat "$m/.cairn/latest/run/.metadata" >"$TMP/two" || die "read"
wait $! || die "read"
cmp "$TMP/one" "$ref/step-6/__2_0.distcp" || die "other bytes"
cmp "$TMP/two" "$ref/step-6/.metadata" || die "other bytes"
in_store() { [ -e "$s/run/step-$1" ]; }
fetched_once() { in_store 6 && [ "$(metric "$m" tier_fetched_checkpoints_total)" = 1 ]; }
retry 20 fetched_once || die "read, fetched $(metric "$m" tier_fetched_checkpoints_total) times, in the store: $(ls "$s/run")"
same_tree "$ref/step-6" "$m/run/step-6"
[ "$(readlink "$m/.cairn/latest/run")" = ../../run/step-6 ] || die "latest: $(readlink "$m/.cairn/latest/run")"
[ "$(ls "$m/run")" = step-6 ] || die "also fetched: $(ls "$m/run")"
cmp "$m/.cairn/tier/run/step-6/__2_0.distcp" "$ref/step-6/__2_0.distcp" || die "again"
expect 0 "$cairn" ls "$m/run"
says out '^remote  *step-5/  dcp, step 5, 4 files'
says out '^durable  *step-6/  dcp, .*complete and durable'
expect 0 "$cairn" verify "$m/run/step-6"
says out '^4 ok, .* 0 unverifiable'

# A trainer makes its directory anew: what the tier has there is not in its way.
mkdir "$m/run/step-5" || die "a directory that only the tier has"
rmdir "$m/run/step-5"

# Beforehand.
expect 0 "$cairn" fetch "$m/run/step-4"
says out '^fetched  run/step-4  4 files, 3.0 MiB'
same_tree "$ref/step-4" "$m/run/step-4"
expect 0 "$cairn" fetch --json "$m/run/step-4"
says out '"action": "there"'
expect 0 "$cairn" fetch --latest "$m/run"
says out '^there .*run/step-6'
expect 2 "$cairn" fetch "$m/run/step-99"
says err 'not in the tier'
expect 2 "$cairn" fetch "$TMP"

# Not for a user whom the modes in the tier exclude.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	stop_mount "$m"
	chmod 755 "$TMP"
	new_node allow_other
	as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
	as_user cat "$m/.cairn/tier/run/step-6/__2_0.distcp" >"$TMP/read" 2>/dev/null && die "read what only root may"
	[ "$(status_field "$m" fetch.fetched)" = 0 ] || die "fetched for him"
	as_user cmp "$m/.cairn/tier/run/step-5/__2_0.distcp" "$ref/step-5/__2_0.distcp" || die "not read what all may"
	retry 20 in_store 5 || die "not in the store after it was read"
	chmod 700 "$m/run/step-5"
	as_user cat "$m/.cairn/tier/run/step-5/.metadata" >"$TMP/read" 2>/dev/null && die "read what is closed to him here"
fi
stop_mount "$m"

# A copy with other bytes never counts; it is told. A file that is verified is read before its checkpoint is there. Then
# the right one is taken.
new_node
cp -p "$t/run/step-3/__2_0.distcp" "$TMP/good"
python3 -c 'import os, sys
p = sys.argv[1]
st = os.stat(p)
f = open(p, "r+b")
f.write(b"rot")
f.close()
os.utime(p, ns=(st.st_atime_ns, st.st_mtime_ns))' "$t/run/step-3/__2_0.distcp"
cat "$m/.cairn/tier/run/step-3/__2_0.distcp" >"$TMP/read" 2>"$TMP/err" && die "a damaged file was read"
says err 'Input/output error'
cmp "$m/.cairn/tier/run/step-3/__0_0.distcp" "$ref/step-3/__0_0.distcp" || die "one that is not damaged"
retry 20 log_has 'run/step-3 cannot be fetched'
[ ! -e "$s/run/step-3" ] || die "it appeared in the store"
log_has 'run/step-3 cannot be fetched from the tier: .*not the bytes that its manifest lists' || die "it was not told"
status_field "$m" fetch.error | has 'not the bytes' || die "status: $(status_field "$m" fetch)"
expect 1 "$cairn" fetch "$m/run/step-3"
says err 'not the bytes'
expect 0 "$cairn" status "$m"
says out 'FETCH  *run/step-3: .*not the bytes'
cp -p "$TMP/good" "$t/run/step-3/__2_0.distcp"
cmp "$m/.cairn/tier/run/step-3/__2_0.distcp" "$ref/step-3/__2_0.distcp" || die "the right bytes"
retry 20 in_store 3 || die "not in the store after it was read"
same_tree "$ref/step-3" "$m/run/step-3"
stop_mount "$m"

# A manifest that leads out of the tier is not shown; the others are.
mkdir -p "$t/.cairn/manifests/run/evil"
sed 's|run/step-1/|../evil/|; s|run/step-1|run/evil|' "$t/.cairn/manifests/run/step-1/manifest.json" \
	>"$t/.cairn/manifests/run/evil/manifest.json"
new_node
[ ! -e "$m/.cairn/tier/run/evil" ] && [ -e "$m/.cairn/tier/run/step-1" ] || die "$(ls "$m/.cairn/tier/run")"
log_has 'not all of the tier is shown: run/evil: its manifest is damaged' || die "it was not told"
rm -r "$t/.cairn/manifests/run/evil"

# The server is killed, and the worker, while a reader waits: it gets the bytes.
signal_server STOP
reads_in_background "$m/.cairn/tier/run/step-1/__2_0.distcp"
retry 20 fetching run/step-1 || die "not asked for: $(status_field "$m" fetch)"
signal_server KILL
wait $reader
[ "$(cat "$TMP/code")" = 0 ] || die "the server was killed: $(cat "$TMP/err")"
cmp "$TMP/read" "$ref/step-1/__2_0.distcp" || die "other bytes"
retry 20 has_server || die "no server"
signal_server STOP
reads_in_background "$m/.cairn/tier/run/step-2/__2_0.distcp"
retry 20 fetching run/step-2 || die "not asked for: $(status_field "$m" fetch)"
kill -KILL "$(worker_pid "$m")"
signal_server CONT
wait $reader
[ "$(cat "$TMP/code")" = 0 ] || die "the worker was killed: $(cat "$TMP/err")"
cmp "$TMP/read" "$ref/step-2/__2_0.distcp" || die "other bytes"

[ "$(readlink "$m/.cairn/latest/run")" = ../../.cairn/tier/run/step-6 ] || die "older ones are here, latest: $(readlink "$m/.cairn/latest/run")"

# Another process fetches the same checkpoint: it is waited for. A fetch that is killed meanwhile is no answer of the tier:
# there is another one.
mkdir "$s/run/.cairn-fetch.step-5"
exec 7<"$s/run/.cairn-fetch.step-5"
flock 7
reads_in_background "$m/.cairn/tier/run/step-5/__2_0.distcp"
killed=none
has_child() { [ -n "$(fetchers)" ]; }
# another one than was killed
has_another() { local now; now=$(fetchers); [ -n "$now" ] && [ "$now" != "$killed" ]; }
kill_fetchers()
{
	killed=$(fetchers)
	# shellcheck disable=SC2086	# a word each
	kill -KILL $killed
}
for n in 1 2; do
	retry 20 has_another || die "nothing fetches, killed $((n - 1)) times: $(cat "$TMP/code" "$TMP/err")"
	kill_fetchers
done
retry 20 has_another || die "nothing fetches, killed twice: $(cat "$TMP/code" "$TMP/err")"
[ ! -e "$TMP/code" ] || die "read while another process fetches it: $(cat "$TMP/err")"
log_has 'run/step-5: .*was killed; it is fetched again' || die "it was not told"
exec 7<&-
wait $reader
[ "$(cat "$TMP/code")" = 0 ] || die "the fetch was killed: $(cat "$TMP/err")"
cmp "$TMP/read" "$ref/step-5/__2_0.distcp" || die "after another process has ended"

# What is open stays so when the worker is killed.
exec 8<"$m/.cairn/tier/run/step-2/__2_0.distcp"
kill -KILL "$(worker_pid "$m")"
cmp - "$ref/step-2/__2_0.distcp" <&8 || die "open when the worker was killed"
exec 8<&-

# A reader that waits can be ended, and the mount answers others meanwhile.
signal_server STOP
cat "$m/.cairn/tier/run/step-4/__2_0.distcp" >"$TMP/read" 2>&1 &
reader=$!
retry 20 fetching run/step-4 || die "not asked for: $(status_field "$m" fetch)"
cp -r "$assets/dcp" "$m/other" || die "the mount waits for the tier"
expect 3 "$cairn" fetch --timeout 1 "$m/run/step-4"
kill -TERM $reader
retry 20 lib_pid_gone $reader || die "the reader cannot be ended"
signal_server CONT
there() { [ -e "$m/run/step-4/.metadata" ]; }
retry 20 there || die "the fetch did not go on"
stop_mount "$m"

# Nothing comes: an error after tier_wait seconds, which says why. A listing that nobody has is not an empty one.
new_node tier_wait=1
[ -e "$m/.cairn/tier/run/step-1" ] || die "no listing"
signal_server STOP
cat "$m/.cairn/tier/run/step-1/.metadata" >"$TMP/read" 2>"$TMP/err" && die "read from a server that is stopped"
says err 'Input/output error'
log_has 'run/step-1 cannot be fetched from the tier: nothing came for 1 s (tier_wait)' || die "it was not told"
signal_server CONT
cmp "$m/.cairn/tier/run/step-1/.metadata" "$ref/step-1/.metadata" || die "after it goes on"
# and when each fetch is killed before a byte has come
mkdir "$s/run/.cairn-fetch.step-2"
exec 7<"$s/run/.cairn-fetch.step-2"
flock 7
reads_in_background "$m/.cairn/tier/run/step-2/__2_0.distcp"
kills() { if has_another; then kill_fetchers; fi; [ -e "$TMP/code" ]; }
retry 30 kills || die "fetches are killed, and it is waited for"
exec 7<&-
wait $reader
says err 'Input/output error'
log_has 'run/step-2 cannot be fetched from the tier: .*was killed' || die "it was not told"
cmp "$m/.cairn/tier/run/step-2/__2_0.distcp" "$ref/step-2/__2_0.distcp" || die "after the last kill"
stop_mount "$m"
mv "$t" "$TMP/away"
new_node
ls "$m/.cairn/latest/run" 2>"$TMP/err" && die "latest without the tier"
says err 'Input/output error'
ls "$m/.cairn/tier" 2>"$TMP/err" && die "the tier is gone, and it is listed"
says err 'Input/output error'
expect 1 "$cairn" latest "$m"
says err 'Input/output error'
expect 1 "$cairn" ls "$m"
says err 'what is in the tier is not known'
log_has 'what is in the tier is not known: ' || die "it was not told"
mkdir "$m/run"
cp -r "$assets/dcp" "$m/run/step-9"
wait_durable "$m/run/step-9"
[ "$(readlink "$m/.cairn/latest/run")" = ../../run/step-9 ] || die "latest of what is here waits for the tier"
mv "$TMP/away" "$t"
listed() { [ -e "$m/.cairn/tier/run/step-6" ]; }
retry 30 listed || die "the tier is back, and is not listed"
cmp "$m/.cairn/tier/run/step-6/.metadata" "$ref/step-6/.metadata" || die "read after it is back"
stop_mount "$m"
