#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# cairn tier with a directory: push from a mount, from a store and from any directory, ls, verify; what it refuses.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

t=$TMP/tier
key()	# key KEY...: of the JSON in out
{
	python3 -c 'import json, sys
v = json.load(open(sys.argv[1], encoding="utf-8"))
for k in sys.argv[2:]:
    v = v[int(k)] if isinstance(v, list) else v[k]
print(v)' "$TMP/out" "$@"
}

expect 2 "$cairn" tier
expect 2 "$cairn" tier frobnicate
expect 2 "$cairn" tier push "$TMP"
expect 2 "$cairn" tier push "$TMP" "$t"
says err "$t: No such file"		# it may be a filesystem that is not mounted: it is not made
mkdir "$TMP/alone"
cp "$cairn" "$TMP/alone"	# beside it is no cairn-tier
expect 2 "$TMP/alone/cairn" tier push "$TMP" s3://bucket/prefix
says err 'no S3 client'
expect 2 "$cairn" tier push "$TMP/missing" "$TMP"
mkdir "$t"
expect 2 "$cairn" tier ls "$t"
says err 'not a tier'
expect 2 "$cairn" tier push "$TMP" "$t" ../x
expect 2 "$cairn" tier push "$TMP" "$t"
says err 'in the store'
[ -z "$(ls -A "$t")" ] || die "a refused push left $(ls -A "$t")"

# From a mount: what is durable.
start_mount "$s" "$m"
mkdir -p "$m/run/notes"
chmod 700 "$m/run"
for i in 9 10 11; do
	cp -r "$assets/dcp" "$m/run/step-$i"
done
rm "$m/run/step-11/__1_0.distcp"
chmod 600 "$m/run/step-9/__0_0.distcp"
cp "$assets/torch_save/model.pt" "$m/run/last.ckpt"
exec 8>>"$m/run/step-10/__0_0.distcp"
wait_durable "$m/run/step-9"
wait_durable "$m/run/last.ckpt"
wait_durable "$m/run/step-11"
expect 0 "$cairn" tier push "$m" "$t"
says out '^sent     run/step-9  3 files, '
says out '^sent     run/last.ckpt  1 file, '
says err 'step-10: writing: .*; not sent'
says err 'step-11: .*__1_0.distcp is missing; not sent'
[ ! -e "$t/run/step-10" ] && [ ! -e "$t/run/step-11" ] || die "what is not complete was sent"
same_tree "$m/run/step-9" "$t/run/step-9"
cmp "$m/run/last.ckpt" "$t/run/last.ckpt" || die "last.ckpt"
[ "$(stat -c %a "$t/run")" = 700 ] || die "the directory is open to others in the tier"
expect 1 "$cairn" tier push "$m" "$t" run/step-10
expect 1 "$cairn" tier push "$m" "$t" run/step-9 run/nothing
says err 'run/nothing: no checkpoint there'
exec 8>&-
wait_durable "$m"
expect 0 "$cairn" tier push --json "$m" "$t" "$m/run/step-10/" run/step-9
[ "$(key sent) $(key there) $(key failed)" = "1 1 0" ] || die "push: $(cat "$TMP/out")"
[ "$(key checkpoints 1 path) $(key checkpoints 1 action) $(key checkpoints 1 files)" = "run/step-10 sent 3" ] ||
	die "not the oldest first: $(cat "$TMP/out")"
# a copy that was damaged at its size
size=$(stat -c %s "$t/run/step-9/__0_0.distcp")
head -c "$size" /dev/zero >"$t/run/step-9/__0_0.distcp"
touch -d '2001-01-01' "$t/run/step-9/__0_0.distcp"
expect 0 "$cairn" tier push "$m" "$t" run/step-9
says out '^sent     run/step-9'
cmp "$m/run/step-9/__0_0.distcp" "$t/run/step-9/__0_0.distcp" || die "the damaged copy stayed"
expect 2 "$cairn" tier push "$m" "$s"
says err 'a store of cairnfs'
stop_mount "$m"

# The same from the store; nothing is sent again, and only what changed is.
expect 0 "$cairn" tier push --json "$s" "$t"
[ "$(key sent_bytes)" = 0 ] || die "sent again: $(cat "$TMP/out")"
expect 0 "$cairn" tier ls "$t"
says out '^complete  run/step-9  dcp, step 9, 3 files, '
[ "$(wc -l <"$TMP/out")" = 3 ] || die "ls: $(cat "$TMP/out")"
expect 0 "$cairn" tier verify "$t"
says out '^7 ok, 0 missing, 0 mismatched, 0 unreadable'
touch "$s/run/step-9/__0_0.distcp"			# the same bytes
expect 0 "$cairn" tier push --json "$s" "$t"
[ "$(key sent) $(key sent_bytes)" = "1 0" ] || die "touch: $(cat "$TMP/out")"
expect 0 "$cairn" tier push --json "$s" "$t"
[ "$(key sent)" = 0 ] || die "touch, again: $(cat "$TMP/out")"

