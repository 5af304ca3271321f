#!/bin/bash
# SPDX-License-Identifier: MIT
# The store refuses a version for good: its directory is on another filesystem, so that no rename leads
# there (EXDEV). fsync of the file, and of what commits it, says so; cairn wait, the state and the status
# too, until a person has seen it, and cairn umount and the log. Other directories are not concerned.
. "$(dirname "$0")/../lib/lib.sh"
need_root

s=$TMP/store m=$TMP/mnt cairn=$BUILD/cairn
mkdir -p "$s/sub" "$TMP/other"
mount -t tmpfs -o size=16M refused "$TMP/other" && mount --bind "$TMP/other" "$s/sub" || die "cannot mount"
on_exit "umount -l '$s/sub' '$TMP/other' 2>/dev/null"
start_mount "$s" "$m" staging=64M,pool=0

# Writes, fsyncs; prints the error's name or "ok".
sync_of()
{
	python3 -c 'import errno, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(fd, b"z" * 100000)
try:
    os.fsync(fd)
    print("ok")
except OSError as x:
    print(errno.errorcode[x.errno])' "$1"
}

mkdir "$m/fine"
got=$(sync_of "$m/sub/shard.pt")
[ "$got" = EXDEV ] || die "fsync of the refused file: $got"
got=$(sync_of "$m/fine/shard.pt")
[ "$got" = ok ] || die "fsync elsewhere: $got"
got=$(sync_of "$m/tracker")	# commits what is below its directory
[ "$got" = EXDEV ] || die "fsync of what commits it: $got"
[ "$(state "$m/sub")" = failed ] && [ "$(state "$m")" = failed ] || die "state: $(state "$m/sub") $(state "$m")"
[ "$(state "$m/fine")" = durable ] || die "state elsewhere: $(state "$m/fine")"
"$cairn" wait --timeout 20 "$m" 2>"$TMP/err" && die "cairn wait succeeds"
has 'refused sub/shard.pt: Invalid cross-device link' "$TMP/err" || die "wait says: $(cat "$TMP/err")"
status_field "$m" refused | has sub/shard.pt || die "status: $(status_field "$m" refused)"
COLUMNS=999 "$cairn" status "$m" | has 'REFUSED *1 change by.*sub/shard.pt' || die "$("$cairn" status "$m")"
cmp <(head -c 100000 /dev/zero | tr '\0' z) "$s"/.cairn/lost+found/*shard.pt.* || die "its bytes are not kept"

has 'versions are in .cairn/lost+found' "$TMP/err" || die "wait does not say where it is: $(cat "$TMP/err")"

# A person has seen it.
"$cairn" retry "$m" >/dev/null || die "retry"
wait_durable "$m"
[ "$(status_field "$m" refused)" = null ] || die "still refused: $(status_field "$m" refused)"
# Of a rename there is nothing in lost+found, and nothing says so.
kept=$(ls "$s/.cairn/lost+found")
dcp=$LIB_TOP/tests/assets/dcp
mkdir -p "$s/.cairn/other" "$m/step-1" && : >"$s/.cairn/other/lock"	# a host that may have the other shard
cp "$dcp/__0_0.distcp" "$dcp/.metadata" "$m/step-1"	# a shard is missing: renames wait
mv "$m/fine/shard.pt" "$m/fine/moved.pt"
mkdir "$s/fine/moved.pt"	# by somebody else, later
cp "$dcp/__1_0.distcp" "$m/step-1"
"$cairn" wait --timeout 20 "$m" 2>"$TMP/err" && die "cairn wait of a refused rename succeeds"
has 'refused fine/moved.pt: .*nothing of it is in .cairn/lost+found: make the change again' "$TMP/err" ||
	die "of a refused rename: $(cat "$TMP/err")"
[ "$(status_field "$m" refused.kept)" = 0 ] || die "kept: $(status_field "$m" refused)"
COLUMNS=999 "$cairn" status "$m" | has 'nothing of it is in .cairn/lost+found' || die "$("$cairn" status "$m")"
has 'REFUSED .*nothing of it is in' "$m/.cairn/status" || die "status: $(cat "$m/.cairn/status")"
[ "$(ls "$s/.cairn/lost+found")" = "$kept" ] && [ -e "$s/fine/shard.pt" ] || die "a refused rename: $(find "$s")"
# the next worker knows as much of each
echo both >"$m/sub/both.pt"
retry 10 eval '[ "$(status_field "$m" refused.count)" = 2 ]' || die "refused: $(status_field "$m" refused)"
kill -KILL "$(worker_pid "$m")"
[ "$(status_field "$m" refused.kept)" = 1 ] || die "kept, after the worker's death: $(status_field "$m" refused)"
"$cairn" wait --timeout 20 "$m" 2>"$TMP/err" && die "cairn wait succeeds"
has 'versions of 1 are in .cairn/lost+found' "$TMP/err" || die "of both: $(cat "$TMP/err")"
"$cairn" retry "$m" >/dev/null || die "retry"
wait_durable "$m"

"$cairn" umount -q "$m" || die "umount of what was seen"
has 'everything is in the store' "$s"/.cairn/*/log || die "log: $(cat "$s"/.cairn/*/log)"

# The end of the mount does not make a success of it.
start_mount "$s" "$m" staging=64M,pool=0
echo late >"$m/sub/late.pt"
"$cairn" umount -q --timeout 20 "$m" 2>"$TMP/err"
[ $? = 1 ] || die "umount succeeds"
is_mounted "$m" && die "still mounted"
has 'refused sub/late.pt: Invalid cross-device link' "$TMP/err" || die "umount says: $(cat "$TMP/err")"
grep -q 'cairn retry' "$TMP/err" && die "of a mount that has ended: $(cat "$TMP/err")"
tail -n 2 "$s"/.cairn/*/log >"$TMP/last"
has 'refused 1 of the changes, the last at sub/late.pt: Invalid cross-device link' "$TMP/last" &&
	has 'ended; what the store refused is not in it' "$TMP/last" || die "log: $(cat "$TMP/last")"
[ "$(cat "$s"/.cairn/lost+found/*late.pt.*)" = late ] || die "its bytes are not kept"

# Neither does a plain umount, nor the next start.
start_mount "$s" "$m" staging=64M,pool=0
echo again >"$m/sub/again.pt"
stop_mount "$m"
tail -n 2 "$s"/.cairn/*/log | has 'refused 1 of the changes, the last at sub/again.pt' || die "log: $(cat "$s"/.cairn/*/log)"
