#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# waits: yes
# When cairn umount has returned, the store can be served at once: whoever holds its lock was waited for.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_tool python3

# Holds the same lock as process $1, like a child that has inherited it, makes $2, and ends with file $3.
hold_lock()
{
	exec python3 - "$@" "$s" <<'PY'
import ctypes, os, sys, time
pid, ready, end, store = int(sys.argv[1]), *sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
fd = os.pidfd_open(pid)
for n in os.listdir(f"/proc/{pid}/fd"):
    at = os.readlink(f"/proc/{pid}/fd/{n}")
    if at.startswith(f"{store}/.cairn/") and at.endswith("/lock"):
        if libc.syscall(438, fd, int(n), 0) < 0:  # pidfd_getfd
            sys.exit(os.strerror(ctypes.get_errno()))
        open(ready, "w").close()
        while not os.path.exists(end):
            time.sleep(0.02)
        sys.exit()
sys.exit("the keeper has no lock")
PY
}
ended() { ! kill -0 "$1" 2>/dev/null; }
unmounted() { ! is_mounted "$m"; }

# A process that the daemon started has not closed the lock yet.
start_mount "$s" "$m"
keeper=$(keeper_pid "$m")
hold_lock "$keeper" "$TMP/held" "$TMP/end" 2>"$TMP/holder.err" &
holder=$!
on_exit 'touch "$TMP/end"'
retry 20 eval '[ -e "$TMP/held" ] || ended $holder' && [ -e "$TMP/held" ] || skip "pidfd_getfd: $(cat "$TMP/holder.err")"
echo 1 >"$m/f"
expect 3 "$cairn" umount --timeout 3 "$m"
says err "is still locked"
unmounted || die "not unmounted"
touch "$TMP/end"
wait $holder || die "holder: $?"
start_mount "$s" "$m"
[ "$(cat "$m/f")" = 1 ] || die "f"

# The same, and it waits. A cairnfs that has the store by then is not waited for.
rm "$TMP/end" "$TMP/held"
keeper=$(keeper_pid "$m")
hold_lock "$keeper" "$TMP/held" "$TMP/end" &
holder=$!
retry 20 test -e "$TMP/held" || die "no holder"
"$cairn" umount "$m" 2>"$TMP/err" &
umounting=$!
retry 60 lib_pid_gone "$keeper" || die "the daemon stays"
sleep 1
! ended $umounting || die "it returned, and the store is locked"
touch "$TMP/end"
wait $holder || die "holder: $?"
start_mount "$s" "$m"
wait $umounting || die "umount: $?: $(cat "$TMP/err")"
stop_mount "$m"

# The keeper is replaced while it waits, for the tier here.
mkdir "$TMP/tier"
start_mount "$s" "$m" "tier=$TMP/tier"
mkdir "$m/run"
mv "$TMP/tier" "$TMP/away"
cp -r "$assets/dcp" "$m/run/step-1"
keeper=$(keeper_pid "$m")
device=$(mountpoint -d "$m")
"$cairn" umount --tier "$m" >"$TMP/out" 2>"$TMP/err" &
umounting=$!
is_waiting() { grep -q 'to the tier' "$TMP/err"; }
retry 60 is_waiting || die "umount: $(cat "$TMP/err")"
is_replaced() { [ "$(keeper_pid "$m")" != "$keeper" ]; }
kill -KILL "$keeper"
retry 20 is_replaced || die "no other keeper"
keeper=$(keeper_pid "$m")
LIB_KEEPER[$m]=$keeper
kill -STOP "$keeper"
on_exit 'kill -CONT $keeper 2>/dev/null'
mv "$TMP/away" "$TMP/tier"
retry 60 unmounted || die "not unmounted: $(cat "$TMP/err")"
# Another filesystem gets the number of its device: that is not the mount, wherever it is seen.
has_number() { mountpoint -d "$TMP/other" | has -x "$device"; }
mkdir "$TMP/other"
for _ in {1..64}; do
	has_number && break
	mount -t tmpfs none "$TMP/other" || die "mount"
	on_exit 'umount "$TMP/other"'
done
has_number || note "another filesystem of this machine got $device first"
sleep 3
! ended $umounting || die "it returned before the new keeper ended: $(cat "$TMP/err")"
kill -CONT "$keeper"
wait $umounting || die "umount: $?: $(cat "$TMP/err")"
start_mount "$s" "$m"
[ -e "$m/run/step-1/.metadata" ] || die "step-1"
stop_mount "$m"
