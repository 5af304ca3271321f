#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 180
# set: rest
# Programs that know nothing of cairnfs, on the mount as on any disk. Those that are not installed are
# left out. What they made is in the store afterwards, attributes included.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

store=$TMP/store mnt=$TMP/mnt src=$TMP/src
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 HOME=$TMP
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

# program NAME TOOL function: in a directory of its own
program()
{
	local name=$1 tool=$2 rc=0
	command -v "$tool" >/dev/null || { note "no $tool: $name not tried"; return; }
	mkdir "$mnt/$name"
	(cd "$mnt/$name" && set -e && "do_$name") >"$TMP/$name.out" 2>&1 || rc=$?
	[ $rc = 0 ] || { cat "$TMP/$name.out"; die "$name: exit code $rc"; }
}

do_git()
{
	cp -r "$src" w
	cd w
	git init -q .
	git add .
	git commit -qm one
	for i in 1 2 3; do
		echo "$i" >>fs/more
		git add .
		git commit -qm "$i"
	done
	git gc -q --prune=now
	git repack -adq
	git clone -q --no-hardlinks . ../clone
	git fsck --full --strict
	cd ../clone
	git fsck --full --strict
	git rm -rq fs
	git commit -qm gone
	git reset -q --hard HEAD~1
	diff -r --no-dereference -x .git . ../w
}

insert() { sqlite3 -cmd '.timeout 60000' "$1" 'begin immediate; insert into t(b) select randomblob(300) from generate_series(1,20); commit;'; }

do_sqlite()
{
	local mode i j
	for mode in wal delete truncate; do
		sqlite3 $mode "pragma journal_mode=$mode; create table t(a integer primary key, b blob);"
		for i in 1 2 3; do
			(for j in 1 2 3; do insert $mode || exit 1; done; echo done >$mode.$i) &
		done
		wait
		[ "$(cat $mode.[123] | wc -l)" = 3 ]
		[ "$(sqlite3 $mode 'select count(*) from t; pragma integrity_check')" = "$(printf '180\nok')" ]
		sqlite3 $mode vacuum
	done
}

do_rsync()
{
	rsync -aHS "$src/" a/
	[ -z "$(rsync -aHnc --itemize-changes "$src/" a/ | grep -v '^\.d')" ]
	cp -a a b
	printf y | dd of=b/sparse bs=1 seek=2000000 conv=notrunc
	echo more >>b/fs/fs.h
	rsync -aH --inplace --no-whole-file b/ a/
	rm -r b/tests
	rsync -aH --delete --delay-updates b/ a/
	diff -r --no-dereference a b
	rsync -aH --link-dest="$PWD/a" b/ c/
	[ a/fs/fs.h -ef c/fs/fs.h ]
}

do_tar()
{
	tar -C "$src" -Scf t.tar .
	mkdir x
	tar -C x -xpf t.tar
	diff -r --no-dereference "$src" x
	[ x/fs/fs.h -ef x/hard ]
	tar -C x -df t.tar
	tar --remove-files -cf y.tar x
	[ ! -e x ]
}

do_files()
{
	cp -a "$src" a
	cp -a --sparse=always "$src" b
	cp -a --sparse=never "$src" c
	cp -al a d
	diff -r --no-dereference a b
	diff -r --no-dereference a c
	mv d/fs c/moved
	mv c "$TMP/away"
	mv "$TMP/away" c
	diff -r a/fs c/moved
	sed -i s/struct/STRUCT/ a/fs/fs.h
	sort -o a/fs/fs.h a/fs/fs.h
	install -D -m 4755 /bin/true i/true
	i/true
	dd if=/dev/urandom of=e bs=64K count=20 oflag=direct conv=fsync
	dd if=e of=f bs=4K iflag=direct oflag=dsync count=9
	cmp -n 36864 e f
	dd if=e of=g bs=1000 oflag=append conv=notrunc
	cmp e g
	split -b 100K e part.
	cat part.* | cmp - e
	find . -name 'part.*' -delete
	chmod -R a-w b
	rm -rf b
	du -s .
	df .
}

do_lock()
{
	local p i
	echo 0 >n
	for p in 1 2 3 4; do
		(for i in 1 2 3 4 5 6 7 8 9 10; do
			(flock 9; n=$(cat n); echo $((n + 1)) >n) 9>lock
		done) &
	done
	wait
	[ "$(cat n)" = 40 ]
}

do_fio()
{
	local e
	for e in psync libaio mmap; do
		fio --name=$e --size=4m --ioengine=$e --rw=randwrite --bs=4k,8k --fsync=64 --iodepth=8 --verify=crc32c --verify_fatal=1
	done
}

mkdir "$src"
cp -r "$LIB_TOP/fs" "$LIB_TOP/tests/mount" "$src"
mv "$src/mount" "$src/tests"
ln "$src/fs/fs.h" "$src/hard"
ln -s fs/fs.h "$src/soft"
truncate -s 4M "$src/sparse"
start_mount "$store" "$mnt"
program git git
program sqlite sqlite3
program rsync rsync
program tar tar
program files cp
program lock flock
program fio fio
"$BUILD/cairn" wait "$mnt" || die "wait"
cp -a "$mnt" "$TMP/copy"
end_mount "$mnt"
same_tree "$store" "$TMP/copy"
"$BUILD/cairn" verify "$store" >/dev/null || die "verify"
