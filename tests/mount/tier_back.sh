#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 180
# waits: yes
# A tier that was away, or full, is tried again at once for who waits: not after the pause that its failures have led to.
# While it is away each waits for the next try of the others: they are not more frequent than one in two seconds.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
away=$TMP/away t=$TMP/tier full=$TMP/full
mkdir -p "$t" "$full" "$TMP/m2"
mount -t tmpfs -o size=4M none "$full" 2>/dev/null || skip "no tmpfs can be mounted here"
on_exit 'umount -l "$full"'
start_mount "$s" "$m" "tier=$t"
start_mount "$TMP/s2" "$TMP/m2" "tier=$full"
save 1
expect 0 "$cairn" wait --tier "$m"
mv "$t" "$away"
mkdir "$t"
save 2
mkdir "$TMP/m2/run"
cp -r "$assets/dcp" "$TMP/m2/run/step-1"
head -c 8M /dev/urandom >"$TMP/m2/run/step-1/__2_0.distcp"

pause() { local s; s=$(status_field "$1" tier.retry_s); [ "$s" != null ] && [ "$s" -ge "$2" ]; }
retry 60 pause "$m" 10 || die "no pause: $(status_field "$m" tier)"

# Somebody waits while it is away.
expect 0 "$cairn" status "$m"
python3 - "$cairn" "$m" <<'END' || die "see above"
import json, subprocess, sys, time
cairn, m = sys.argv[1:]
waits = [subprocess.Popen([cairn, "wait", "--tier", "--timeout", "9", m + "/run/step-2"], stderr=subprocess.PIPE) for i in range(3)]
end, tries, before = time.monotonic() + 8, 0, None
while time.monotonic() < end:
    s = json.load(open(m + "/.cairn/status.json"))["tier"]["retry_s"]
    tries += before is not None and not before - 1 <= s <= before
    before = s
    time.sleep(0.1)
codes = [w.wait() for w in waits]
print(f"# tries in 8 s: {tries}")
assert codes == [3, 3, 3], [w.stderr.read() for w in waits]
assert 1 <= tries <= 6, tries
END
pause "$m" 10 || retry 60 pause "$m" 10 || die "no pause: $(status_field "$m" tier)"

rmdir "$t"
mv "$away" "$t"
expect 0 "$cairn" wait --tier --timeout 8 "$m/run/step-2"
[ -e "$t/.cairn/manifests/run/step-2/manifest.json" ] || die "step-2 is not there"
expect 0 "$cairn" wait --tier --timeout 8 "$m"

failed_for() { [ "$(status_field "$TMP/m2" tier.error_since_s)" -ge "$1" ]; }
retry 60 failed_for 40 || die "no error: $(status_field "$TMP/m2" tier)"
mount -o remount,size=64M "$full"
expect 0 "$cairn" wait --tier --timeout 8 "$TMP/m2"
[ -e "$full/.cairn/manifests/run/step-1/manifest.json" ] || die "step-1 is not there"
stop_mount "$TMP/m2"
stop_mount "$m"
