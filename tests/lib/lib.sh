# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# Helpers for shell cases: `. "$(dirname "$0")/../lib/lib.sh"` as the first line of code.
#
# The runner (tests/run) gives a case
#	BUILD	the build directory, absolute; programs are $BUILD/cairnfs, $BUILD/tests/mount/<name>
#	MODE	fast | relay | posix
#	TMP	an empty directory of this case; the runner removes it
# Run by hand, a case gets defaults for all three. Exit 0 = passed, 77 = skipped, else failed.
#
#	start_mount STORE MNT [opts]	mount (both directories are made); opts are added to the mode's own
#	try_mount STORE MNT [opts]	the same, but returns cairnfs's exit code instead of failing
#	stop_mount MNT			umount, then wait until the daemon has drained and is gone
#	kill_mount MNT			SIGKILL keeper and worker, drop the dead mount (staging stays)
#	wait_durable PATH [seconds]	until state is durable; failed or late = the case fails
#	state PATH | lane PATH | xattr PATH NAME
#	status_field MNT a.b.c		a value of status.json: `status_field $m staging.used_bytes`
#	metric MNT NAME			a value of metrics: `metric $m halted`
#	keeper_pid MNT | worker_pid MNT
#	need_passthrough MNT		skip unless this mount's files go through the fast lane's backing
#	need_root | need_tool NAME...	skip where missing
#	same_tree A B			names, types, modes, sizes, links, contents equal (.cairn left out)
#	make_disk NAME ext2|ext4|xfs|btrfs [size]	a loop-mounted filesystem at $TMP/NAME (512M)
#	power_cut NAME			shut that filesystem down with nothing flushed, unmount it
#	disk_left NAME			until an unmounted one is gone from every mount namespace
#	remount_disk NAME		mount it again (its own recovery runs)
#	wait_freed DIR			until its filesystem has freed what was removed
#	free_mib DIR | leave_mib DISK MIB	its free space; DISK/filler takes the rest, after wait_freed
#	helper NAME [args]		run $BUILD/tests/mount/NAME or $BUILD/tests/crash/NAME
#	retry SECONDS command...	repeat until it succeeds
#	within SECONDS command...	end it then; these and all limits here are times CAIRN_TEST_SLOW
#	command | has [-x...] PATTERN	as grep -q, which does not go with pipefail
#	on_exit 'command'		more clean-up, run first
#	note text | skip reason | die reason

set -u -o pipefail

LIB_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
: "${BUILD:=$LIB_TOP/build}"
: "${MODE:=fast}"
if [ -z "${TMP:-}" ]; then
	TMP=$(mktemp -d "${CAIRN_TEST_DIR:-/var/tmp}/cairn-case.XXXXXX")
	LIB_OWN_TMP=1
fi
: "${CAIRN_TEST_SLOW:=$(grep -qs . "$BUILD/sanitizer" && echo 5 || echo 3)}"
export BUILD MODE TMP CAIRN_TEST_SLOW
LIB_SHELL=$BASHPID

declare -A LIB_STORE=()		# mount point -> store
declare -A LIB_KEEPER=()	# mount point -> keeper's pid
declare -A LIB_STAGING=()	# staging directories seen
declare -A LIB_DISK=()		# disk name -> image
LIB_EXIT=()
LIB_WRAP=()			# the command that starts cairnfs, if any

note() { printf '# %s\n' "$*"; }
skip() { printf 'SKIP: %s\n' "$*"; exit 77; }

# Also from a subshell, `x=$(f)` included: the case as a whole must end.
die()
{
	printf 'FAIL: %s (line %s)\n' "$*" "${BASH_LINENO[${#BASH_LINENO[@]} - 2]}" >&2
	[ "$BASHPID" = "$LIB_SHELL" ] || kill -TERM "$LIB_SHELL" 2>/dev/null
	exit 1
}

on_exit() { LIB_EXIT+=("$1"); }

need_root() { [ "$(id -u)" = 0 ] || skip "needs root"; }

need_tool()
{
	local tool
	for tool; do
		command -v "$tool" >/dev/null || skip "needs $tool"
	done
}

# It reads to the end: who writes into a pipe that nobody reads any more fails, and the pipe with him.
has() { grep "$@" >/dev/null; }

retry()
{
	local end=$((SECONDS + $1 * CAIRN_TEST_SLOW))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}

within()
{
	local limit=$(($1 * CAIRN_TEST_SLOW))
	shift
	timeout $limit "$@"
}

