#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 300
#
# What a user can get wrong: one clear line, and a non-zero exit. And what is right.
. "$(dirname "$0")/../lib/lib.sh"

store=$TMP/store mnt=$TMP/mnt bad=0
mkdir "$store" "$mnt"

answers() { grep -q . "$mnt/.cairn/status" 2>/dev/null; }
complain() { printf 'FAIL %s\n' "$*"; bad=1; }

# refused WHAT PATTERN command...: non-zero, one line on stderr that has the pattern
refused()
{
	local what=$1 pattern=$2 rc=0 lines
	shift 2
	within 20 "$@" >"$TMP/stdout" 2>"$TMP/said" </dev/null || rc=$?
	lines=$(wc -l <"$TMP/said")
	if [ $rc = 0 ]; then
		complain "$what: exit code 0"
	elif [ $rc = 124 ] || [ $rc -gt 125 ]; then
		complain "$what: exit code $rc"
	elif [ "$lines" != 1 ]; then
		complain "$what: $lines lines: $(cat "$TMP/said")"
	elif ! grep -Eqi -- "$pattern" "$TMP/said"; then
		complain "$what: nothing of '$pattern' in: $(cat "$TMP/said")"
	else
		printf 'ok %s: %s\n' "$what" "$(cat "$TMP/said")"
	fi
	if is_mounted "$mnt"; then
		complain "$what: mounted all the same"
		umount -l "$mnt"
	fi
	if [ -e "$store/.cairn" ]; then
		[ ! -e "/run/cairnfs/$(cat "$store/.cairn/id")" ] || complain "$what: its staging stays"
		rm -rf "$store/.cairn"
	fi
}

cairnfs=$BUILD/cairnfs
small="staging=64M,pool=0"

refused "no store" "$TMP/none" "$cairnfs" "$TMP/none" "$mnt" -o $small
: >"$TMP/file"
refused "the store is a file" "directory" "$cairnfs" "$TMP/file" "$mnt" -o $small
refused "no mount point" "$TMP/none" "$cairnfs" "$store" "$TMP/none" -o $small
refused "the mount point is a file" "directory" "$cairnfs" "$store" "$TMP/file" -o $small
refused "the store is the mount point" "inside|same" "$cairnfs" "$store" "$store" -o $small
mkdir "$store/in" "$mnt/in"
refused "the mount point is in the store" "inside" "$cairnfs" "$store" "$store/in" -o $small
refused "the store is in the mount point" "inside" "$cairnfs" "$mnt/in" "$mnt" -o $small
rmdir "$store/in" "$mnt/in"
ln -s "$store" "$TMP/alias"
mkdir "$store/in"
refused "in the store, by a symlink" "inside" "$cairnfs" "$TMP/alias" "$store/in" -o $small
rmdir "$store/in"
for how in $small "$small,ro"; do
	mkdir -p "$store/.cairn" && echo 0123456789abcdef >"$store/.cairn/id" && chmod 700 "$store/.cairn"
	refused "a damaged id, $how" "/.cairn/id is damaged.*/run/cairnfs|/.cairn/id is damaged.*/dev/shm" "$cairnfs" "$store" "$mnt" -o "$how"
done
mkdir "$TMP/real" "$TMP/served"
start_mount "$TMP/real" "$TMP/served" $small
mkdir "$TMP/served/in" "$TMP/bound"
refused "the store is a mount of ours" "is itself a cairnfs mount" "$cairnfs" "$TMP/served" "$mnt" -o $small
for how in $small "$small,ro"; do
	refused "the store lies in a mount of ours, $how" "lies inside the cairnfs mount $TMP/served;.*outside" \
		"$cairnfs" "$TMP/served/in" "$mnt" -o "$how"
done
if [ "$(id -u)" = 0 ]; then
	mount --bind "$TMP/served/in" "$TMP/bound"
	refused "the store lies in a mount of ours, by a bind mount" "lies inside the cairnfs mount $TMP/" \
		"$cairnfs" "$TMP/bound" "$mnt" -o $small
	umount "$TMP/bound"
fi
[ -z "$(ls -A "$TMP/served/in")" ] || complain "a refused start left $(ls -A "$TMP/served/in")"
stop_mount "$TMP/served"
# Its name is not as /proc writes it.
start_mount "$TMP/real" "$TMP/served here" $small
refused "the store lies in a mount with a space" "inside the cairnfs mount $TMP/served here;" \
	"$cairnfs" "$TMP/served here/in" "$mnt" -o $small
