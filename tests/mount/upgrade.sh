#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# A staging area as each released version leaves it when it is killed (tests/assets/staging-*, made by
# record_staging.sh) is taken over: all is in the store. One in a format of a later version is refused
# before anything of it is touched, and the message names that version.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool python3 sha256sum

run=$TMP/run
mkdir -p "$run"

drop_place()
{
	local dir
	for dir in huge small .; do
		umount -l "$run/$1/$dir" 2>/dev/null
	done
}

# As it lay there: a store with that id, and its staging in tmpfs.
lay_out()
{
	local asset=$1 s=$2 id dir
	id=$(cat "$asset/id")
	mkdir -p "$s/.cairn" "$run/$id"
	chmod 700 "$s/.cairn" "$run/$id"
	cp "$asset/id" "$s/.cairn/"
	[ ! -d "$asset/store" ] || cp -a "$asset/store/." "$s/"
	chown -R 0:0 "$s"
	on_exit "drop_place $id"
	mount -t tmpfs -o mode=0700 cairnfs-staging "$run/$id" || die "mount"
	for dir in huge small; do
		mkdir -m 700 "$run/$id/$dir"
		mount -t tmpfs -o mode=0700 cairnfs-staging "$run/$id/$dir" || die "mount"
	done
	cp -r "$asset/place/." "$run/$id/"
}

tree_of()
{
	(cd "$1" && find . -path ./.cairn -prune -o ! -name . -printf '%P %y %m %U:%G %n %l\n' | LC_ALL=C sort
	find . -path ./.cairn -prune -o -type f -exec sha256sum {} + | LC_ALL=C sort -k 2)
}

n=0
for asset in "$LIB_TOP"/tests/assets/staging-*; do
	v=${asset##*/staging-} s=$TMP/store-$n m=$TMP/m-$n
	lay_out "$asset" "$s"
	start_mount "$s" "$m" "staging=64M,staging_dir=$run"
	diff "$asset/tree" <(tree_of "$s") || die "the store after staging of $v was taken over"
	diff "$asset/tree" <(tree_of "$m") || die "the mount after staging of $v was taken over"
	[ -z "$(ls "$s/.cairn/lost+found")" ] || die "$v: lost+found: $(ls "$s/.cairn/lost+found")"
	[ "$(getfattr --only-values -n user.key "$s/dir/large" 2>/dev/null || echo value)" = value ] || die "xattr"
	echo more >"$m/more"
	stop_mount "$m"
	[ "$(cat "$s/more")" = more ] || die "$v: goes on"
	note "staging of $v"
	n=$((n + 1))
done
[ $n -gt 0 ] || die "no recorded staging"

# A later version's.
asset=$LIB_TOP/tests/assets/staging-0.1.0 s=$TMP/store-later m=$TMP/m-later
lay_out "$asset" "$s"
place=$run/$(cat "$asset/id")
python3 - "$place/head" <<'PY'
import sys
with open(sys.argv[1], "rb+") as f:
    f.seek(8)
    f.write((77).to_bytes(4, "little"))
    f.seek(80)
    f.write(b"9.8.7\0")
PY
sums() { (cd "$place" && find . -type f ! -name lock -exec sha256sum {} + | sort -k 2; cd "$s" && find . -type f -not -path './.cairn/*' | sort); }
before=$(sums)
mkdir "$m"
said=$("$BUILD/cairnfs" "$s" "$m" -o "staging=64M,staging_dir=$run" 2>&1 </dev/null) && die "it started: $said"
! is_mounted "$m" || die "it is mounted"
[[ $said == *"written by cairnfs 9.8.7"*"nothing was touched"* ]] || die "it said: $said"
diff <(echo "$before") <(sums) || die "something was touched"
[ -z "$(ls "$s/.cairn/lost+found" 2>/dev/null)" ] || die "lost+found: $(ls "$s/.cairn/lost+found")"
cp "$asset/place/head" "$place/head"	# with the version that knows it
start_mount "$s" "$m" "staging=64M,staging_dir=$run"
diff "$asset/tree" <(tree_of "$s") || die "the store after it was refused once"
stop_mount "$m"