# A zombie is gone: whoever inherits it may be slow to reap.
lib_pid_gone()
{
	local line
	{ read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
	[[ ${line##*) } == [ZX]* ]]
}

# A name in the mount table, also of a mount whose daemon is dead.
is_mounted()
{
	local path
	path=$(readlink -m "$1" 2>/dev/null) || path=$1
	awk -v p="$path" '$5 == p { found = 1 } END { exit !found }' /proc/self/mountinfo
}

xattr()
{
	if command -v getfattr >/dev/null; then
		getfattr --absolute-names --only-values -n "$2" -- "$1" 2>/dev/null
	else
		python3 -c 'import os, sys
try: sys.stdout.buffer.write(os.getxattr(sys.argv[1], sys.argv[2]))
except OSError: sys.exit(1)' "$1" "$2"
	fi
}

state() { xattr "$1" user.cairn.state; }
lane() { xattr "$1" user.cairn.lane; }

wait_durable()
{
	local path=$1 end=$((SECONDS + ${2:-60} * CAIRN_TEST_SLOW)) s
	while :; do
		s=$(state "$path") || s=unreadable
		case $s in
		durable) return 0 ;;
		failed) die "$path: failed: $(xattr "$path" user.cairn.error)" ;;
		esac
		[ $SECONDS -lt $end ] || die "$path: still $s after ${2:-60} s"
		sleep 0.05
	done
}

status_field()
{
	python3 -c 'import json, sys
v = json.load(open(sys.argv[1] + "/.cairn/status.json"))
for k in sys.argv[2].split("."):
    v = v[int(k)] if isinstance(v, list) else v[k]
print(v if isinstance(v, str) else json.dumps(v))' "$1" "$2"
}

metric() { sed -n "s/^cairnfs_$2{[^}]*} //p" "$1/.cairn/metrics"; }
keeper_pid() { status_field "$1" keeper_pid; }
worker_pid() { status_field "$1" pid; }

lib_mode_opts()
{
	case $MODE in
	fast) ;;
	relay) echo nopassthrough ;;
	posix) echo engine=posix ;;
	*) die "unknown MODE $MODE" ;;
	esac
}

try_mount()
{
	local store=$1 mnt=$2 opts=${3:-} rc=0 mode
	mode=$(lib_mode_opts)
	case ",$opts" in *,staging=*) ;; *) opts=${opts:+$opts,}staging=512M ;; esac
	case ",$opts" in *,pool=* | *,ballast=*) ;; *) opts=$opts,pool=0 ;; esac
	opts=$opts${mode:+,$mode}
	mkdir -p "$store" "$mnt"
	LIB_STORE[$mnt]=$store
	# The build for tests has a store that fails, and reports who asks it with the tree lock held. What is
	# installed is tried in mode fast.
	local build=$BUILD/tests
	[ "$MODE" != fast ] || [ -n "${CAIRNFS_FAULT-}${CAIRNFS_PARSER_FAULT-}" ] || build=$BUILD
	"${LIB_WRAP[@]}" "$build/cairnfs" "$store" "$mnt" -o "$opts" </dev/null || rc=$?
	[ $rc = 0 ] || return $rc
	LIB_KEEPER[$mnt]=$(keeper_pid "$mnt") || return 1
	LIB_STAGING[$(status_field "$mnt" staging.dir)]=1
	return 0
}

start_mount()
{
	local rc=0
	try_mount "$@" || rc=$?
	[ $rc = 0 ] || die "cairnfs $1 $2 ${3:-}: exit code $rc"
}

# The umount itself returns at once; the daemon drains and then goes.
stop_mount()
{
	local mnt=$1 pid=${LIB_KEEPER[$1]:-}
	# busy: someone's last close is still on its way
	retry 60 umount "$mnt" 2>/dev/null || die "cannot unmount $mnt"
	if [ -n "$pid" ]; then
		retry 120 lib_pid_gone "$pid" || die "$mnt: the daemon ($pid) did not end after umount"
	fi
	unset "LIB_KEEPER[$mnt]" "LIB_STORE[$mnt]"
}

kill_mount()
{
	local mnt=$1 keeper=${LIB_KEEPER[$1]:-} worker
	[ -n "$keeper" ] || die "kill_mount: $mnt was not mounted by start_mount"
	worker=$(lib_children "$keeper")
	# shellcheck disable=SC2086	# several pids
	kill -KILL $keeper $worker 2>/dev/null
	for keeper in $keeper $worker; do
		retry 10 lib_pid_gone "$keeper" || die "pid $keeper survived SIGKILL"
	done
	umount -l "$mnt" 2>/dev/null
	unset "LIB_KEEPER[$mnt]" "LIB_STORE[$mnt]"
}

lib_children()
{
	ps -o pid= --ppid "$1" 2>/dev/null
}

need_passthrough()
{
	[ "$(status_field "$1" passthrough)" = true ] ||
		skip "no passthrough here: $(status_field "$1" notices)"
}

# One line a name; directory sizes and times mean nothing across filesystems.
lib_list()
{
	(cd "$1" && find . -path ./.cairn -prune -o ! -name . -printf '%P %y %m %U:%G %l' \
		\( -type f -printf ' %s' -o -true \) -printf '\n' | LC_ALL=C sort)
}

same_tree()
{
	lib_list "$1" >"$TMP/.list.a"
	lib_list "$2" >"$TMP/.list.b"
	diff -u --label "$1" --label "$2" "$TMP/.list.a" "$TMP/.list.b" ||
		die "$1 and $2: names or attributes differ"
	diff -r --no-dereference -x .cairn "$1" "$2" || die "$1 and $2: contents differ"
}

