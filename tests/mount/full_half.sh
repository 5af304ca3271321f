#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 120
#
# Several programs write one file after each other through one descriptor: the close of each is answered, and then the
# store is full. Half a file is never published, also if the worker or all of cairnfs dies.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"

MIB=1048576
part() { head -c $(($1 * MIB)) /dev/zero | tr '\0' "\\$(printf %03o "$2")"; }
same() { cmp <(part "$3" "$2") "$1" >/dev/null; }

# What was written through descriptor 3 is half of it; the first close was answered.
half() { part 4 "$2" >&3 || die "$1: the first part"; ! part 60 "$2" >&3 2>/dev/null || die "$1: 64 MiB went into 20 MiB"; }
is_failed()
{
	[ "$(state "$mnt/$1")" = failed ] || die "$2: state $(state "$mnt/$1")"
	case $1 in
	new*) [ ! -e "$store/$1" ] || die "$2: half of $1 is in the store" ;;
	*) same "$store/$1" 1 8 || die "$2: half of $1 replaced the version before it" ;;
	esac
}
# After its first part a program goes on with descriptor 3 until that fails, makes space, and writes `rest` bytes of what
# failed ("" = all of it) before its descriptor is closed.
full_then()
{
	leave_mib "$disk" 20
	exec 3>"$mnt/$1"
	part 4 6 >&3 || die "$1: the first part"
	python3 - "$disk/filler" "$2" <<-'END' || die "$1: full_then"
	import errno, os, sys, time
	block = b"\7" * (4 << 20)
	try:
	    for i in range(16):
	        left = block
	        while left:
	            left = left[os.write(3, left):]
	    sys.exit("64 MiB went into 20 MiB")
	except OSError as e:
	    if e.errno != errno.ENOSPC:
	        raise
	os.unlink(sys.argv[1])
	left = left[:int(sys.argv[2])] if sys.argv[2] else left
	while left:
	    try:
	        left = left[os.write(3, left):]
	    except OSError as e:
	        if e.errno != errno.ENOSPC:
	            raise
	        time.sleep(0.05)  # xfs frees the blocks a moment later
	END
	exec 3>&-
}
worker_is_new() { [ "$(worker_pid "$mnt")" != "$1" ]; }

round()
{
	local name pid found
	disk=$TMP/$1 store=$TMP/$1/store mnt=$TMP/mnt-$1
	make_disk "$1" "$1" 512M
	start_mount "$store" "$mnt" staging=256M
	part 8 1 >"$mnt/old" || die "the version before"
	part 8 1 >"$mnt/old-killed" || die "the version before"
	wait_durable "$mnt" 60
	leave_mib "$disk" 20

	for name in new old; do
		exec 3>"$mnt/$name"
		half "$name" 2
		[ ! -e "$store/$name" ] || same "$store/$name" 1 8 || die "$name: published before its last close"
		exec 3>&-
		is_failed $name "closed"
		pid=$(worker_pid "$mnt")
		kill -KILL "$pid"
		retry 30 worker_is_new "$pid" || die "no new worker"
		is_failed $name "closed, another worker"
		rm "$mnt/$name"
		[ $name = new ] || part 8 1 >"$mnt/$name"
		wait_durable "$mnt" 60
	done

	# the worker dies before the last close
	exec 3>"$mnt/new"
	half new 3
	pid=$(worker_pid "$mnt")
	kill -KILL "$pid"
	retry 30 worker_is_new "$pid" || die "no new worker"
	exec 3>&-
	is_failed new "another worker's close"
	rm "$mnt/new"
	wait_durable "$mnt" 60
	rm "$disk/filler"

	# it makes space, and writes less than what failed; and all of it
	full_then new-part 1000
	is_failed new-part "less than what failed"
	rm "$mnt/new-part"
	wait_durable "$mnt" 60
	full_then new-all ""
	[ "$(state "$mnt/new-all")" != failed ] || die "new-all: failed although all was written"
	wait_durable "$mnt" 60
	cmp "$mnt/new-all" "$store/new-all" || die "new-all is another in the store"
	rm "$mnt/new-all"
	wait_durable "$mnt" 60

	# past the daemon, where there was space when it began: all of it is staged, and the close fails
	exec 3>"$mnt/new-late"
	part 4 4 >&3 || die "new-late"
	leave_mib "$disk" 2
	part 4 4 >&3 2>/dev/null || note "new-late: its write failed"
	exec 3>&-
	is_failed new-late "filled meanwhile"
	rm "$mnt/new-late" "$disk/filler"
	wait_durable "$mnt" 60

	# all is killed
	leave_mib "$disk" 20
	exec 3>"$mnt/new-killed"
	half new-killed 5
	exec 4>"$mnt/old-killed"
	! part 60 5 >&4 2>/dev/null || die "old-killed: more than the store has"
	exec 3>&-
	kill_mount "$mnt"
	exec 4>&-
	rm "$disk/filler"
	start_mount "$store" "$mnt" staging=256M
	wait_durable "$mnt" 60
	[ ! -e "$store/new-killed" ] || die "killed: half of new-killed is in the store"
	same "$store/old-killed" 1 8 || die "killed: half of old-killed replaced the version before it"
	found=$(cd "$store/.cairn/lost+found" && echo new-killed.unclosed.* old-killed.unclosed.*)
	[[ $found != *'*'* ]] || die "not in lost+found: $found"
	"$BUILD/cairn" status "$mnt" >"$TMP/status" || true
	grep -q 'lost+found' "$TMP/status" || die "cairn status does not name lost+found: $(cat "$TMP/status")"
	end_mount "$mnt"
	umount "$disk"
}

round ext4
round xfs
