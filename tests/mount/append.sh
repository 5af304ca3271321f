#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 400
#
# A file that is opened again and changed a little is not written whole where the store has shared extents: what the
# disk gets is counted. What is in the store is what was written, also over deaths of the worker and of everything.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool python3 mkfs.xfs
make_disk disk xfs 1G
store=$TMP/disk/store mnt=$TMP/mnt
size=$((64 << 20))
each=$((655360))	# what the disk may get for a small change: 64 MiB for a hundred
loop=$(findmnt -no SOURCE "$TMP/disk")

written() { sync -f "$TMP/disk"; awk '{ printf "%.0f", $7 * 512 }' "/sys/block/${loop#/dev/}/stat"; }
unchanged() { status_field "$mnt" bytes.unchanged; }
# Opens the file, appends to it, closes it; and the same to what is wanted.
append() { printf '%0100d' "$1" | tee -a "$TMP/want" >>"$mnt/log" || die "append $1"; }
overwrite()
{
	printf 'new %d' "$1" | dd of="$TMP/want" bs=1 seek="$2" conv=notrunc status=none
	printf 'new %d' "$1" | dd of="$mnt/log" bs=1 seek="$2" conv=notrunc status=none || die "overwrite $1"
}
check()
{
	wait_durable "$mnt"
	cmp "$TMP/want" "$store/log" || die "$1: the store has other bytes"
	"$BUILD/cairn" verify -q "$mnt/log" || die "$1: verify"
}
# May cost at most so many changes.
bounded()
{
	local moved=$(($(written) - before))
	note "$1: $2 changes of $size bytes, $((moved >> 10)) KiB written, $(($(unchanged) >> 20)) MiB unchanged"
	[ "$moved" -le $(($2 * each)) ] || die "$1: $moved bytes were written"
}

start_mount "$store" "$mnt" staging=512M
head -c $size /dev/urandom >"$TMP/want"
cp "$TMP/want" "$mnt/log"
check "a new file"
before=$(written)
for i in $(seq 20); do append "$i"; done
check "appended"
bounded "appended" 20
before=$(written)
for i in $(seq 10); do overwrite "$i" $((i * 5000000)); done
check "overwritten"
bounded "overwritten" 10
truncate -s $((size - 5)) "$mnt/log" && truncate -s $((size - 5)) "$TMP/want"
check "cut"

# a mount that has not written it
stop_mount "$mnt"
start_mount "$store" "$mnt" staging=512M
before=$(written)
for i in $(seq 3); do append "$i"; done
check "appended by another mount"
bounded "appended by another mount" 3

# the worker dies between a close and its publication, and while the file is open
for i in 1 2; do	# five deaths in ten seconds would end the mount
	append "$i"
	kill -KILL "$(worker_pid "$mnt")"
	append "$i$i"
done
{
	printf one
	kill -KILL "$(worker_pid "$mnt")"
	printf two
} >>"$mnt/log"
printf onetwo >>"$TMP/want"
check "after the worker's deaths"
append 5
append 6
kill_mount "$mnt"
start_mount "$store" "$mnt" staging=512M
check "after all was killed"
retry 20 sh -c "[ -z \"\$(ls $store/.cairn/*/tmp)\" ]" || die "left in tmp: $(ls -l "$store"/.cairn/*/tmp)"

# An appender is never told an error, and what the store shows is what it had closed, whatever is killed and when.
# Lines are numbered: the store has the first so many, whole, and at the end all that were closed. Every tenth time
# another writer comes, which changes a byte that is sealed already (the first of the file).
cat >"$TMP/appender" <<'E'
import os, random, sys
log, told, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(seed)
done = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = int(sys.argv[4])
while not os.path.exists(told + ".stop"):
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"%09d\n" % n)
    if random.random() < 0.02:
        os.fsync(fd)
    os.close(fd)
    n += 1
    os.write(done, b"%09d\n" % n)
    if random.random() < 0.02:
        os.mkdir(os.path.dirname(log) + "/d%d" % n)
    if random.random() < 0.02:
        fd = os.open(log, os.O_RDWR)
        os.pwrite(fd, b"%d" % random.randrange(10), 0)
        os.close(fd)
