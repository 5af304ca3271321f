#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 180
#
# The store's filesystem goes away while versions are on their way: the server of a FUSE store is
# killed, or a local filesystem stops itself. What is staged stays readable and writable, the worker's
# death changes nothing, status says that the store is gone, and when it is mounted again everything
# goes on: nothing that was accepted is lost. Another store in its place is left alone.
. "$(dirname "$0")/../lib/lib.sh"

need_root
need_tool python3
mnt=$TMP/mnt
back=$TMP/back			# what the FUSE store shows

gone() { [ "$(status_field "$mnt" store_gone)" != null ]; }
not_gone() { ! gone; }

fuse_store()
{
	bindfs "$1" "$TMP/fuse" 7>&- || die "bindfs"
}

fuse_kill()
{
	local pid
	for pid in $(pgrep -x bindfs); do
		tr '\0' ' ' <"/proc/$pid/cmdline" | has " $TMP/fuse " && kill -KILL "$pid"
	done
	retry 10 dead_fuse || die "bindfs lives"
}
dead_fuse() { ! stat "$TMP/fuse" >/dev/null 2>&1; }

# Closed and not yet in the store, half written and open.
write_some()
{
	mkdir "$mnt/durable" && echo old >"$mnt/durable/f" || die "write"
	wait_durable "$mnt"
	exec 7>"$mnt/open"
	echo first >&7
	python3 - "$mnt" <<-'END' || die "write"
		import os, sys
		top = sys.argv[1]
		os.mkdir(top + "/step-1")
		for i in range(20):
		    with open(f"{top}/step-1/{i}.tmp", "wb") as f:
		        f.write(b"%03d" % i * 100000)
		    os.rename(f"{top}/step-1/{i}.tmp", f"{top}/step-1/{i}")
	END
}

# All that write_some wrote, as the mount or the store has it.
check_step()
{
	local i
	for ((i = 0; i < 20; i++)); do
		cmp -s <(python3 -c "import sys; sys.stdout.write('%03d' % $i * 100000)") "$1/step-1/$i" ||
			die "$2: step-1/$i: $(ls -l "$1/step-1/$i" 2>&1)"
	done
}

# $1: what makes the store go, $2: what brings it back, $3: its directory then
outage()
{
	local restarts
	write_some
	[ "$(status_field "$mnt" log.pending)" -gt 0 ] || die "nothing is on its way: this shows nothing"
	$1
	echo second >&7 || die "an open file cannot be written"
	retry 20 gone || die "status does not say that the store is gone: $(cat "$mnt/.cairn/status")"
	has "STORE GONE" "$mnt/.cairn/status" || die "status has no line"
	COLUMNS=999 "$BUILD/cairn" status "$mnt" | has "STORE GONE" || die "cairn status has no line"
	echo third >&7 || die "an open file cannot be written"
	[ "$(cat "$mnt/open")" = "$(printf 'first\nsecond\nthird')" ] || die "the open file cannot be read"
	[ "$(cat "$mnt/step-1/19" | head -c 6)" = 019019 ] || die "a staged file cannot be read"
	chmod 600 "$mnt/step-1/19" || die "a staged file cannot be changed"
	! cat "$mnt/durable/none" 2>"$TMP/said" || die "a file that is nowhere can be read"
	! has -E "No such file|not connected" "$TMP/said" || die "the store's state is told as $(cat "$TMP/said")"
	restarts=$(status_field "$mnt" restarts)
	kill -KILL "$(worker_pid "$mnt")"
	retry 20 test "$(status_field "$mnt" restarts)" -gt "$restarts" || die "no other worker"
	gone || die "the store is said to be there"
	is_mounted "$mnt" || die "the mount went with the worker"
	[ "$(cat "$mnt/open")" = "$(printf 'first\nsecond\nthird')" ] || die "the open file is lost"
	$2
	"$BUILD/cairn" retry "$mnt" >/dev/null || die "cairn retry"
	retry 30 not_gone || die "the store is not opened again: $(cat "$mnt/.cairn/status")"
	echo fourth >&7 || die "an open file cannot be written"
	exec 7>&-
	"$BUILD/cairn" wait -q "$mnt" || die "cairn wait: $?"
	check_step "$mnt" "the mount"
	check_step "$3" "the store"
	[ "$(cat "$3/open")" = "$(printf 'first\nsecond\nthird\nfourth')" ] || die "the open file: $(cat "$3/open")"
	[ "$(cat "$mnt/durable/f")" = old ] || die "what was durable is lost"
	[ -z "$(ls "$3/.cairn/lost+found")" ] || die "lost+found: $(ls "$3/.cairn/lost+found")"
	stop_mount "$mnt"
}

# Every store operation takes its time: there is something on its way.
slow_mount()
{
	export CAIRNFS_FAULT=1:1:delay
	start_mount "$1" "$mnt" staging=64M
	unset CAIRNFS_FAULT
}

# ---- a FUSE store whose server is killed ----

other_then_back()
{
	umount -l "$TMP/fuse"
	mkdir -p "$TMP/else/x/.cairn"
	echo 0123456789abcdef0123456789abcdef >"$TMP/else/x/.cairn/id"
	fuse_store "$TMP/else"
	"$BUILD/cairn" retry "$mnt" >/dev/null
	retry 10 has "another store" "$mnt/.cairn/status.json" || die "another store is not told"
	gone || die "another store is taken for ours"
	[ "$(ls -A "$TMP/else/x")" = .cairn ] || die "another store was written to: $(ls -A "$TMP/else/x")"
	umount "$TMP/fuse"
	chmod 770 "$back/x/.cairn" # it is back, and refused: others may change it
	fuse_store "$back"
	retry 10 refusals || die "it does not say why it is refused: $(status_field "$mnt" notices)"
	sleep 4 # it is tried again meanwhile
	[ "$(refusals)" = 1 ] || die "said $(refusals) times: $(status_field "$mnt" notices)"
	[ "$(status_field "$mnt" store_gone.error)" = "Operation not permitted" ] || die "status: $(status_field "$mnt" store_gone)"
	chmod 700 "$back/x/.cairn"
}
refusals() { status_field "$mnt" notices | tr ',' '\n' | grep -c "cannot be opened again"; }

fuse_case()
{
	command -v bindfs >/dev/null || { note "no bindfs here: no FUSE store"; return; }
	mkdir -p "$back/x" "$TMP/fuse"
	on_exit 'umount -l "$TMP/fuse" 2>/dev/null'
	fuse_store "$back"
	slow_mount "$TMP/fuse/x"
	outage fuse_kill other_then_back "$back/x"
	umount "$TMP/fuse"
}

# ---- a filesystem that stops itself ----

stop_disk() { helper godown "$TMP/disk" || skip "godown"; }

# What an administrator does. The old filesystem must go with its mount, else this mounts it again.
mount_disk_again()
{
	umount -l "$TMP/disk"
	disk_left disk
	remount_disk disk
}

disk_case()
{
	make_disk disk "$1" 400M
	slow_mount "$TMP/disk/x"
	outage stop_disk mount_disk_again "$TMP/disk/x"
	umount "$TMP/disk"
	unset "LIB_DISK[disk]"
}

fuse_case
disk_case xfs
disk_case ext4
