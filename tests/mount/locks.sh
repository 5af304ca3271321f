#!/bin/bash
# SPDX-License-Identifier: MIT
# An exclusive lock is granted once. The kernel keeps locks by its inode; so whoever has a lock file open only for reading
# (flock FILE COMMAND) and whoever opens it for writing (exec 9>FILE; flock 9, Python's filelock) must get one inode.
# Lock files are empty: just made, in staging, in the store, after a remount, after a worker's death. On a file that is not
# empty, locks meet if the first has it open for writing, and if the second does not truncate a file that staging has.
. "$(dirname "$0")/../lib/lib.sh"

s=$TMP/store m=$TMP/mnt
mkdir -p "$s"
for i in 1 2 3 4; do : >"$s/stored$i"; done
start_mount "$s" "$m" staging=64M

cat >"$TMP/locks.py" <<'EOF'
import fcntl, os, struct, sys

OPENS = {
    "trunc": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,  # exec 9>FILE
    "rdwr": os.O_RDWR,
    "rdwr_trunc": os.O_RDWR | os.O_CREAT | os.O_TRUNC,  # filelock
    "append": os.O_WRONLY | os.O_CREAT | os.O_APPEND,  # exec 9>>FILE
}


def holder(path, how):
    """path is open so and locked, until a line comes; the others must not get it meanwhile."""
    fd = os.open(path, OPENS[how] if how in OPENS else os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def granted(fd):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def record_granted(fd):
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
        return True
    except BlockingIOError:
        return False


def check(path, fd, how):
    """fd has path locked; opened again, whichever way, it is locked; and not after that."""
    other = os.open(path, OPENS[how])
    same = os.fstat(fd).st_ino == os.fstat(other).st_ino
    if granted(other):
        sys.exit(f"{path}, {how}: the lock is granted twice")
    fcntl.flock(fd, fcntl.LOCK_UN)
    if not granted(other):
        sys.exit(f"{path}, {how}: the lock is not granted at all")
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    if record_granted(other):
        sys.exit(f"{path}, {how}: the record lock is granted twice")
    if not same:
        sys.exit(f"{path}, {how}: another st_ino")
    os.write(other, b"x")
    if os.pread(fd, 9, 0) != b"x":
        sys.exit(f"{path}, {how}: its holder reads {os.pread(fd, 9, 0)!r}")
    os.close(other)
    if os.stat(path).st_size != 1 or os.pread(fd, 9, 0) != b"x":
        sys.exit(f"{path}, {how}: closed, it is not as written")
    os.close(fd)


mode, path = sys.argv[1:3]
if mode == "fresh":
    for how in OPENS:
        check(path + how, holder(path + how, "read"), how)
elif mode == "made":
    for how in OPENS:
        os.close(os.open(path + how, OPENS["trunc"]))
        check(path + how, holder(path + how, "read"), how)
elif mode == "ready":  # the files are there
    for path, how in zip(sys.argv[2:], OPENS):
        check(path, holder(path, "read"), how)
elif mode == "held":
    fds = [holder(path, "read") for path in sys.argv[2:]]
    print("held", flush=True)
    sys.stdin.readline()
    for path, fd, how in zip(sys.argv[2:], fds, OPENS):
        check(path, fd, how)
elif mode == "anew":  # removed and made again it is another file, by right
    fd = holder(path, "read")
    os.unlink(path)
    other = os.open(path, OPENS["rdwr_trunc"])
    if not granted(other):
        sys.exit("another file of that name is locked")
    check(path, other, "rdwr")
elif mode == "full":  # how the first has it open, how the second opens it
    fd = holder(path, sys.argv[3])
    other = os.open(path, OPENS[sys.argv[4]])
    if os.fstat(fd).st_ino != os.fstat(other).st_ino or granted(other):
        sys.exit(f"{path}, {sys.argv[3:]}: the lock is granted twice")
elif mode == "unsealed":  # a writer has it open, too
    w = os.open(path, OPENS["trunc"])
    fd = holder(path, "read")
    os.close(w)
    check(path, fd, "rdwr_trunc")
EOF
locks() { within 30 python3 "$TMP/locks.py" "$@" || die "$*"; }

four() { for i in 1 2 3 4; do printf '%s\n' "$1$i"; done; }
make() { for f in $(four "$1"); do : >"$f"; done; }

# Those that wait for a line are told after COMMAND.
held() # COMMAND FILE...
{
	local command=$1
	shift
	coproc HOLDER { within 60 python3 "$TMP/locks.py" held "$@" 2>"$TMP/held.err"; }
	local pid=$HOLDER_PID line=
	read -r -t $((20 * CAIRN_TEST_SLOW)) line <&"${HOLDER[0]}"
	[ "$line" = held ] || die "not held: $(cat "$TMP/held.err")"
	$command
	echo >&"${HOLDER[1]}"
	wait "$pid" || die "$command: $(cat "$TMP/held.err")"
}
publish() { wait_durable "$m"; }
kill_worker()
{
	local n
	n=$(status_field "$m" restarts)
	kill -9 "$(worker_pid "$m")"
	retry 20 restarted "$n" || die "no new worker"
}
restarted() { [ "$(status_field "$m" restarts)" -gt "$1" ] 2>/dev/null; }

locks fresh "$m/fresh-"
locks made "$m/made-"
locks anew "$m/anew"
locks unsealed "$m/unsealed"
make "$m/durable"
wait_durable "$m"
locks ready $(four "$m/durable")
locks ready $(four "$m/stored")
# full HOW HOW...: of a file that is not empty, staged, durable or only in the store
full()
{
	local first=$1 how f
	shift
	for how; do
		f=full-$first-$how
		echo full | tee "$s/$f-stored" "$m/$f-durable" >"$m/$f-staged"
		wait_durable "$m/$f-durable"
		locks full "$m/$f-staged" "$first" "$how"
		locks full "$m/$f-durable" "$first" "$how"
		[ "$first" = read ] || locks full "$m/$f-stored" "$first" "$how"
	done
}
full rdwr trunc rdwr rdwr_trunc append
full append trunc rdwr rdwr_trunc append
full read rdwr append
make "$m/later"
held publish $(four "$m/later")
make "$m/killed"
held kill_worker $(four "$m/killed")

# In the store alone, then held across a worker's death.
make "$m/again"
stop_mount "$m"
for f in $(four "$s/again") $(four "$s/stored"); do [ -e "$f" ] || die "$f is not in the store"; done
[ "$(cat $(four "$s/stored"))" = xxxx ] || die "what was written is not in the store"
make "$s/more"
start_mount "$s" "$m" staging=64M
locks ready $(four "$m/again")
held kill_worker $(four "$m/more")
make "$m/kept"
wait_durable "$m"
held kill_worker $(four "$m/kept")
stop_mount "$m"
[ "$(cat $(four "$s/more") $(four "$s/kept"))" = xxxxxxxx ] || die "what was written is not in the store"
