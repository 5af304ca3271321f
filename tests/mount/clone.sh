#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
#
# A copy of a durable file is a clone where the store has shared extents: its bytes are not written
# again. What is not equal, or not sound on the disk, is written.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool filefrag
make_disk disk xfs 800M
store=$TMP/disk/store mnt=$TMP/mnt cairn=$BUILD/cairn size=$((32 << 20))
loop=$(findmnt -no SOURCE "$TMP/disk")

whole_shared() { [ "$(filefrag -v "$1" | awk '$1 ~ /^[0-9]+:$/ && !/shared/' | wc -l)" = 0 ]; }
clones() { status_field "$mnt" dedup.clones; }
# After `cp` and the like: the copy is durable, and so many are clones by now.
wait_clones()
{
	wait_durable "$mnt"
	[ "$(clones)" = "$1" ] || die "$2: clones: $(status_field "$mnt" dedup), wanted $1"
}
same() { cmp "$1" "$2" || die "$2 differs from $1"; }
written() { sync -f "$TMP/disk"; awk '{ printf "%.0f", $7 * 512 }' "/sys/block/${loop#/dev/}/stat"; }
# copy FROM TO [what to do with the new descriptor, in Python]
copy()
{
	python3 - "$@" <<'END' || die "copy_file_range $1 $2"
import os, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
while os.copy_file_range(a, b, 1 << 30):
    pass
if len(sys.argv) > 3:
    exec(sys.argv[3])
os.close(b)
END
}

head -c $size /dev/urandom >"$TMP/weights"
head -c 300001 /dev/urandom >"$TMP/odd"		# its tail is no whole block
head -c 65536 /dev/urandom >"$TMP/small"

start_mount "$store" "$mnt" staging=256M
mkdir -p "$mnt/run/step-1" "$mnt/best"
cp "$TMP/weights" "$TMP/odd" "$TMP/small" "$mnt/run/step-1"
chmod 640 "$mnt/run/step-1/weights"
setfattr -n user.note -v old "$mnt/run/step-1/weights"
wait_clones 0 "new files"

# the same bytes, another owner, mode, time and xattr; and nothing of it was written
before=$(written)
cp "$mnt/run/step-1/weights" "$mnt/best/weights"
setfattr -n user.note -v new "$mnt/best/weights"
chown 12:34 "$mnt/best/weights"
touch -c -d @1000000002.123456789 "$mnt/best/weights"
wait_clones 1 "cp"
moved=$(($(written) - before))
note "$size bytes copied, $moved written"
[ "$moved" -lt $((size / 8)) ] || die "cp: $moved bytes were written"
whole_shared "$store/best/weights" || die "best/weights: $(filefrag -v "$store/best/weights")"
[ "$(stat -c '%a %u:%g %.9Y' "$store/best/weights")" = "640 12:34 1000000002.123456789" ] ||
	die "best/weights: $(stat "$store/best/weights")"
[ "$(xattr "$store/best/weights" user.note)" = new ] || die "xattr of the copy"
[ "$(xattr "$store/run/step-1/weights" user.note)" = old ] || die "xattr of the source"
[ "$(stat -c %a "$store/run/step-1/weights")" = 640 ] || die "the source: $(stat "$store/run/step-1/weights")"

cp -rp "$mnt/run/step-1" "$mnt/run/step-2"
wait_clones 4 "cp -r"
for f in weights odd small; do
	whole_shared "$store/run/step-2/$f" || die "step-2/$f: $(filefrag -v "$store/run/step-2/$f")"
done
copy "$mnt/run/step-1/weights" "$mnt/best/synced" 'os.fsync(b)'
wait_clones 5 "a copy that is fsynced before its close"
copy "$mnt/run/step-1/odd" "$mnt/best/odd"
copy "$mnt/run/step-1/odd" "$mnt/best/odd"	# over the first
wait_durable "$mnt"
same "$TMP/odd" "$store/best/odd"
grep -q "saved: .* as clones" "$mnt/.cairn/status" || die "status: $(cat "$mnt/.cairn/status")"
[ "$(metric "$mnt" dedup_clones_total)" = "$(clones)" ] || die "metrics"

