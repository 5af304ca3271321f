#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# Two hosts save into one directory again and again (DCP with one checkpoint_id): .metadata goes to the store only over
# shards of its own save. A shard of the save before has the same name and the same size.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool python3
need_tool getfattr

assets=$LIB_TOP/tests/assets/dcp s=$TMP/store a=$TMP/a b=$TMP/b
relay=; [ "$MODE" != relay ] || relay=,nopassthrough
mkdir -p "$TMP/run-a" "$TMP/run-b"

serve() { start_mount "$s" "$1" "staging=64M,pool=0,commit_wait=1,host=$2,staging_dir=$TMP/run-$2"; }
held() { status_field "$a" held; }
is_held() { [[ $(held) == *"$1"* ]]; }
# Of the .metadata in the store: which file it is. It gets another one with each publication.
published() { stat -c %i "$s/${1:-ckpt}/.metadata" 2>/dev/null || echo none; }
ino() { getfattr --absolute-names --only-values -n user.cairn.ino "$s/$1" 2>/dev/null; }
mark() { ino "$1" | sed -n 's/^[^ ]* //p'; } # it follows the number
count() { getfattr --absolute-names --only-values -n user.cairn.save "$s"/.cairn/.saves/* 2>/dev/null; }
notices() { status_field "$1" notices; }

# A shard of save $3, as large as that of any other save: shard MOUNT NAME SAVE [fsync]
shard()
{
	python3 - "$1" "$(stat -c %s "$assets/${1##*/}")" "$2" "${3:-}" <<'PY' || die "$1 of save $2"
import os, sys
path, size, save, sync = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path, "wb") as f:
    f.write((save.encode() + b" ") * size)
    f.truncate(size)
    f.flush()
    if sync:
        os.fsync(f.fileno())
PY
}
# commit MOUNT/DIR SAVE
commit()
{
	cp "$assets/.metadata" "$1/.metadata.tmp" || die "$1/.metadata.tmp of save $2"
	mv "$1/.metadata.tmp" "$1/.metadata" || die "$1/.metadata of save $2"
}
has_save() { head -c 4096 "$s/ckpt/__$1_0.distcp" | grep -q "^$2 "; }
whole()
{
	has_save 0 "$1" && has_save 1 "$1" || die "the store has not save $1 of both hosts when its .metadata is there"
}

# Alone: nothing is marked or counted.
serve "$a" a
shard "$a/ckpt/__0_0.distcp" 0
shard "$a/ckpt/__1_0.distcp" 0
commit "$a/ckpt" 0
wait_durable "$a"
[ ! -e "$s/.cairn/.saves" ] && [ -z "$(mark ckpt/__0_0.distcp)" ] || die "a host alone marks its shards"
rm -r "$a/ckpt"

# Save 1: the first one of both.
serve "$b" b
shard "$b/ckpt/__1_0.distcp" 1
shard "$a/ckpt/__0_0.distcp" 1
commit "$a/ckpt" 1
wait_durable "$b"
wait_durable "$a"
whole 1
[ "$(count)" = 1 ] || die "counted: $(count)"

# Save 2: the other host dies with its shard, before the store has it or after. It comes with the next start.
shard "$a/ckpt/__0_0.distcp" 2
old=$(published)
shard "$b/ckpt/__1_0.distcp" 2
kill_mount "$b"
commit "$a/ckpt" 2
serve "$b" b
wait_durable "$a"
[ "$(published)" != "$old" ] || die "save 2 is not published"
whole 2

# Save 3: host b lost its shard. The .metadata of save 3 waits over the shard of save 2, through kills.
shard "$a/ckpt/__0_0.distcp" 3
old=$(published)
commit "$a/ckpt" 3
retry 20 is_held '__1_0.distcp is of an earlier save, written by b' || die "held: $(held)"
[ "$(published)" = "$old" ] || die "a mixed checkpoint is published: the .metadata of save 3 over a shard of save 2"
kill -KILL "$(worker_pid "$a")"
retry 20 is_held '__1_0.distcp is of an earlier save' || die "after a kill of the worker: $(held)"
kill_mount "$a"
serve "$a" a
retry 20 is_held '__1_0.distcp is of an earlier save' || die "after a kill of all: $(held)"
[ "$(published)" = "$old" ] || die "a mixed checkpoint is published after a kill"

