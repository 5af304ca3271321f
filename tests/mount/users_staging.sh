#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# staging_dir where another user can write: refused, and nothing is mounted elsewhere; and where somebody
# exchanges the directory between the look and the mount, the mount is where was looked.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool setpriv "${CC:-cc}"
[ ! -e "$BUILD/sanitizer" ] || skip "a sanitizer wants to be the first library"

B=54302
cd /
chmod 755 "$TMP"
s=$TMP/store m=$TMP/m
start_mount "$s" "$m"
id=$(status_field "$m" store_id)
stop_mount "$m"

refused()	# why DIR
{
	try_mount "$s" "$m" "staging_dir=$2" 2>"$TMP/err" && die "$1: taken"
	has "belongs to another user or can be written by others" <"$TMP/err" || die "$1: it says: $(cat "$TMP/err")"
	awk -v p="$TMP/" 'index($5, p) == 1 { found = 1 } END { exit !found }' /proc/self/mountinfo &&
		die "$1: something is mounted: $(grep "$TMP" /proc/self/mountinfo)"
}
mkdir -m 777 "$TMP/open"
refused "for all to write" "$TMP/open"
install -d -o $B "$TMP/his"
refused "a user's own" "$TMP/his"
mkdir -m 1777 "$TMP/sticky"
install -d -o $B -m 700 "$TMP/sticky/$id"
refused "a user's directory by the store's id" "$TMP/sticky"
rmdir "$TMP/sticky/$id"
mkdir "$TMP/victim"
ln -s "$TMP/victim" "$TMP/sticky/$id"
try_mount "$s" "$m" "staging_dir=$TMP/sticky" 2>/dev/null && die "a symlink by the store's id: taken"
rm "$TMP/sticky/$id"
start_mount "$s" "$m" "staging_dir=$TMP/sticky"
echo a >"$m/a"
stop_mount "$m"
[ -z "$(ls -A "$TMP/sticky")" ] || die "left behind: $(ls -A "$TMP/sticky")"

# What root may do there stands for what another user did: mount(2) is held up for an exchange.
cat >"$TMP/swap.c" <<'END'
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int mount(const char *a, const char *b, const char *c, unsigned long d, const void *e)
{
	static int done;
	char from[600], away[620];
	const char *at = getenv("SWAP");
	if (at && !done++ && c && !strcmp(c, "tmpfs")) {
		snprintf(from, sizeof(from), "%s", at);
		snprintf(away, sizeof(away), "%s.away", at);
		if (rename(from, away) || symlink(getenv("VICTIM"), from))
			perror("swap");
	}
	return (int)syscall(SYS_mount, a, b, c, d, e);
}
END
"${CC:-cc}" -shared -fPIC -o "$TMP/swap.so" "$TMP/swap.c" || die "cc"
SWAP=$TMP/sticky/$id VICTIM=$TMP/victim LD_PRELOAD=$TMP/swap.so try_mount "$s" "$m" "staging_dir=$TMP/sticky" 2>/dev/null &&
	die "exchanged, and taken"
on_exit "umount \"$TMP/victim\" 2>/dev/null"
is_mounted "$TMP/victim" && die "mounted where a symlink led"
umount "$TMP/sticky/$id.away" 2>/dev/null
true
