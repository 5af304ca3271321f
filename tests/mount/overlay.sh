#!/bin/bash
# SPDX-License-Identifier: MIT
# What the store refuses to rename is refused at once (EXDEV), not after it was answered: a directory of overlayfs's lower
# layer, and any name from one filesystem mounted in the store to another. mv copies then; and nothing that was told durable
# is missing.
. "$(dirname "$0")/../lib/lib.sh"
need_root

s=$TMP/store m=$TMP/mnt cairn=$BUILD/cairn
mkdir -p "$s" "$TMP/layers" "$TMP/inside"
mount -t tmpfs -o size=64M layers "$TMP/layers" || die "cannot mount"
mkdir -p "$TMP/layers"/{lower/old/sub,lower/into,upper,work}
echo lower >"$TMP/layers/lower/old/sub/f"
mount -t overlay -o "lowerdir=$TMP/layers/lower,upperdir=$TMP/layers/upper,workdir=$TMP/layers/work,redirect_dir=off" \
	overlay "$s" || skip "no overlayfs here"
on_exit "umount -l '$s/inside' '$s' '$TMP/inside' '$TMP/layers' 2>/dev/null"

# Prints the error's name or "ok".
call() # NAME ARGUMENT...
{
	python3 -c 'import errno, os, sys
try:
    getattr(os, sys.argv[1])(*sys.argv[2:])
    print("ok")
except OSError as x:
    print(errno.errorcode[x.errno])' "$@"
}
sync_of()
{
	python3 -c 'import errno, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(fd, b"z")
try:
    os.fsync(fd)
    print("ok")
except OSError as x:
    print(errno.errorcode[x.errno])' "$1"
}
is() { [ "$1" = "$2" ] || die "$3: $1, not $2"; }

[ "$(call rename "$s/old" "$s/new")" = EXDEV ] || skip "this overlayfs renames directories of the lower layer"
start_mount "$s" "$m" staging=64M,pool=0
is "$(call rename "$m/old" "$m/new")" EXDEV "a directory of the lower layer"
is "$(call rename "$m/old/sub" "$m/into/sub")" EXDEV "one below"
[ "$(cat "$m/old/sub/f")" = lower ] && [ ! -e "$m/new" ] || die "$(ls "$m")"
mv "$m/old" "$m/new" || die "mv does not copy"
is "$(sync_of "$m/new/sub/g")" ok "fsync in the copy"
is "$(cat "$s/new/sub/f")$(cat "$s/new/sub/g")" lowerz "the copy in the store"

# A new one can be renamed: pending, in the store, and by the next mount.
mkdir "$m/made" "$m/made/below"
is "$(call rename "$m/made" "$m/made2")" ok "a new directory"
is "$(sync_of "$m/made2/below/h")" ok "fsync in it"
is "$(call rename "$m/made2" "$m/into/made3")" ok "one that is in the store"
is "$(sync_of "$m/into/made3/below/h")" ok "fsync in it"
wait_durable "$m"
stop_mount "$m"
is "$(cat "$s/into/made3/below/h")" z "the store"
start_mount "$s" "$m" staging=64M,pool=0
is "$(call rename "$m/into/made3" "$m/made4")" ok "one of an earlier mount"
is "$(call rename "$m/into" "$m/made5")" EXDEV "one of both layers"
is "$(call rename "$m/new/sub/f" "$m/f")" ok "a file"
wait_durable "$m"
is "$(cat "$s/f")$(cat "$s/made4/below/h")" lowerz "the store"
is "$(status_field "$m" refused)" null "refused"
stop_mount "$m"

# A filesystem that is mounted in the store.
mount -t tmpfs -o size=16M inside "$TMP/inside" && mkdir "$TMP/inside/dir" "$s/inside" && : >"$TMP/inside/file" &&
	mount --bind "$TMP/inside" "$s/inside" || die "cannot mount"
start_mount "$s" "$m" staging=64M,pool=0
is "$(call rename "$m/inside/dir" "$m/dir")" EXDEV "a directory out of it"
is "$(call rename "$m/inside/file" "$m/file")" EXDEV "a file out of it"
is "$(call rename "$m/made4" "$m/inside/made4")" EXDEV "a directory into it"
is "$(call rename "$m/f" "$m/inside/f")" EXDEV "a file into it"
is "$(call link "$m/f" "$m/inside/f")" EXDEV "a link into it"
is "$(call rename "$m/inside/dir" "$m/inside/dir2")" ok "within it"
is "$(call rename "$m/inside/file" "$m/inside/dir2/file2")" ok "a file within it"
wait_durable "$m"
[ -e "$TMP/inside/dir2/file2" ] || die "$(ls -R "$TMP/inside")"
"$cairn" umount -q "$m" || die "umount"