stop_mount "$TMP/served here"
# Swapped: the user's files would be hidden. What an earlier version accepted on purpose goes on.
: >"$mnt/data"
refused "the two are swapped" "store $store is empty, and the mountpoint $mnt has files \(such as data\).*swapped.*-o nonempty" \
	"$cairnfs" "$store" "$mnt" -o $small
mkdir "$store/lost+found"
refused "the same, of an empty ext4" "swapped" "$cairnfs" "$store" "$mnt" -o $small,ro
rmdir "$store/lost+found"
start_mount "$store" "$mnt" $small,nonempty
stop_mount "$mnt"
[ -e "$mnt/data" ] && [ -d "$store/.cairn" ] || complain "nonempty: $(ls -A "$mnt" "$store")"
try_mount "$store" "$mnt" $small 2>"$TMP/said" || complain "a mountpoint with files, and a store in use: $(cat "$TMP/said")"
has "warning: the mountpoint $mnt has files (such as data)" "$TMP/said" || complain "no warning: $(cat "$TMP/said")"
stop_mount "$mnt"
rm "$mnt/data"
mkdir "$TMP/empty"
: >"$mnt/.keep"
try_mount "$TMP/empty" "$mnt" $small 2>"$TMP/said" || complain "a mountpoint with .keep, and an empty store: $(cat "$TMP/said")"
has "warning: the mountpoint $mnt has files (such as .keep)" "$TMP/said" || complain "no warning of .keep: $(cat "$TMP/said")"
stop_mount "$mnt"
rm -r "$mnt/.keep" "$TMP/empty"
mkdir "$TMP/empty"
refused "the mount point is a store" "mountpoint $store is itself a store.*swapped" "$cairnfs" "$TMP/empty" "$store" -o $small
[ ! -e "$TMP/empty/.cairn" ] || complain "a refused start left $(ls -A "$TMP/empty")"

# Stores in each other; beside each other, or one after the other, they may be.
mkdir -p "$TMP/outer/run/in" "$TMP/outer/run/mnt"
start_mount "$TMP/outer/run" "$TMP/served" $small
for how in $small "$small,host=another"; do
	refused "a store in one that is served, $how" "store $TMP/outer/run/in lies inside the store $TMP/outer/run, which is served" \
		"$cairnfs" "$TMP/outer/run/in" "$mnt" -o "$how"
	refused "a store around one that is served, $how" "store $TMP/outer has inside it the store $TMP/outer/run, which is served" \
		"$cairnfs" "$TMP/outer" "$mnt" -o "$how"
done
refused "a mountpoint in a store that is served" "mountpoint $TMP/outer/run/mnt lies inside the store $TMP/outer/run, which is served" \
	"$cairnfs" "$store" "$TMP/outer/run/mnt" -o $small
! is_mounted "$TMP/outer/run/mnt" || umount -l "$TMP/outer/run/mnt"
start_mount "$TMP/outer/run/in" "$mnt" $small,ro
stop_mount "$mnt"
stop_mount "$TMP/served"
start_mount "$TMP/outer" "$TMP/served" $small,ro
start_mount "$TMP/outer/run/in" "$mnt" $small
stop_mount "$mnt"
stop_mount "$TMP/served"
start_mount "$TMP/outer" "$TMP/served" $small
stop_mount "$TMP/served"
refused "staging above memory" "memory" "$cairnfs" "$store" "$mnt" -o staging=100000G
if [ -r /sys/devices/system/node/has_memory ]; then
	refused "a NUMA node that is not there" "NUMA node" "$cairnfs" "$store" "$mnt" -o $small,numa=1000
fi
refused "numa without a number" "number" "$cairnfs" "$store" "$mnt" -o $small,numa=near
refused "staging in percent above memory" "memory|%" "$cairnfs" "$store" "$mnt" -o staging=200%
refused "staging of nothing" "staging" "$cairnfs" "$store" "$mnt" -o staging=0
for size in 12Q 1.5.2G -5M M '' 99999999999999999999G; do
	refused "staging=$size" "staging" "$cairnfs" "$store" "$mnt" -o "staging=$size"