make_disk()
{
	local name=$1 fs=$2 size=${3:-512M}
	need_root
	need_tool "mkfs.$fs"
	truncate -s "$size" "$TMP/$name.img"
	mkdir -p "$TMP/$name"
	case $fs in
	ext2 | ext4) "mkfs.$fs" -q -F "$TMP/$name.img" || die "mkfs.$fs" ;;
	xfs) mkfs.xfs -q -f "$TMP/$name.img" || die "mkfs.xfs" ;;
	btrfs)	# it looks at every loop device first, also at one whose disk lost its power in another case
		retry 30 mkfs.btrfs -q -f "$TMP/$name.img" >/dev/null 2>&1 || die "mkfs.btrfs" ;;
	esac
	remount_disk "$name"
}

remount_disk()
{
	mount -o loop "$TMP/$1.img" "$TMP/$1" || skip "cannot mount a loop device here"
	LIB_DISK[$1]=1
}

# Waits until DIR's filesystem has freed what was removed: cairnfs removes and closes on a thread of its own, and xfs
# and btrfs free the blocks later still (io/store/freed.c).
wait_freed()
{
	local dir=$1 end=$((SECONDS + 30 * CAIRN_TEST_SLOW)) free before= still=0
	while [ $still -lt 5 ]; do
		[ $SECONDS -lt $end ] || die "$dir: blocks of what was removed are still not free"
		case $(stat -f -c %T "$dir") in
		xfs) xfs_spaceman -c 'prealloc -s -m 4e' "$dir" || die "xfs_spaceman" ;;
		*) sync -f "$dir" || die "sync" ;;
		esac
		free=$(stat -f -c %f "$dir")
		still=$((still + 1))
		[ "$free" = "$before" ] && [ -z "$(lib_unlinked "$dir")" ] || still=0
		before=$free
		sleep 0.1
	done
}
# What has no name any more, and is open.
lib_unlinked() { find /proc/[0-9]*/fd -lname "$1/* (deleted)" 2>/dev/null; }

free_mib() { stat -f -c '%a %S' "$1" | awk '{ print int($1 * $2 / 1048576) }'; }
# leave_mib DISK MIB: DISK/filler takes the rest
leave_mib()
{
	wait_freed "$1"
	fallocate -l $((($(free_mib "$1") - $2) << 20)) "$1/filler" || die "fallocate"
}

# The shutdown ioctl is xfs's and ext4's own; "-f" flushes the log first and is not wanted.
power_cut()
{
	need_tool xfs_io
	xfs_io -x -c shutdown "$TMP/$1" || die "power_cut $1"
	umount "$TMP/$1" 2>/dev/null || umount -l "$TMP/$1"
	unset "LIB_DISK[$1]"
	disk_left "$1"
}

# Another case that runs in a mount namespace of its own has a copy of this mount: while it lives, a
# mount of the image is the old filesystem, stopped, and no new one.
disk_left()
{
	retry 120 lib_loop_free "$TMP/$1.img" || die "$1 is still mounted in another mount namespace"
}

lib_loop_free() { [ -z "$(losetup -j "$1")" ]; }

helper()
{
	local name=$1 dir
	shift
	for dir in mount crash; do
		if [ -x "$BUILD/tests/$dir/$name" ]; then
			"$BUILD/tests/$dir/$name" "$@"
			return
		fi
	done
	die "no helper program $name"
}

# No local variables here: the commands of on_exit see the case's own.
lib_cleanup()
{
	LIB_STATUS=$?
	trap - EXIT TERM INT HUP
	set +u
	cd /
	for LIB_COMMAND in "${LIB_EXIT[@]}"; do
		eval "$LIB_COMMAND"
	done
	lib_remove_all
	exit "$LIB_STATUS"
}

lib_remove_all()
{
	local mnt pid dir disk
	for mnt in "${!LIB_STORE[@]}"; do
		pid=${LIB_KEEPER[$mnt]}
		is_mounted "$mnt" && umount -l "$mnt" 2>/dev/null
		if [ -n "$pid" ] && ! retry 5 lib_pid_gone "$pid"; then
			# shellcheck disable=SC2046
			kill -KILL "$pid" $(lib_children "$pid") 2>/dev/null
		fi
	done
	for dir in "${!LIB_STAGING[@]}"; do
		lib_drop_staging "$dir"
	done
	for disk in "${!LIB_DISK[@]}"; do
		umount -l "$TMP/$disk" 2>/dev/null
	done
	rm -f "$TMP/.list.a" "$TMP/.list.b"
	[ -z "${LIB_OWN_TMP:-}" ] || rm -rf --one-file-system "$TMP"
}

# What a killed daemon left in memory belongs to a store that goes away with the case.
lib_drop_staging()
{
	local dir=$1 sub
	case $dir in /run/cairnfs/?*) ;; *) return ;; esac
	awk -v p="$dir" '$5 == p || index($5, p "/") == 1 { print $5 }' /proc/self/mountinfo |
		sort -r | while read -r sub; do umount -l "$sub" 2>/dev/null; done
	rmdir "$dir" 2>/dev/null
}

trap lib_cleanup EXIT
trap 'exit 1' TERM INT HUP