# Bytes that are not those that were persisted are not sent; others are.
mkdir "$TMP/tier2"
printf X | dd of="$s/run/step-9/__1_0.distcp" bs=1 seek=5000 conv=notrunc status=none
expect 1 "$cairn" tier push "$s" "$TMP/tier2"
says err 'step-9/__1_0.distcp: its bytes are not those that were persisted'
says out '^sent     run/step-10'
[ -e "$TMP/tier2/run/step-9/.metadata" ] && die "a bad checkpoint is committed"
expect 0 "$cairn" tier ls "$TMP/tier2"
says out '^partial   run/step-9$'
says out '^complete  run/step-10 '

# Damage in the tier is found, and mended by the next push once the file is removed.
printf X | dd of="$t/run/step-10/__1_0.distcp" bs=1 seek=5000 conv=notrunc status=none
rm "$t/run/last.ckpt"
expect 1 "$cairn" tier verify "$t"
says out '^mismatch    run/step-10/__1_0.distcp: expected xxh3:'
says out '^missing     run/last.ckpt: '
says out '^5 ok, 1 missing, 1 mismatched, 0 unreadable'
expect 0 "$cairn" tier verify "$t" run/step-9
expect 1 "$cairn" tier verify "$t" run/step-7
expect 1 "$cairn" tier ls --json "$t"
[ "$(key checkpoints 0 path) $(key checkpoints 0 state) $(key checkpoints 0 why)" = "run/last.ckpt damaged run/last.ckpt" ] ||
	die "ls: $(cat "$TMP/out")"
expect 1 "$cairn" tier verify --json "$t"
[ "$(key ok) $(key missing) $(key mismatch) $(key files 0 result)" = "5 1 1 missing" ] || die "verify: $(cat "$TMP/out")"
rm "$t/run/step-10/__1_0.distcp"
expect 0 "$cairn" tier push "$s" "$t" run/step-10 run/last.ckpt
expect 0 "$cairn" tier verify "$t"
expect 0 "$cairn" tier ls "$t"
says out '^complete  run/step-10 .*generation 2'
echo '{"version": 1, "path":' >"$t/.cairn/manifests/run/step-10/manifest.json"
expect 1 "$cairn" tier verify "$t"
says out '^unreadable  run/step-10: its manifest is damaged'
expect 0 "$cairn" tier push "$s" "$t" run/step-10
expect 0 "$cairn" tier verify "$t"

# Files that no push made are not overwritten; those with the same bytes are taken as they are.
mkdir -p "$TMP/plain/a" "$TMP/tier3/a"
cp -r "$assets/dcp" "$TMP/plain/a/step-1"
cp -r "$assets/dcp" "$TMP/plain/a/step-2"
cp -r "$assets/dcp" "$TMP/tier3/a"
mv "$TMP/tier3/a/dcp" "$TMP/tier3/a/step-1"
echo mine >"$TMP/tier3/a/step-1/__0_0.distcp"
expect 1 "$cairn" tier push "$TMP/plain" "$TMP/tier3"
says err 'tier3/a/step-1/__0_0.distcp: in the way'
says out '^sent     a/step-2'
[ "$(cat "$TMP/tier3/a/step-1/__0_0.distcp")" = mine ] || die "a foreign file was overwritten"
cp "$assets/dcp/__0_0.distcp" "$TMP/tier3/a/step-1"
expect 0 "$cairn" tier push --json "$TMP/plain" "$TMP/tier3"
[ "$(key sent) $(key sent_bytes)" = "1 0" ] || die "adopted: $(cat "$TMP/out")"
ln -s /etc "$TMP/tier3/b"
mkdir "$TMP/plain/b"
cp -r "$assets/dcp" "$TMP/plain/b/step-1"
expect 1 "$cairn" tier push "$TMP/plain" "$TMP/tier3"
says err 'tier3/b/step-1/.*: Too many levels of symbolic links'
rm -r "$TMP/plain/b" "$TMP/tier3/b"

# Names of any bytes, and directories below.
odd=$TMP/plain/$'c\n\xff'/step-1
mkdir -p "$odd"
cp -r "$assets/torchsnapshot/." "$odd"
expect 0 "$cairn" tier push "$TMP/plain" "$TMP/tier3"
same_tree "$odd" "$TMP/tier3/$(basename "$(dirname "$odd")")/step-1"
expect 0 "$cairn" tier verify "$TMP/tier3"
expect 0 "$cairn" tier push --json "$TMP/plain" "$TMP/tier3"
[ "$(key sent)" = 0 ] || die "names: $(cat "$TMP/out")"

