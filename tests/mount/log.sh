#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# Where messages go: STORE/.cairn/HOST/log and, with -f, stderr, with the levels that the journal takes if it reads
# that; else syslog. -o log= chooses by level. Start, end, the worker's replacement, a halt, a retry and a late
# checkpoint have a sentence each, with the path. Equal lines are counted instead of repeated.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool python3 unshare
s=$TMP/store m=$TMP/mnt cairn=$BUILD/cairn front=0

log() { cat "$s"/.cairn/*/log; }
logged() { has -F -- "$1" "$s"/.cairn/*/log; }
await() { retry 20 logged "$1" || die "not logged: $1; but: $(log)"; }

# foreground OUTPUT PROGRAM OPTIONS: cairnfs -f, its stderr in OUTPUT
foreground()
{
	"$2" -f "$s" "$m" -o "staging=64M,pool=0$3" </dev/null 2>"$1" &
	front=$!
	LIB_STORE[$m]=$s
	retry 20 answers || die "not mounted: $(cat "$1")"
	LIB_KEEPER[$m]=$(keeper_pid "$m")
	LIB_STAGING[$(status_field "$m" staging.dir)]=1
}
answers() { status_field "$m" pid >/dev/null 2>&1; }
end_foreground()
{
	within 30 "$cairn" umount -q "$m" || die "cairn umount: $(log)"
	wait $front || die "the end: $(log)"
}

# In the background: the whole life of a mount.
start_mount "$s" "$m"
await "$s: cairnfs $("$cairn" --version | cut -d' ' -f2) serves it at $m; staging is 512 MiB in /"
kill -KILL "$(worker_pid "$m")"
await "warning: $s: the worker died by signal 9; starting another"
await "$s: another worker serves it at $m"
for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do "$cairn" retry "$m" >/dev/null || die "cairn retry"; done
stop_mount "$m"
await "$s: the mount at $m has ended; everything is in the store"
[ "$(log | grep -c "\] $s: cairn retry: what failed is tried again")" = 5 ] || die "equal lines are repeated: $(log)"
log | has -E '\] 7 more times in [0-9]+ s: .*cairn retry' || die "what was not logged is not counted: $(log)"

# In the foreground the same on stderr, for people; both have it.
rm -r "$s/.cairn"
mkdir "$m" 2>/dev/null
foreground "$TMP/err" "$BUILD/cairnfs" ""
end_foreground
has -F "cairnfs: $s: the mount at $m has ended" "$TMP/err" || die "stderr: $(cat "$TMP/err")"
has '^<' "$TMP/err" && die "levels on a terminal: $(cat "$TMP/err")"
await "$s: the mount at $m has ended"

# For the journal with levels, and only if stderr is what JOURNAL_STREAM says.
: >"$TMP/journal"
JOURNAL_STREAM=$(stat -c %d:%i "$TMP/journal") foreground "$TMP/journal" "$BUILD/cairnfs" ""
kill -KILL "$(worker_pid "$m")"
await "another worker serves"
end_foreground
has -F "<5>$s: cairnfs" "$TMP/journal" && has -F "<4>$s: the worker died" "$TMP/journal" ||
	die "the journal gets: $(cat "$TMP/journal")"
grep -v '^<[3-7]>' "$TMP/journal" && die "lines without a level"
JOURNAL_STREAM=1:1 foreground "$TMP/err" "$BUILD/cairnfs" ""
end_foreground
has '^<' "$TMP/err" && die "levels for a journal that does not read them"

# A level.
foreground "$TMP/err" "$BUILD/cairnfs" ,log=error
kill -KILL "$(worker_pid "$m")"
retry 20 answers || die "no other worker"
end_foreground
[ ! -s "$TMP/err" ] || die "log=error: $(cat "$TMP/err")"
"$BUILD/cairnfs" "$s" "$m" -o log=loud 2>"$TMP/err" && die "log=loud is taken"
has 'log= takes error, warning, notice, info or debug' "$TMP/err" || die "log=loud: $(cat "$TMP/err")"