done
refused "fsync=maybe" "fsync" "$cairnfs" "$store" "$mnt" -o $small,fsync=maybe
refused "engine=steam" "engine" "$cairnfs" "$store" "$mnt" -o $small,engine=steam
for name in pool ballast; do
	refused "$name above memory" "$name=100000G is larger than this machine's memory \([0-9]+ MiB\)" \
		"$cairnfs" "$store" "$mnt" -o staging=64M,$name=100000G
done
refused "pool=lead" "pool=lead: not a size" "$cairnfs" "$store" "$mnt" -o staging=64M,pool=lead
refused "ballast=lead" "ballast=lead: not a size" "$cairnfs" "$store" "$mnt" -o staging=64M,ballast=lead
refused "queue_depth=0x" "queue_depth" "$cairnfs" "$store" "$mnt" -o $small,queue_depth=0x
refused "an unknown option" "unknown option -o nonsense; cairnfs --help" "$cairnfs" "$store" "$mnt" -o $small,nonsense
refused "the second of three options" "unknown option -o nonsense" "$cairnfs" "$store" "$mnt" -o $small,nonsense,ro
refused "no option, noallow_other" "unknown option -o noallow_other; cairnfs --help" "$cairnfs" "$store" "$mnt" -o noallow_other
for pair in staging_size=64M:staging= staging-dir=/x:staging_dir= fsnyc=strict:fsync= nodedupe:nodedup persist=4:persist_threads= \
	persist_threads:persist_threads= alow_other:allow_other stagin=1G:staging= numa-node=0:numa=; do
	refused "an option like another, ${pair%:*}" "unknown option -o ${pair%:*}; did you mean ${pair#*:}\?.*--help" \
		"$cairnfs" "$store" "$mnt" -o "${pair%:*},pool=0"
done
for flag in nopassthrough=0 nodedup=1 dedup=yes guard=0 ro=1; do
	refused "a flag with a value, $flag" "${flag%=*} takes no value: ${flag#*=}" "$cairnfs" "$store" "$mnt" -o "$small,$flag"
done
refused "a value that libfuse does not take" "-o max_read=much: .*invalid" "$cairnfs" "$store" "$mnt" -o $small,max_read=much
refused "staging_dir of nothing" "staging_dir" "$cairnfs" "$store" "$mnt" -o $small,staging_dir=
refused "remount" "no cairnfs is mounted" "$cairnfs" "$store" "$mnt" -o $small,remount
refused "auto_unmount" "auto_unmount" "$cairnfs" "$store" "$mnt" -o $small,auto_unmount
if [ "$(id -u)" = 0 ]; then
	refused "what the mount itself refuses" "mount failed" "$cairnfs" "$store" "$mnt" -o $small,blkdev
fi
if [ "$(id -u)" = 0 ]; then	# mkdir succeeds there, mounting a tmpfs does not
	mkdir "$TMP/tmpfs"
	refused "staging without CAP_SYS_ADMIN" "staging below" setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \
		"$cairnfs" "$store" "$mnt" -o $small,staging_dir="$TMP/tmpfs"
	[ -z "$(ls "$TMP/tmpfs")" ] || complain "a start that failed leaves $(ls "$TMP/tmpfs")"
fi
refused "no staging_dir" "$TMP/none" "$cairnfs" "$store" "$mnt" -o $small,staging_dir="$TMP/none"

if [ "$(id -u)" = 0 ]; then
	mkdir "$TMP/ro"
	mount -t tmpfs -o ro none "$TMP/ro" && on_exit 'umount "$TMP/ro"'
	refused "a store on a read-only filesystem" "writ|read-only" "$cairnfs" "$TMP/ro" "$mnt" -o $small
	mkdir "$TMP/dev"
	mknod -m 666 "$TMP/dev/null" c 1 3
	refused "no /dev/fuse" "/dev/fuse" unshare -m bash -c \
		'mount --bind "$0" /dev && exec "$@"' "$TMP/dev" "$cairnfs" "$store" "$mnt" -o $small
	chmod 755 "$TMP"
	install -d -o 65534 "$TMP/his-mnt"
	install -d -m 555 "$TMP/not-his"
	refused "a store that is not the user's to write" "$TMP/not-his" setpriv --reuid 65534 \
		--regid 65534 --clear-groups "$cairnfs" "$TMP/not-his" "$TMP/his-mnt" -o $small
fi