# Back into an empty store, through its mount; what is there is not fetched again.
mkdir "$TMP/new"
start_mount "$TMP/new" "$TMP/back"
expect 2 "$cairn" tier fetch "$TMP/missing" "$TMP/back"
expect 2 "$cairn" tier fetch "$TMP/plain" "$TMP/back"
says err 'not a tier'
expect 2 "$cairn" tier push --latest "$s" "$t"
expect 1 "$cairn" tier fetch "$t" "$TMP/back" run/step-7
says err 'run/step-7: no complete checkpoint in this tier'
expect 1 "$cairn" tier fetch "$t" "$TMP/new"
says err 'a cairnfs serves this store'
expect 0 "$cairn" tier fetch --latest "$t" "$TMP/back"
says out '^fetched  run/last.ckpt'			# by time: the other ones have a step, and are older
expect 0 "$cairn" tier fetch --json "$t" "$TMP/back"
[ "$(key fetched) $(key there) $(key failed)" = "2 1 0" ] || die "fetch: $(cat "$TMP/out")"
[ "$(state "$TMP/back/run")" = durable ] || die "fetched, and not durable"
same_tree "$t/run" "$TMP/back/run"
[ "$("$cairn" latest "$TMP/back")" = "$TMP/back/run/last.ckpt" ] || die "latest is $("$cairn" latest "$TMP/back")"
expect 0 "$cairn" tier push --json "$TMP/back" "$t"
[ "$(key sent)" = 0 ] || die "what was fetched is sent again: $(cat "$TMP/out")"
expect 0 "$cairn" wait "$TMP/back"
expect 0 "$cairn" verify "$TMP/back"
stop_mount "$TMP/back"
same_tree "$t/run" "$TMP/new/run"

# Into any directory: damage is not let in, and what is there is not replaced.
mkdir "$TMP/dir"
cp -a "$t" "$TMP/tier4"
printf X | dd of="$TMP/tier4/run/step-10/__1_0.distcp" bs=1 seek=5000 conv=notrunc status=none
expect 1 "$cairn" tier fetch "$TMP/tier4" "$TMP/dir"
says err 'tier4/run/step-10/__1_0.distcp: not the bytes that its manifest lists'
says out '^fetched  run/step-9'
[ ! -e "$TMP/dir/run/step-10" ] || die "a damaged checkpoint has its name"
[ "$("$cairn" tier fetch "$t" "$TMP/dir" run/step-10)" ] || die "from the good tier"
same_tree "$t/run" "$TMP/dir/run"
python3 -c 'import os, sys
sys.exit(not os.getxattr(sys.argv[1], "user.cairn.checksum").startswith(b"xxh3:"))' "$TMP/dir/run/step-9/__0_0.distcp" ||
	die "what was fetched has no checksum"
echo mine >"$TMP/dir/run/step-9/__0_0.distcp"
rm "$TMP/dir/run/step-9/.metadata"
expect 1 "$cairn" tier fetch "$t" "$TMP/dir"
says err 'dir/run/step-9/__0_0.distcp: the store has another file there'
[ "$(cat "$TMP/dir/run/step-9/__0_0.distcp")" = mine ] || die "a file of the store was replaced"
rm -r "$TMP/dir/run/step-9"
mkdir "$TMP/dir/run/.cairn-fetch.step-9"		# another fetch writes it
exec 9<"$TMP/dir/run/.cairn-fetch.step-9"
flock 9
expect 1 "$cairn" tier fetch "$t" "$TMP/dir"
says err 'run/step-9: another process fetches it'
exec 9<&-
expect 0 "$cairn" tier fetch "$t" "$TMP/dir"
same_tree "$t/run" "$TMP/dir/run"

# A manifest that names files elsewhere.
mkdir "$TMP/dir2"
for path in ../../evil run/step-1/../../../evil /evil run/step-10; do
	sed "s|run/step-10/__0_0.distcp|$path|" "$t/.cairn/manifests/run/step-10/manifest.json" \
		>"$TMP/tier4/.cairn/manifests/run/step-10/manifest.json"
	expect 1 "$cairn" tier fetch "$TMP/tier4" "$TMP/dir2" run/step-10
	says err 'step-10: its manifest: damaged'
done