E
# The store's file: numbered lines up to one; prints how many. cat, for cp refuses a file that is replaced between its
# stat and its open.
lines()
{
	[ -e "$store/lines" ] || { echo 0; return; }
	cat "$store/lines" >"$TMP/is" && awk -v size="$(stat -c %s "$TMP/is")" '
		NR > 1 && $0 + 0 != NR - 1 { print "line " NR ": " $0; bad = 1; exit }
		END { if (!bad && size != NR * 10) { print "cut: " size; bad = 1 } if (!bad) print NR; exit bad }' "$TMP/is"
}
printf '%09d\n' 0 >"$mnt/lines"
wait_durable "$mnt"
next=1
for round in 1 2 3; do
	rm -f "$TMP/told" "$TMP/told.stop"
	python3 "$TMP/appender" "$mnt/lines" "$TMP/told" "$round" "$next" 2>"$TMP/appender.err" &
	appender=$!
	for i in 1 2 3; do	# five deaths in ten seconds would end the mount
		sleep "0.$((RANDOM % 7 + 2))"
		n=$(lines) || die "round $round, kill $i: the store shows $n"
		kill -KILL "$(worker_pid "$mnt")"
	done
	sleep "0.$((RANDOM % 7 + 2))"
	kill -0 $appender || die "round $round: the appender ended: $(cat "$TMP/appender.err")"
	if [ $round = 2 ]; then
		kill_mount "$mnt"	# all of it; the appender gets an error
		wait $appender || :
		n=$(lines) || die "killed: the store shows $n"
		start_mount "$store" "$mnt" staging=512M
	else
		touch "$TMP/told.stop"
		wait $appender || die "round $round: $(cat "$TMP/appender.err")"
	fi
	wait_durable "$mnt"
	told=$(tail -n1 "$TMP/told" | sed 's/^0*//')
	n=$(lines) || die "round $round: the store shows $n"
	note "round $round: $((told - next)) appended, $((n - next)) in the store"
	[ "$n" -ge "$told" ] || die "round $round: $told were closed, the store has $n"
	[ "$n" -le $((told + 1)) ] || die "round $round: $told were closed, the store has $n"
	"$BUILD/cairn" verify -q "$mnt/lines" || die "round $round: verify"
	next=$n
	[ $round != 1 ] || sleep 10	# or five deaths in ten seconds end the mount; round 2 ends with a new keeper
done
retry 20 sh -c "[ -z \"\$(ls $store/.cairn/*/tmp)\" ]" || die "left in tmp: $(ls -l "$store"/.cairn/*/tmp)"

# the power goes: what was fsynced is there
for i in 1 2 3; do
	append $i
	python3 -c 'import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(fd, b"fsynced")
os.fsync(fd)
os.close(fd)' "$mnt/log" || die "fsync"
	printf fsynced >>"$TMP/want"
done
kill_mount "$mnt"
power_cut disk
remount_disk disk
cmp "$TMP/want" "$store/log" || die "after a power cut the store has other bytes"
start_mount "$store" "$mnt" staging=512M
check "after a power cut"
stop_mount "$mnt"

# where the store shares nothing
make_disk plain ext4 512M
store=$TMP/plain/store
start_mount "$store" "$mnt" staging=512M
cp "$TMP/want" "$mnt/log"
wait_durable "$mnt"
notices=$(status_field "$mnt" notices)
for i in 1 2 3; do append $i; overwrite $i $((i << 20)); done
check ext4
[ "$(unchanged)" = 0 ] || die "ext4: unchanged"
[ "$(status_field "$mnt" notices)" = "$notices" ] || die "ext4: notices: $(status_field "$mnt" notices)"
stop_mount "$mnt"
cmp "$TMP/want" "$store/log" || die "ext4: other bytes"