# Limits of the shell and of the cgroup: which one, and what to do.
# limited WHAT PATTERN SHELL-COMMAND: a start after that command; what it says goes to a pipe, of no size
limited()
{
	local rc
	mkdir -p "$TMP/limited"
	within 20 bash -c "$3"' && exec "$@"' - "$cairnfs" "$TMP/limited" "$mnt" -o $small 2>&1 </dev/null | cat >"$TMP/said"
	rc=${PIPESTATUS[0]}
	[ "$rc" != 0 ] && [ "$rc" -lt 124 ] && grep -Eq -- "$2" "$TMP/said" ||
		complain "$1: exit code $rc: $(cat "$TMP/said")"
	if is_mounted "$mnt"; then
		complain "$1: mounted all the same"
		umount -l "$mnt"
	fi
}
# A sanitizer needs more address space than any.
[ -s "$BUILD/sanitizer" ] ||
	limited "little address space" "address space is limited \(ulimit -v.*remove" "ulimit -v 500000"
limited "small files" "size of files is limited \(ulimit -f.*remove" "ulimit -f 0"
# a pids cgroup of version 1 or 2
pids=$(awk '$3 == "cgroup2" { v2 = $2 } $3 == "cgroup" && $4 ~ /(^|,)pids(,|$)/ { v1 = $2 }
	END { print v1 ? v1 : v2 }' /proc/mounts)/cairn-test.$$
if [ "$(id -u)" = 0 ] && mkdir "$pids" 2>/dev/null && [ -e "$pids/pids.max" ]; then
	on_exit 'retry 10 rmdir "$pids"'
	for max in 8 16; do	# not enough for a worker; for its threads
		limited "$max processes and threads" "processes and threads is limited \(pids.max.*raise" \
			"echo $max >$pids/pids.max && echo \$BASHPID >$pids/cgroup.procs"
	done
else
	rmdir "$pids" 2>/dev/null
	note "pids.max: not tried, no such cgroup can be made here"
fi

# Usage: no arguments, help, version.
for args in "" "$store" "$store $mnt extra"; do
	rc=0
	# shellcheck disable=SC2086
	"$cairnfs" $args >"$TMP/said" 2>&1 </dev/null || rc=$?
	[ $rc != 0 ] && [ -s "$TMP/said" ] || complain "arguments '$args': exit code $rc"
done
"$cairnfs" --help >"$TMP/said" 2>&1 || complain "--help: exit code $?"
sed -n 's/^  -o \([a-z_]*\).*/\1/p' "$TMP/said" | sort >"$TMP/helped"
sed -n '/^The following are given after/,/^\.El/s/^\.It Cm //p' "$LIB_TOP/docs/man/cairnfs.8" |
	sed 's/=.*//; s/ , /\n/' | sort >"$TMP/in_man"
[ -s "$TMP/helped" ] && diff "$TMP/helped" "$TMP/in_man" >"$TMP/said" ||
	complain "--help (<) and cairnfs(8) (>) tell of different options: $(cat "$TMP/said")"
"$cairnfs" --version >"$TMP/said" 2>&1 || complain "--version: exit code $?"

# The mount answers when the command returns; a second on the store or the mount point does not.
start_mount "$store" "$mnt" staging=64M
answers || complain "no .cairn/status at once"
pid=$(keeper_pid "$mnt")
mkdir -p "$TMP/mnt2" "$TMP/store2"
rc=0
within 20 "$cairnfs" "$store" "$TMP/mnt2" -o $small >"$TMP/stdout" 2>"$TMP/said" || rc=$?
[ $rc != 0 ] && grep -q "with pid $pid, at $mnt; .*cairn umount $mnt$" "$TMP/said" ||
	complain "already served: exit code $rc: $(cat "$TMP/said")"
rc=0
within 40 "$cairnfs" "$store" "$TMP/mnt2" -o $small,host=another >"$TMP/stdout" 2>"$TMP/said" || rc=$?
[ $rc != 0 ] && grep -Eq "pid $pid, .* as host [^ ]+ at $mnt \(.*cairn umount" "$TMP/said" ||
	complain "already served, another host: exit code $rc: $(cat "$TMP/said")"
rc=0
within 20 "$cairnfs" "$TMP/store2" "$mnt" -o $small >"$TMP/stdout" 2>"$TMP/said" || rc=$?
[ $rc != 0 ] && grep -Eqi "busy|mounted" "$TMP/said" || complain "busy: exit code $rc: $(cat "$TMP/said")"
[ "$(keeper_pid "$mnt")" = "$pid" ] || complain "the first mount has gone"
echo hello >"$mnt/f"
stop_mount "$mnt"

# A name that /proc writes otherwise is busy too; and may begin with anything.
odd=$TMP/$'sp ace \\040\n' rc=0
mkdir "$odd" "$TMP/-s" "$TMP/-m"
start_mount "$store" "$odd" $small
timeout 20 "$cairnfs" "$TMP/store2" "$odd" -o $small >"$TMP/stdout" 2>"$TMP/said" || rc=$?
[ $rc != 0 ] && grep -q "busy" "$TMP/said" || complain "busy, odd name: exit code $rc: $(cat "$TMP/said")"
stop_mount "$odd"
(cd "$TMP" && "$cairnfs" -o $small -- -s -m) || complain "--: exit code $?"
stop_mount "$TMP/-m"

# What fstab(5) has of its own is no error, and a mount is known by its type.
start_mount "$store" "$mnt" "$small,defaults,owner,group,nofail,_netdev,lazytime,comment=x,x-systemd.automount,subtype=else"
findmnt -n -o FSTYPE "$mnt" | grep -qx fuse.cairnfs || complain "type: $(findmnt -n -o FSTYPE "$mnt")"
stop_mount "$mnt"

# A start that is refused takes nothing of what an earlier run left staged.
start_mount "$store" "$mnt" staging=256M
helper files put "$mnt/staged" 67108864 3 || complain "put"
kill_mount "$mnt"
rc=0
"$cairnfs" "$store" "$mnt" -o $small,nonsense >"$TMP/said" 2>&1 || rc=$?
[ $rc != 0 ] || complain "an unknown option: exit code 0"
start_mount "$store" "$mnt" staging=256M
helper files same "$mnt/staged" 67108864 3 || complain "a refused start lost what was staged"
rm "$mnt/staged"
stop_mount "$mnt"

# Sizes as they may be written.
mem=$(awk '/^MemTotal:/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
for size in 64M:67108864 65536K:67108864 67108864:67108864 1G:1073741824 64m:67108864 \
	5%:$((mem / 20)); do
	start_mount "$store" "$mnt" "staging=${size%:*}"
	got=$(status_field "$mnt" staging.budget_bytes)
	want=${size#*:}
	[ "$got" -ge $((want - want / 100)) ] && [ "$got" -le $((want + want / 100)) ] ||
		complain "staging=${size%:*} gives $got bytes, want $want"
	stop_mount "$mnt"
done

# Staging's memory stays where it is, and on the node asked for.
if [ "$(id -u)" = 0 ]; then
	node= want=noswap
	if [ -r /sys/devices/system/node/has_memory ]; then
		node=$(sed 's/[-,].*//' /sys/devices/system/node/has_memory)
		want="mpol=prefer:$node,noswap"
	fi
	start_mount "$store" "$mnt" "$small${node:+,numa=$node}"
	dir=$(status_field "$mnt" staging.dir)
	for sub in huge small; do
		awk -v p="$dir/$sub" '$5 == p' /proc/self/mountinfo | has "$want" ||
			note "this kernel's tmpfs has no noswap: $(grep "$dir/$sub" /proc/self/mountinfo)"
		[ -z "$node" ] || awk -v p="$dir/$sub" '$5 == p' /proc/self/mountinfo | has "mpol=prefer:$node" ||
			complain "numa=$node: $(grep "$dir/$sub" /proc/self/mountinfo)"
	done
	stop_mount "$mnt"
fi

# ro: reading only, nothing of the user's changes.
start_mount "$store" "$mnt" ro,pool=512M
[ "$(cat "$mnt/f")" = hello ] || complain "ro: cannot read"
[ "$(status_field "$mnt" staging.pool_target_bytes)" = 0 ] || complain "ro: keeps memory ready for nobody"
COLUMNS=999 "$BUILD/cairn" status "$mnt" | grep -q "read only" || complain "ro: status does not say so"
tr '\0' ' ' </proc/"$(keeper_pid "$mnt")"/cmdline >"$TMP/said"
grep -q -- "-o ro,pool=512M,staging=512M " "$TMP/said" || complain "ps shows $(cat "$TMP/said")"
for cmd in 'echo x >"$mnt/f"' 'echo x >"$mnt/g"' 'mkdir "$mnt/d"' 'rm "$mnt/f"' 'mv "$mnt/f" "$mnt/g"' \
	'chmod 600 "$mnt/f"' 'touch "$mnt/f"' 'ln "$mnt/f" "$mnt/g"' 'truncate -s 0 "$mnt/f"'; do
	if (eval "$cmd") 2>"$TMP/said"; then
		complain "ro: $cmd succeeded"
	fi
	grep -qi "read-only" "$TMP/said" || complain "ro: $cmd: $(cat "$TMP/said")"
done
stop_mount "$mnt"
[ "$(cat "$store/f")" = hello ] || complain "ro: the store has changed"

# In the foreground: the command stays until the mount ends.
"$cairnfs" "$store" "$mnt" -f -o $small >"$TMP/said" 2>&1 </dev/null &
fg=$!
retry 20 answers || complain "-f: not mounted: $(cat "$TMP/said")"
kill -0 $fg 2>/dev/null || complain "-f: has gone to the background"
echo more >"$mnt/g"
umount "$mnt" || complain "-f: umount"
wait $fg || complain "-f: exit code $?"
[ "$(cat "$store/g")" = more ] || complain "-f: the file is not in the store"

# A remount, with what mount(8) gives, changes the kernel's flags and says of other options that they stay.
if [ "$(id -u)" = 0 ]; then
	remount() { "$cairnfs" "$store" "$mnt" -o "rw,nosuid,nodev,relatime,remount,$1,user_id=0,group_id=0,default_permissions"; }
	"$cairnfs" "$store" "$mnt" -o $small || complain "remount: not mounted"
	pid=$(keeper_pid "$mnt")
	cp "$(type -P true)" "$mnt/true"
	remount "noexec,$small" 2>"$TMP/said" || complain "remount,noexec"
	[ -s "$TMP/said" ] && complain "remount with the options that it has: $(cat "$TMP/said")"
	"$mnt/true" 2>/dev/null && complain "remount,noexec: it runs"
	remount exec || complain "remount,exec"
	"$mnt/true" || complain "remount,exec: it does not run"
	remount ro,staging=63M 2>"$TMP/said" || complain "remount,ro"
	has "staging=63M stays as it is" "$TMP/said" || complain "remount,staging=: not told: $(cat "$TMP/said")"
	touch "$mnt/h" 2>/dev/null && complain "remount,ro: it writes"
	[ "$(cat "$mnt/f")" = hello ] && "$mnt/true" || complain "remount,ro: it does not read"
	remount rw || complain "remount,rw"
	exec 7>"$mnt/h" || complain "remount,rw: it does not write"
	remount ro 2>/dev/null && complain "remount,ro: with a file open for writing"
	exec 7>&-
	has nosuid,nodev <(grep " $mnt " /proc/mounts) || complain "remount: $(grep " $mnt " /proc/mounts)"
	umount "$mnt"
	retry 20 lib_pid_gone "$pid"
	rm "$store/true" "$store/h"
fi

# io_uring's rings may count as locked memory: then a low limit is named.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	if bash -c 'ulimit -l 16; exec setpriv --bounding-set=-ipc_lock "$@"' - "$cairnfs" "$store" "$mnt" -o $small 2>"$TMP/said"; then
		pid=$(keeper_pid "$mnt")
		umount "$mnt"
		retry 20 lib_pid_gone "$pid"
	else
		grep -q 'ulimit -l' "$TMP/said" || complain "little locked memory: $(cat "$TMP/said")"
	fi
fi

# fstab's way, through mount.fuse of the fuse3 package.
if command -v mount.fuse3 >/dev/null; then
	if mount.fuse3 "$cairnfs#$store" "$mnt" -o $small; then
		retry 20 answers || complain "mount.fuse3: not mounted"
		pid=$(keeper_pid "$mnt")
		[ "$(cat "$mnt/f")" = hello ] || complain "mount.fuse3: cannot read"
		umount "$mnt"
		retry 20 lib_pid_gone "$pid"
	else
		complain "mount.fuse3: exit code $?"
	fi
else
	note "mount -t fuse.cairnfs: not tried, no mount.fuse3 here"
fi
[ $bad = 0 ] || die "see above"
