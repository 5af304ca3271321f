#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# timeout: 600
#
# Copies that are clones, cut at seeded instants: all processes killed (P5), or the power (P6). The
# store shows whole copies only (P2), the first so many of them (P1), and in the end each whose close
# (or, at a power cut, whose fsync) was answered. Their sources are removed meanwhile, in the order. A
# point counts if something was cloned and something that was answered was not in the store yet.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/crash.inc"

points=$(share 3 "${1:-}")
done_points=0 empty=0 clones=0 copies=150
make_disk disk xfs 800M

# Copies file after file of MNT/from to MNT/to, removes the source, and says on stdout what was answered.
copier()
{
	python3 - "$MNT" "$1" $copies <<'END'
import os, sys
mnt, sync, n = sys.argv[1], sys.argv[2] == "cut", int(sys.argv[3])
for i in range(n):
    source = f"{mnt}/from/{i:03}"
    a, b = os.open(source, os.O_RDONLY), os.open(f"{mnt}/to/{i:03}", os.O_WRONLY | os.O_CREAT)
    while os.copy_file_range(a, b, 1 << 30):
        pass
    if sync and i % 4 == 3:
        os.fsync(b)
    os.close(b)
    os.close(a)
    if not sync or i % 4 == 3:
        print("answered", i, flush=True)
    os.unlink(source)
END
}

so_far() { awk 'END { print NR ? $2 + 1 : 0 }' "$TMP/answered"; }

# Copies and sources in $1: whole, and a prefix. REPLY = number of copies
check_copies()
{
	local i there=0 ended=
	for ((i = 0; i < copies; i++)); do
		printf -v name %03d "$i"
		if [ ! -e "$1/to/$name" ]; then
			ended=1
			[ -e "$1/from/$name" ] || point_fail "$1: $name is gone, its copy is not there"
			continue
		fi
		[ -z "$ended" ] || point_fail "$1: $name is there, one before it is not"
		cmp "$TMP/from/$name" "$1/to/$name" || point_fail "$1/to/$name is not what was copied"
		there=$((there + 1))
	done
	REPLY=$there
}

clone_point()
{
	local how=kill store=$TMP/disk/store-$SEED answered there i
	[ $((SEED % 2)) = 0 ] || how='cut'
	rm -rf "$TMP/from"
	mkdir -p "$TMP/from"
	for ((i = 0; i < copies; i++)); do
		head -c $((RANDOM * 30 + 65536)) /dev/urandom >"$TMP/from/$(printf %03d "$i")"
	done
	crash_mount "$store"
	mkdir "$MNT/to"
	cp -r "$TMP/from" "$MNT"
	drain
	copier "$how" >"$TMP/answered" 2>"$TMP/copier" &
	LOAD=$!
	pick 50 800
	msleep "$REPLY"
	i=$(status_field "$MNT" dedup.clones)
	answered=$(so_far)
	[ $((SEED % 11)) != 7 ] || [ "$how" = kill ] || answered=0	# fsync=staged
	if [ "$how" = cut ]; then
		"$TOOL/godown" "$TMP/disk" || skip "no shutdown ioctl here"
	fi
	daemon_kill
	mount_drop
	kill -KILL "$LOAD" 2>/dev/null
	wait "$LOAD" 2>/dev/null
	LOAD=
	[ "$how" = cut ] || answered=$(so_far)
	if [ "$how" = cut ]; then
		lib_drop_staging "$STAGING"
		retry 20 umount "$TMP/disk" || point_fail "the cut filesystem cannot be unmounted"
		disk_left disk
		mount -o loop "$TMP/disk.img" "$TMP/disk" || point_fail "xfs does not mount again"
	fi
	check_copies "$store"
	there=$REPLY
	if [ "$how" = cut ] && [ "$there" -lt "$answered" ]; then
		point_fail "$answered were synced, $there are in the store"
	fi
	crash_mount "$store"
	drain
	clean_stop
	check_copies "$store"
	[ "$how" = cut ] || [ "$REPLY" -ge "$answered" ] ||
		point_fail "$answered were answered, $REPLY are in the store in the end"
	"$BUILD/cairn" verify -q "$store" || point_fail "verify"
	[ -z "$(ls "$store"/.cairn/*/tmp)" ] || point_fail "left in tmp/: $(ls -l "$store"/.cairn/*/tmp)"
	clones=$((clones + i))
	if [ "$i" -gt 0 ] && [ "$there" -lt $copies ]; then
		done_points=$((done_points + 1))
	else
		empty=$((empty + 1))
	fi
	rm -rf "$store"
}

for ((seed = CRASH_SEED; done_points < points; seed++)); do
	point_begin "$seed"
	clone_point "$seed"
	[ $empty -le $((done_points + 20)) ] || point_fail "nothing was cut short at $empty points"
done
note "$done_points points, half of them power cuts, $empty that came too early or too late; $clones clones seen before"
