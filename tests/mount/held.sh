#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# An incomplete checkpoint of several nodes is never published by itself: not after commit_wait, not
# when staging is full, not after a kill. Meanwhile what is new passes it, what destroys waits.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare

assets=$LIB_TOP/tests/assets/dcp s=$TMP/store a=$TMP/a b=$TMP/b
opts=staging=64M,pool=0,commit_wait=1
relay=; [ "$MODE" != relay ] || relay=,nopassthrough

mount_b()
{
	mkdir -p "$b" "$TMP/staging-b"
	# shellcheck disable=SC2016
	unshare --uts sh -c 'hostname node-b && exec "$0" "$1" "$2" -o "$3"' "$BUILD/cairnfs" "$s" "$b" \
		"staging=64M,pool=0,staging_dir=$TMP/staging-b$relay" || die "node b does not mount"
	LIB_STORE[$b]=$s
	LIB_KEEPER[$b]=$(keeper_pid "$b")
}

held() { status_field "$a" held; }
is_late() { [ "$(status_field "$a" holds)" != null ] && [ "$(status_field "$a" holds.late)" = true ]; }

# Node a writes its shard and, last, the .metadata of both.
save_a()
{
	mkdir -p "$a/$1"
	cp "$assets/__0_0.distcp" "$a/$1"
	cp "$assets/.metadata" "$a/$1/.metadata.tmp"
	mv "$a/$1/.metadata.tmp" "$a/$1/.metadata"
}

fsync() { within 60 python3 -c 'import os, sys; os.fsync(os.open(sys.argv[1], os.O_RDONLY))' "$1" || die "fsync of $1"; }

not_published() { [ ! -e "$s/step-1/.metadata" ] || die "an incomplete checkpoint is in the store $1"; }

# What node a's mount has, the store has not yet, because it would destroy something.
what_waits()
{
	[ -e "$s/old/removed" ] && [ ! -e "$a/old/removed" ] || die "a removal passed $1"
	[ "$(cat "$s/old/written")" = old ] && [ "$(cat "$a/old/written")" = new ] || die "a new version passed $1"
	[ "$(cat "$s/old/replaced")" = old ] && [ "$(cat "$a/old/replaced")" = new ] || die "a replacement passed $1"
	[ -e "$s/old/moved" ] && [ -e "$a/old/elsewhere" ] || die "a rename passed $1"
	[ -d "$s/old/empty" ] && [ ! -e "$a/old/empty" ] || die "a rmdir passed $1"
	[ ! -e "$s/step-1/done" ] && [ -e "$a/step-1/done" ] || die "a name in the checkpoint's tree passed $1"
	cmp "$a/old/large" "$TMP/large" && [ "$(stat -c %s "$s/old/large")" = 3 ] || die "a large version passed $1"
}

start_mount "$s" "$a" $opts
mount_b
mkdir -p "$a/old/empty"
for i in removed written replaced moved; do echo old >"$a/old/$i"; done
echo 12 >"$a/old/large"
head -c 20M /dev/urandom >"$TMP/large"
wait_durable "$a"

save_a step-1
retry 20 eval '[ "$(held)" != null ]' || die "nothing is held"
rm "$a/old/removed"
echo new >"$a/old/written"
echo new >"$a/old/fresh"
mv "$a/old/fresh" "$a/old/replaced"
mv "$a/old/moved" "$a/old/elsewhere"
rmdir "$a/old/empty"
echo done >"$a/step-1/done"
cp "$TMP/large" "$a/old/large"

# New files pass, with all that makes them: a rename into place, attributes, another version.
mkdir -p "$a/new/dir"
head -c 1M /dev/urandom >"$a/new/dir/tmp"
fsync "$a/new/dir/tmp"
mv "$a/new/dir/tmp" "$a/new/dir/file"
fsync "$a/new/dir/file"
chmod 600 "$a/new/dir/file"
echo more >>"$a/new/dir/file"
ln "$a/new/dir/file" "$a/new/link"
ln -s dir/file "$a/new/symlink"
touch -d 2001-01-01 "$a/new/dir/file"
mv "$a/new/dir" "$a/new/renamed"
fsync "$a/new/renamed/file"
fsync "$a/new"
wait_durable "$a/new"
same_tree "$a/new" "$s/new" || die "new files differ in the store"
not_published "at once"
what_waits "at once"
# Three times as much as staging has: it goes through, and what is durable is evicted.
for i in 1 2 3 4 5 6 7 8; do
	head -c 24M /dev/urandom >"$a/new/bulk-$i"
	fsync "$a/new/bulk-$i"
done
wait_durable "$a/new"
same_tree "$a/new" "$s/new" || die "new files differ in the store"

