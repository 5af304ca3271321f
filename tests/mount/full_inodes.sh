#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
#
# A store without a free inode: new files get ENOSPC, all that was accepted reaches the store, and
# log, status and metrics say that inodes are missing, not space. Removing files helps.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

need_root
need_tool mkfs.ext4
truncate -s 96M "$TMP/few.img"
mkfs.ext4 -q -F -N 1200 "$TMP/few.img" || die "mkfs.ext4"
mkdir "$TMP/few"
remount_disk few
store=$TMP/few/store m=$TMP/mnt
start_mount "$store" "$m" staging=32M
low() { grep -q 'the store.s filesystem has only [0-9]* free inodes; .*: remove files' "$store"/.cairn/*/log; }

mkdir "$m/d"
made=$(python3 - "$m/d" <<'EOF'
import errno, os, sys
made = []
for i in range(3000):
	path = "%s/%d" % (sys.argv[1], i)
	try:
		with open(path, "wb", buffering=0) as f:
			f.write(b"%d" % i)
	except OSError as e:
		if e.errno != errno.ENOSPC:
			raise
		break
	made.append(i)
print(len(made))
EOF
) || die "the creates: see above"
[ "$made" -gt 300 ] && [ "$made" -lt 1200 ] || die "$made files were accepted"
retry 30 low || die "the log does not say that inodes are missing: $(cat "$store"/.cairn/*/log)"
expect 0 "$cairn" status "$m"
says out 'free, only [0-9]* free inodes'
left=$(status_field "$m" space.free_inodes)
[ "$left" = "$(metric "$m" store_free_inodes)" ] || die "free_inodes: $left, $(metric "$m" store_free_inodes)"

rm -f "$m/d/$made"	# its close was refused
rm "$m"/d/1?? || die "rm"
wait_durable "$m" 60
for i in $(seq 0 99) $(seq 200 $((made - 1))); do
	[ "$(cat "$store/d/$i")" = "$i" ] || die "d/$i is not in the store"
done
again() { echo again >"$m/d/again"; } 2>/dev/null
retry 30 again || die "no new file after a hundred were removed"
wait_durable "$m" 60
stop_mount "$m"