# Save 4 overtakes it: this host's shards pass, and its .metadata is the next one in the store.
shard "$b/ckpt/__1_0.distcp" 4
kill -KILL "$(worker_pid "$b")" # the mark is in its log
wait_durable "$b"
[[ $(mark ckpt/__1_0.distcp) == "3 "*" b "* ]] || die "the mark of save 4: $(mark ckpt/__1_0.distcp)"
retry 20 is_held '__1_0.distcp is of a later save, written by b' || die "held: $(held)"
[ "$(published)" = "$old" ] || die "a mixed checkpoint is published: the .metadata of save 3 over a shard of save 4"
shard "$a/ckpt/__0_0.distcp" 4 fsync # does not wait for the .metadata of save 3
has_save 0 4 || die "an fsync returned, and the store has not its bytes"
[ "$(published)" = "$old" ] || die "the .metadata of save 3 is published for an fsync of a shard"
commit "$a/ckpt" 4
wait_durable "$a"
[ "$(published)" != "$old" ] || die "save 4 is not published"
whole 4
[ "$(held)" = null ] || die "still held: $(held)"

# Saves 5 and 6 the same, with an fsync of .metadata.tmp: that needs the name under which save 5's is in the store.
shard "$a/ckpt/__0_0.distcp" 5
commit "$a/ckpt" 5
retry 20 is_held 'is of an earlier save' || die "held: $(held)"
shard "$b/ckpt/__1_0.distcp" 6 fsync
shard "$a/ckpt/__0_0.distcp" 6 fsync
old=$(published)
cp "$assets/.metadata" "$a/ckpt/.metadata.tmp"
within 60 sync "$a/ckpt/.metadata.tmp" || die "an fsync of .metadata.tmp waits for the .metadata of save 5"
[ "$(published)" = "$old" ] || die "the .metadata of save 5 is published for an fsync"
mv "$a/ckpt/.metadata.tmp" "$a/ckpt/.metadata"
wait_durable "$a"
whole 6
has 'ckpt/.metadata is not published: other hosts have saved over it, and this one is about to commit' \
	"$a/.cairn/status.json" || die "no notice: $(notices "$a")"

# The other host commits now, and this one's waiting .metadata ends.
shard "$a/ckpt/__0_0.distcp" 7
commit "$a/ckpt" 7
retry 20 is_held 'is of an earlier save' || die "held: $(held)"
shard "$b/ckpt/__1_0.distcp" 8
shard "$a/ckpt/__0_0.distcp" 8
commit "$b/ckpt" 8
wait_durable "$b"
whole 8
wait_durable "$a"
has 'ckpt/.metadata is not published: another host has committed a later save there' "$a/.cairn/status.json" ||
	die "no notice: $(notices "$a")"
retry 20 cmp -s "$a/ckpt/.metadata" "$s/ckpt/.metadata" || die "the mount does not show what the store has"

# An attempt of save 9 is broken off, and repeated: what it left does not count, whether the new shard is there or not.
shard "$b/ckpt/__1_0.distcp" aborted
wait_durable "$b"
shard "$b/ckpt/__1_0.distcp" again
kill_mount "$b"
shard "$a/ckpt/__0_0.distcp" again
old=$(published)
commit "$a/ckpt" again
if has_save 1 aborted; then
	retry 20 is_held '__1_0.distcp is written again by b' || die "held: $(held)"
	[ "$(published)" = "$old" ] || die "a mixed checkpoint is published over a shard of a broken-off attempt"
fi
serve "$b" b
wait_durable "$a"
whole again

# Without a mark only its size counts, and that is told.
shard "$b/ckpt/__1_0.distcp" 9
wait_durable "$b"
number=$(ino ckpt/__1_0.distcp)
setfattr -n user.cairn.ino -v "${number%% *}" "$s/ckpt/__1_0.distcp" || die "setfattr"
shard "$a/ckpt/__0_0.distcp" 9
old=$(published)
commit "$a/ckpt" 9
wait_durable "$a"
[ "$(published)" != "$old" ] || die "not published without a mark"
has 'which save __1_0.distcp is of is not known (ckpt/.metadata lists it)' "$a/.cairn/status.json" ||
	die "no notice: $(notices "$a")"

# A .metadata that is written again alone does not wait.
old=$(published)
commit "$a/ckpt" 9
wait_durable "$a"
[ "$(published)" != "$old" ] || die "written again, and not published: $(held)"
! has -i conflict "$a/.cairn/status.json" || die "a conflict: $(notices "$a")"
stop_mount "$a"
stop_mount "$b"