# commit_wait is over: that is told, and it still waits.
retry 60 is_late || die "late is not told: $(cat "$a/.cairn/status")"
[ "$(metric "$a" held_late)" = 1 ] || die "metrics: $(metric "$a" held_late)"
not_published "after commit_wait, with staging full"
what_waits "after commit_wait"
"$BUILD/cairn" wait -q "$a/step-1" 2>"$TMP/err" && die "cairn wait says that it is durable"
waits="the checkpoint $a/step-1 waits for files of another host, for .*: __1_0.distcp is not in the store"
force="cairn hosts $a.*cairn commit --force $a/step-1\`"
has "$waits.*$force" "$TMP/err" || die "cairn wait: $(cat "$TMP/err")"
"$BUILD/cairn" status "$a" | tr -s ' \n' ' ' | has "$waits.*$force" || die "cairn status: $("$BUILD/cairn" status "$a")"
"$BUILD/cairn" wait -q "$a/old/written" 2>/dev/null && die "cairn wait says that what waits is durable"
"$BUILD/cairn" wait -q "$a/new" || die "cairn wait of what passed"
"$BUILD/cairn" wait -q "$a" 2>/dev/null && die "cairn wait of the root"

# A kill of the worker, then of everything, and a clean unmount: nothing is lost or done twice.
kill -KILL "$(worker_pid "$a")"
retry 20 eval '[ "$(held)" != null ]' || die "forgotten by the next worker"
echo after >"$a/new/after"
fsync "$a/new/after"
not_published "after a worker's death"
what_waits "after a worker's death"
same_tree "$a/new" "$s/new" || die "after a worker's death"
echo x >"$a/new/last"
kill_mount "$a"
start_mount "$s" "$a" $opts
not_published "by the next start"
what_waits "by the next start"
same_tree "$a/new" "$s/new" || die "after a start"
retry 20 eval '[ "$(held)" != null ]' || die "forgotten by the next start"
echo again >"$a/new/again"
fsync "$a/new/again"
"$BUILD/cairn" umount -q "$a" 2>"$TMP/err"
[ $? = 4 ] || die "cairn umount returns $?"
has "$waits.*[0-9]* changes behind it stay in staging for the next start.*$force" "$TMP/err" || die "cairn umount: $(cat "$TMP/err")"
not_published "by an unmount"
start_mount "$s" "$a" $opts
not_published "by the start after an unmount"
what_waits "by the start after an unmount"
! has conflict "$a/.cairn/status.json" || die "a conflict: $(status_field "$a" notices)"

# The missing shard makes it whole, and everything behind it goes on.
mkdir -p "$b/step-1"
cp "$assets/__1_0.distcp" "$b/step-1/"
wait_durable "$b"
wait_durable "$a"
[ "$(held)" = null ] && [ "$(status_field "$a" holds)" = null ] || die "still held: $(held)"
cmp "$s/step-1/.metadata" "$assets/.metadata" || die "not published"
same_tree "$a" "$s" || die "the store differs"
! has conflict "$a/.cairn/status.json" || die "a conflict: $(status_field "$a" notices)"

# A person's word publishes what is incomplete, and it is told.
"$BUILD/cairn" commit --force "$a/step-1" 2>/dev/null && die "nothing waits there"
"$BUILD/cairn" commit "$a/step-1" 2>/dev/null; [ $? = 2 ] || die "without --force"
save_a step-2
save_a step-3
retry 20 eval '[ "$(status_field "$a" holds)" != null ] && [ "$(status_field "$a" holds.names)" = 2 ]' ||
	die "not both are held: $(cat "$a/.cairn/status")"
"$BUILD/cairn" commit --force "$a/step-2" || die "cairn commit --force"
retry 20 test -e "$s/step-2/.metadata" || die "not published by request"
[ ! -e "$s/step-3/.metadata" ] || die "another one is published"
has 'step-2/.metadata is published by request, but __1_0.distcp is not in the store' "$a/.cairn/status.json" ||
	die "no notice: $(status_field "$a" notices)"
# Also before it is known that it waits.
save_a step-2b
"$BUILD/cairn" commit --force "$a/step-2b" || die "cairn commit --force, at once"
retry 20 test -e "$s/step-2b/.metadata" || die "not published by request at once"
# Removed, it is waited for no more, from that moment on.
for i in 3 4 5; do
	[ $i = 3 ] || save_a step-$i
	retry 60 is_late || die "step-$i is not late: $(cat "$a/.cairn/status")"
	rm -r "$a/step-$i"
	within 60 "$BUILD/cairn" wait -q "$a" 2>"$TMP/err" || die "step-$i is removed: cairn wait: $(cat "$TMP/err")"
done
save_a step-6
retry 60 is_late || die "step-6 is not late: $(cat "$a/.cairn/status")"
rm -r "$a/step-6"
within 60 "$BUILD/cairn" umount -q "$a" 2>"$TMP/err" || die "step-6 is removed: cairn umount: $? $(cat "$TMP/err")"
start_mount "$s" "$a" $opts
same_tree "$a" "$s" || die "the store differs at the end"
stop_mount "$a"
stop_mount "$b"
