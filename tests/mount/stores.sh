#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 240
# Stores that are not like the disk of the other cases: a directory has always one link (btrfs,
# overlayfs), files cannot be given away, an inode has no space for an xattr. Bytes are published
# whatever else a store refuses, and it is told.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"
need_root

mnt=$TMP/mnt
notices() { python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))["notices"], sep="\n")' "$mnt/.cairn/status.json"; }

# A tree made, changed and removed, against a plain directory of the same filesystem.
on_this_disk()
{
	local seed=$2
	mkdir -p "$1/shadow"
	start_mount "$1/store" "$mnt" staging=64M
	helper oracle "$mnt" "$1/shadow" --store "$1/store" --direct --seed "$seed" --ops 1000 || die "oracle on $1"
	mkdir -p "$mnt/a/b/c" "$mnt/d"
	mv "$mnt/a/b" "$mnt/d/b"
	rm -r "$mnt/a" "$mnt/d"
	"$BUILD/cairn" wait "$mnt" || die "wait, $1"
	[ "$(stat -c %h "$mnt")" = "$(stat -c %h "$1/store")" ] || die "links of the root: $(stat -c %h "$mnt")"
	end_mount "$mnt"
}

if command -v mkfs.btrfs >/dev/null; then
	make_disk btrfs btrfs 256M
	on_this_disk "$TMP/btrfs" 31
else
	note "no mkfs.btrfs: btrfs not tried"
fi
mkdir -p "$TMP"/lower "$TMP"/upper "$TMP"/work "$TMP"/overlay
if mount -t overlay overlay -o "lowerdir=$TMP/lower,upperdir=$TMP/upper,workdir=$TMP/work" "$TMP/overlay"; then
	LIB_DISK[overlay]=1
	on_this_disk "$TMP/overlay" 32
else
	note "overlayfs not tried"
fi

# A store in memory: all of it works, and once at the mount it is told what that is worth.
mkdir "$TMP/memory"
mount -t tmpfs -o size=64M none "$TMP/memory"
LIB_DISK[memory]=1
start_mount "$TMP/memory/store" "$mnt" staging=64M
echo f >"$mnt/f"
wait_durable "$mnt"
[ "$(notices | grep -c 'do not survive a power cut')" = 1 ] || die "not told: $(notices)"
COLUMNS=999 "$BUILD/cairn" status "$mnt" | has 'do not survive a power cut' || die "status: $("$BUILD/cairn" status "$mnt")"
end_mount "$mnt"

# Root that may not give files away, as where a network filesystem squashes it. A file that says
# "run me as my owner" must not do so when its owner became another.
store=$TMP/squashed
mkdir -m 777 "$store"
start_mount "$store" "$mnt" staging=64M,allow_other
end_mount "$mnt"
before=$TMP/squash
cat >"$before" <<END
#!/bin/sh
exec setpriv --bounding-set -chown --inh-caps -chown "$BUILD/cairnfs" "\$@"
END
chmod 755 "$before" "$TMP"
"$before" "$store" "$mnt" -o "staging=64M,allow_other$([ "$MODE" = fast ] || echo ,nopassthrough)" || die "mount"
LIB_STORE[$mnt]=$store
LIB_KEEPER[$mnt]=$(keeper_pid "$mnt")
mkdir -m 777 "$mnt/u"
# shellcheck disable=SC2016
setpriv --reuid=65534 --regid=65534 --clear-groups sh -ec 'cd "$1"
	echo one >f; chmod 6755 f; echo two >g; chmod 4711 g; mv g h; chmod 6711 h; echo three >k' - "$mnt/u" ||
	die "writing as another user"
"$BUILD/cairn" wait "$mnt" || die "wait: $(cat "$mnt/.cairn/status")"
[ "$(cat "$store/u/f" "$store/u/h" "$store/u/k" | tr '\n' ' ')" = "one two three " ] || die "bytes"
[ -z "$(find "$store" -perm /6000)" ] || die "runs as another: $(find "$store" -perm /6000 -ls)"
[ "$(stat -c '%u %a' "$store/u/f")" = "0 755" ] || die "f is $(stat -c '%u %a' "$store/u/f")"
notices | grep 'does not let cairnfs set the owners of files' >/dev/null || die "not told: $(notices)"
"$BUILD/cairn" verify "$mnt" >/dev/null || die "verify"
end_mount "$mnt"

# Something beside the mount gave a file all the xattrs its inode has space for; the next version
# has no space for ours.
make_disk ext4 ext4 64M
store=$TMP/ext4/store
mkdir "$store"
echo old >"$store/f"
python3 - "$store/f" <<'END' || die "no xattr fits"
import os, sys
for n in range(4080, 500, -8):
    try:
        os.setxattr(sys.argv[1], "user.big", b"x" * n)
        sys.exit(0)
    except OSError:
        pass
sys.exit(1)
END
start_mount "$store" "$mnt" staging=64M
echo new >"$mnt/f"
echo more >"$mnt/g"
"$BUILD/cairn" wait --timeout 60 "$mnt" || die "wait: $(cat "$mnt/.cairn/status")"
[ "$(cat "$store/f" "$store/g" | tr '\n' ' ')" = "new more " ] || die "f and g: $(cat "$store/f" "$store/g")"
[ -z "$(xattr "$store/f" user.big)" ] || die "it has space for both: this proves nothing"
notices | grep 'no space for user.big of f' >/dev/null || die "not told: $(notices)"
stop_mount "$mnt"