# A store that fails from an operation on: a halt, an asked retry that fails, which only log=info tells.
export CAIRNFS_FAULT=1:@60+:eio
foreground "$TMP/err" "$BUILD/tests/cairnfs" ,log=info
unset CAIRNFS_FAULT
for i in $(seq 40); do
	echo text >"$m/file-$i" 2>/dev/null || break
done
await "error: the store fails at file-"
"$cairn" retry "$m" >/dev/null || die "cairn retry"
await "the store still fails at file-"
status_field "$m" notices | has 'the store fails at' || die "no notice: $(status_field "$m" notices)"
status_field "$m" notices | has -e 'still fails' -e '<' && die "levels in notices: $(status_field "$m" notices)"
kill_mount "$m"
wait $front 2>/dev/null

# A checkpoint that waits for the shards of another node.
s=$TMP/late
mkdir "$s"
foreground "$TMP/err" "$BUILD/cairnfs" ,commit_wait=1
mkdir "$TMP/b" "$TMP/staging-b"
# shellcheck disable=SC2016	# the other shell's
unshare --uts sh -c 'hostname node-b && exec "$0" "$1" "$2" -o "$3"' "$BUILD/cairnfs" "$s" "$TMP/b" \
	"staging=64M,pool=0,staging_dir=$TMP/staging-b" || die "node b does not mount"
LIB_STORE[$TMP/b]=$s
LIB_KEEPER[$TMP/b]=$(keeper_pid "$TMP/b")
mkdir "$m/step-1"
cp "$LIB_TOP/tests/assets/dcp/__0_0.distcp" "$m/step-1" || die "the shard"
cp "$LIB_TOP/tests/assets/dcp/.metadata" "$m/step-1/.metadata.tmp" || die "the metadata"
mv "$m/step-1/.metadata.tmp" "$m/step-1/.metadata"
await "warning: step-1/.metadata is late: "
await "with: cairn commit --force DIR"
cp "$LIB_TOP/tests/assets/dcp/__1_0.distcp" "$TMP/b/step-1" || die "the other shard"
await "no commit is late any more"
stop_mount "$TMP/b"
end_foreground

# Syslog: a socket at /dev/log, in a /dev of this case.
s=$TMP/store
cat >"$TMP/syslogd" <<'END'
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("/dev/log")
os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))
while True:
    line = s.recv(4096)
    with open(sys.argv[1], "ab") as f:
        f.write(line + b"\n")
END
# shellcheck disable=SC2016	# the other shell's
unshare -m --propagation private "$LIB_TOP/tests/lib/own_mounts" bash -c '
	set -e
	mkdir "$TMP/dev"
	mount -t tmpfs -o mode=755 dev "$TMP/dev"
	for node in null zero urandom fuse; do
		cp -a "/dev/$node" "$TMP/dev"
	done
	mkdir "$TMP/dev/shm"
	ln -s /proc/self/fd "$TMP/dev/fd"
	mount --bind "$TMP/dev" /dev
	python3 "$TMP/syslogd" "$TMP/syslog" &
	for _ in $(seq $((20 * CAIRN_TEST_SLOW))); do [ -e "$TMP/syslog" ] && break; sleep 0.1; done
	"$BUILD/cairnfs" "$1" "$2" -o staging=64M,pool=0 </dev/null
	"$BUILD/cairn" umount -q "$2"
	for _ in $(seq $((20 * CAIRN_TEST_SLOW))); do grep -q "has ended" "$TMP/syslog" && break; sleep 0.1; done
	kill %1
' - "$s" "$m" || die "the mount with a syslog"
has -E "^<29>cairnfs\[[0-9]+\]: $s: cairnfs .* serves it" "$TMP/syslog" &&
	has -F "$s: the mount at $m has ended" "$TMP/syslog" || die "syslog gets: $(cat "$TMP/syslog")"
exit 0
