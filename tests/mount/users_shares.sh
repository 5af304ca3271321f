#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# No user but root takes all descriptors, or all of staging as buffers; and root not those that the worker needs.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"
need_root
need_tool setpriv

A=54301 B=54302
as() { local u=$1; shift; setpriv --reuid="$u" --regid="$u" --clear-groups "$@"; }
cd /
chmod 755 "$TMP"
store=$TMP/store mnt=$TMP/mnt
LIB_WRAP=(bash -c 'ulimit -n 1024 && exec "$@"' -)	# of the daemon
start_mount "$store" "$mnt" staging=256M,allow_other
mkdir -m 1777 "$mnt/w"
cat >"$TMP/open.py" <<'END'
import errno, os, sys, time
fds, err = [], None
for i in range(int(sys.argv[2])):
    try:
        fds.append(os.open("%s.%d" % (sys.argv[1], i), os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as e:
        err = e.errno
        break
print(len(fds), errno.errorcode.get(err, "ok"), flush=True)
if len(sys.argv) > 3:
    sys.stdin.read()
END
mkfifo "$TMP/go"
as $A python3 "$TMP/open.py" "$mnt/w/a" 700 hold <"$TMP/go" >"$TMP/out" &
holder=$!
exec 9>"$TMP/go"
retry 30 test -s "$TMP/out" || die "A opens nothing"
read -r n err <"$TMP/out"
[ "$err" = EMFILE ] && [ "$n" -le 512 ] || die "A has $n files open: $err"
[ "$n" -ge 256 ] || die "A may open only $n files"
[ ! -e "$mnt/w/a.$n" ] || die "the open that failed made its file"
[ "$(as $B python3 "$TMP/open.py" "$mnt/w/b" 100)" = "100 ok" ] || die "B cannot open files"
[ "$(python3 "$TMP/open.py" "$mnt/w/root" 100)" = "100 ok" ] || die "root cannot open files"
# counted again by the next worker
kill -KILL "$(worker_pid "$mnt")"
as $A sh -c 'echo >"$1"' - "$mnt/w/more" 2>/dev/null && die "A opens more after the worker's death"
exec 9>&-
wait $holder || die "the holder"
retry 10 as $A sh -c 'echo >"$1"' - "$mnt/w/more" 2>/dev/null || die "A cannot open when its files are closed"

if [ "$MODE" = fast ]; then
	need_passthrough "$mnt"
	cat >"$TMP/buffers.py" <<-'END'
		import errno, os, sys
		n, fds = 0, []
		try:
		    while n < 100:
		        fds.append(os.open("%s/.cairn/buffers/8388608.%d" % (sys.argv[1], n), os.O_RDWR | os.O_CREAT, 0o600))
		        n += 1
		    print(n, "ok")
		except OSError as e:
		    print(n, errno.errorcode[e.errno])
	END
	[ "$(as $A python3 "$TMP/buffers.py" "$mnt")" = "16 ENOSPC" ] || die "A's buffers: $(as $A python3 "$TMP/buffers.py" "$mnt")"
	[ "$(python3 "$TMP/buffers.py" "$mnt")" = "24 ENOSPC" ] || die "root's buffers: $(python3 "$TMP/buffers.py" "$mnt")"
fi

# Of as many files as can be opened each one is written and closed.
cat >"$TMP/all.py" <<'END'
import errno, os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
fds = []
try:
    while len(fds) < 1100:
        fds.append(os.open("%s.%d" % (sys.argv[1], len(fds)), os.O_WRONLY | os.O_CREAT))
except OSError as e:
    if e.errno != errno.EMFILE:
        raise
for fd in fds:
    os.write(fd, b"%d" % fd * 100000)
for fd in fds:
    os.close(fd)
print(len(fds))
END
if [ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 1200 ]; then
	n=$(python3 "$TMP/all.py" "$mnt/w/all") || die "a file that was opened could not be written or closed"
	[ "$n" -ge 300 ] && [ "$n" -lt 1024 ] || die "$n files could be opened"
	retry 10 grep -q "open(2) answers EMFILE" "$mnt/.cairn/status.json" || die "the status does not say why opens are refused"
	wait_durable "$mnt"
	[ "$(cat "$store"/w/all.* | wc -c)" -ge $((n * 100000)) ] || die "bytes are missing in the store"
else
	note "this process may not open 1,200 files: root's share was not tried"
fi
wait_durable "$mnt"
stop_mount "$mnt"