# what is no copy in the end
n=$(clones)
copy "$mnt/run/step-1/weights" "$mnt/best/changed" 'os.pwrite(b, b"x", 20 << 20)'
copy "$mnt/run/step-1/weights" "$mnt/best/longer" 'os.write(b, b"x")'
copy "$mnt/run/step-1/weights" "$mnt/best/shorter" 'os.ftruncate(b, 100000)'
wait_clones "$n" "changed copies"
cp "$TMP/weights" "$TMP/changed"
printf x | dd of="$TMP/changed" bs=1 seek=$((20 << 20)) conv=notrunc status=none
same "$TMP/changed" "$store/best/changed"
[ "$(head -c $size "$store/best/longer" | cmp - "$TMP/weights" && tail -c 1 "$store/best/longer")" = x ] || die "longer"
cmp -n 100000 "$TMP/weights" "$store/best/shorter" || die "shorter"
[ "$(stat -c %s "$store/best/longer" "$store/best/shorter" | tr '\n' ' ')" = "$((size + 1)) 100000 " ] || die "sizes"

# the source goes, or becomes another, before the copy is persisted: the copy is what was copied
cp "$mnt/best/odd" "$mnt/best/odd2" && rm "$mnt/best/odd"
cp "$mnt/run/step-2/weights" "$mnt/best/weights2" && cp "$TMP/changed" "$mnt/run/step-2/weights"
mv "$mnt/best/weights2" "$mnt/best/weights3"
wait_durable "$mnt"
same "$TMP/odd" "$store/best/odd2"
same "$TMP/weights" "$store/best/weights3"
same "$TMP/changed" "$store/run/step-2/weights"

# another name costs nothing and is one file
before=$(written)
ln "$mnt/run/step-1/weights" "$mnt/best/name"
wait_durable "$mnt"
[ "$(stat -c '%i %h' "$store/best/name")" = "$(stat -c '%i 2' "$store/run/step-1/weights")" ] || die "ln"
[ $(($(written) - before)) -lt $((size / 8)) ] || die "ln: bytes were written"
# the kernel does not ask a FUSE filesystem
cp --reflink=always "$mnt/run/step-1/weights" "$mnt/best/always" 2>/dev/null && die "cp --reflink=always"
rm "$mnt/best/always"
wait_durable "$mnt"
same_tree "$mnt" "$store"
"$cairn" verify -q "$mnt" || die "verify"

# Rot. One block of the source changes on the disk under a cache that is sound: the copy gets
# what was read, in blocks of its own.
n=$(clones)
cat "$store/run/step-1/weights" >"$TMP/read"	# into the cache
block=$(filefrag -v "$store/run/step-1/weights" | awk '$1 == "0:" { sub(/\.\.$/, "", $4); print $4 + 5 }')
printf rot | dd of="$loop" bs=1 seek=$((block * 4096)) conv=notrunc status=none
blockdev --flushbufs "$loop"
same "$TMP/weights" "$mnt/run/step-1/weights"
cp "$mnt/run/step-1/weights" "$mnt/best/sound"
wait_clones "$n" "a rotten source"
"$cairn" verify -q "$mnt/best/sound" || die "the rot spread"
"$cairn" verify -q "$mnt/run/step-1/weights" >"$TMP/verify" 2>&1 && die "no rot was made"
# and one whose reader saw it: no more depends on these blocks
python3 -c 'import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)' "$store/run/step-1/weights"
cp "$mnt/run/step-1/weights" "$mnt/best/rotten"
wait_clones "$n" "a source that is not what its checksum says"
stop_mount "$mnt"

# not wanted
start_mount "$store" "$mnt" staging=256M,nodedup
cp "$mnt/best/sound" "$mnt/best/apart"
wait_clones 0 nodedup
whole_shared "$store/best/apart" && die "nodedup: shared"
same "$TMP/weights" "$store/best/apart"
stop_mount "$mnt"

# a store that cannot: nothing is told and nothing differs
make_disk plain ext4 200M
store=$TMP/plain/store
start_mount "$store" "$mnt" staging=256M
cp "$TMP/weights" "$mnt/a"
wait_durable "$mnt"
notices=$(status_field "$mnt" notices)
cp "$mnt/a" "$mnt/b"
cp "$mnt/a" "$mnt/c"
wait_clones 0 ext4
[ "$(status_field "$mnt" notices)" = "$notices" ] || die "ext4: notices: $(status_field "$mnt" notices)"
"$cairn" verify -q "$mnt" || die "ext4: verify"
stop_mount "$mnt"
same "$TMP/weights" "$store/b"
same "$TMP/weights" "$store/c"
[ -z "$(ls "$store"/.cairn/*/tmp)" ] || die "ext4: left in tmp/: $(ls "$store"/.cairn/*/tmp)"