# Checksums of a large file's ranges: those of its pieces as files. A file that was in the tier already has them, too; a
# manifest without them, of an earlier version, is as good, and one with too few is damaged.
mkdir -p "$TMP/large/step-1" "$TMP/tier5"
cp "$assets"/dcp/* "$assets"/dcp/.metadata "$TMP/large/step-1"
head -c 20000000 /dev/urandom >"$TMP/large/step-1/notes"
(cd "$TMP/large/step-1" && split -b 8M -d notes notes.)
large=$TMP/tier5/.cairn/manifests/step-1/manifest.json
has_ranges()
{
	python3 - "$large" <<'PY' || die "$1: $(cut -c 1-2000 "$large")"
import json, sys
f = {v["path"]: v for v in json.load(open(sys.argv[1], encoding="utf-8"))["files"]}
notes = f.pop("step-1/notes")
pieces = [f[f"step-1/notes.0{i}"]["checksum"].removeprefix("xxh3:") for i in range(3)]
assert notes["range_bytes"] == 8 << 20 and notes["ranges"] == "".join(pieces), notes
assert not any("ranges" in v for v in f.values()), f
PY
}
expect 0 "$cairn" tier push "$TMP/large" "$TMP/tier5"
has_ranges "ranges"
touch "$TMP/large/step-1/__0_0.distcp"
expect 0 "$cairn" tier push "$TMP/large" "$TMP/tier5"
has_ranges "the next push"
rm "$large"
expect 0 "$cairn" tier push "$TMP/large" "$TMP/tier5"
has_ranges "a file that was there"
mkdir "$TMP/dir3" "$TMP/dir4"
cp "$large" "$TMP/manifest"
sed -i 's/"ranges": "[0-9a-f]*"/"ranges": "00"/' "$large"
expect 1 "$cairn" tier fetch "$TMP/tier5" "$TMP/dir3"
says err 'step-1: its manifest: damaged'
sed 's/"range_bytes": [0-9]*,//; s/"ranges": "[0-9a-f]*",//' "$TMP/manifest" >"$large"
has '"range' "$large" && die "the manifest still has ranges: $(cat "$large")"
expect 0 "$cairn" tier fetch "$TMP/tier5" "$TMP/dir3"
same_tree "$TMP/large" "$TMP/dir3"
cp "$TMP/manifest" "$large"
expect 0 "$cairn" tier fetch "$TMP/tier5" "$TMP/dir4"
same_tree "$TMP/large" "$TMP/dir4"

# What killed processes of this host left is removed; not what a living one has, nor another host's, which may live.
host=$(hostname) tmp=$TMP/tier3/.cairn/tmp
mkdir "$tmp/$host.1" "$tmp/$host.2" "$tmp/other.1" "$tmp/other.2"
touch "$tmp/$host.1/0" "$tmp/$host.2/0" "$tmp/other.1/0" "$tmp/other.2/0"
touch -d '8 days ago' "$tmp/other.2"
exec 9<"$tmp/$host.2"
flock 9
rm "$TMP/tier3/a/step-1/__0_0.distcp"
expect 0 "$cairn" tier push "$TMP/plain" "$TMP/tier3"
[ "$(cd "$tmp" && echo *)" = "$host.2 other.1" ] || [ "$(cd "$tmp" && echo *)" = "other.1 $host.2" ] ||
	die "in tmp: $(ls "$tmp")"
exec 9<&-
rm -r "$tmp/$host.2" "$tmp/other.1"

# A full tier: what is there stays whole, and nothing half is left.
[ "$(id -u)" = 0 ] || exit 0
mkdir "$TMP/small"
mount -t tmpfs -o size=192k none "$TMP/small" || skip "no tmpfs here"
on_exit 'umount -l "$TMP/small" 2>/dev/null'
mkdir -p "$TMP/big/step-1"
cp "$assets"/dcp/* "$assets"/dcp/.metadata "$TMP/big/step-1"
head -c 60000 /dev/urandom >"$TMP/big/step-1/notes"
expect 0 "$cairn" tier push "$TMP/big" "$TMP/small"
head -c 61000 /dev/urandom >"$TMP/big/step-1/notes"
head -c 110000 /dev/urandom >"$TMP/big/step-1/notes2"
cp -r "$assets/dcp" "$TMP/big/step-2"
expect 1 "$cairn" tier push "$TMP/big" "$TMP/small"
says err 'small/step-1/notes2*: No space left on device; free space in the tier, then push again'
says out '^sent     step-2'
expect 0 "$cairn" tier verify "$TMP/small"
says out '^6 ok' # without notes, which changed: no commit file lists it, and the copy is whole without
[ -z "$(ls -A "$TMP/small/.cairn/tmp")" ] || die "unfinished files are left"
rm "$TMP/big/step-1/notes2"
expect 0 "$cairn" tier push "$TMP/big" "$TMP/small"
same_tree "$TMP/big" "$TMP/small"
