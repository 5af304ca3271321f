#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# The service manager is told (sd_notify(3)) when the mount answers, and when it has ended: by a socket with a path and
# by an abstract one, in the foreground and as a daemon, also after the worker was replaced.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool python3
s=$TMP/store m=$TMP/mnt

# Each message is a line of $TMP/told, with spaces for its newlines.
manager()
{
	: >"$TMP/told"
	rm -f "$TMP/bound"
	python3 - "$1" "$TMP/told" "$TMP/bound" <<'END' &
import socket, sys
name = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("\0" + name[1:] if name[0] == "@" else name)
open(sys.argv[3], "w").close()
with open(sys.argv[2], "a", buffering=1) as told:
    while True:
        told.write(s.recv(4096).decode().replace("\n", " ") + "\n")
END
	manager=$!
	retry 20 test -e "$TMP/bound" || die "no manager"
}
on_exit 'kill $manager 2>/dev/null'
told() { [ "$(grep -c "^$1" "$TMP/told")" = "$2" ]; }
answers() { status_field "$m" pid >/dev/null 2>&1; }

for name in "$TMP/notify" "@cairnfs-test-$$"; do
	manager "$name"
	NOTIFY_SOCKET=$name start_mount "$s" "$m"
	pid=$(keeper_pid "$m")
	# The starting process has ended: the manager must know already.
	retry 20 told "READY=1 MAINPID=$pid\$" 1 || die "$name: $(cat "$TMP/told")"
	told STOPPING 0 || die "$name: ended while mounted: $(cat "$TMP/told")"
	kill -KILL "$(worker_pid "$m")"
	retry 20 told "READY=1 MAINPID=$pid\$" 2 || die "$name: another worker: $(cat "$TMP/told")"
	retry 20 answers || die "$name: no answer"
	stop_mount "$m"
	retry 20 told 'STOPPING=1$' 1 || die "$name: the end: $(cat "$TMP/told")"
	kill $manager
	wait $manager 2>/dev/null
done

# What is not durable yet: a store that is frozen takes nothing.
manager "$TMP/notify-s"
make_disk disk ext4 128M
NOTIFY_SOCKET=$TMP/notify-s start_mount "$TMP/disk/store" "$m"
retry 20 told 'STATUS=everything closed is durable$' 1 || die "idle: $(cat "$TMP/told")"
on_exit 'fsfreeze -u "$TMP/disk" 2>/dev/null'
fsfreeze -f "$TMP/disk" || die "fsfreeze"
head -c 100K /dev/zero >"$m/file" &	# its close may wait for the store
retry 20 told 'STATUS=0.1 MiB of 1 file not in the store yet$' 1 || die "pending: $(cat "$TMP/told")"
fsfreeze -u "$TMP/disk"
retry 20 told 'STATUS=everything closed is durable$' 2 || die "durable again: $(cat "$TMP/told")"
wait $! || die "write"
stop_mount "$m"
kill $manager
wait $manager 2>/dev/null

# In the foreground the process that was started is the one.
manager "$TMP/notify-f"
NOTIFY_SOCKET=$TMP/notify-f "$BUILD/cairnfs" -f "$s" "$m" -o staging=64M,pool=0 </dev/null 2>"$TMP/err" &
front=$!
# shellcheck disable=SC2034	# of lib.sh
LIB_STORE[$m]=$s
retry 20 told "READY=1 MAINPID=$front\$" 1 || die "-f: $(cat "$TMP/told" "$TMP/err")"
answers || die "-f: told before the mount answers"
# shellcheck disable=SC2034
LIB_KEEPER[$m]=$front
# shellcheck disable=SC2034
LIB_STAGING[$(status_field "$m" staging.dir)]=1
within 30 "$BUILD/cairn" umount -q "$m" || die "cairn umount"
wait $front || die "-f: the end: $(cat "$TMP/err")"
retry 20 told 'STOPPING=1$' 1 || die "-f: the end: $(cat "$TMP/told")"
kill $manager
wait $manager 2>/dev/null

# Nobody listens: the mount is as ever.
NOTIFY_SOCKET=$TMP/nobody start_mount "$s" "$m"
stop_mount "$m"
exit 0
