#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# While a checkpoint is fetched a job saves it anew: the fetch never gives its files names in a directory that it did not
# see, or that changed meanwhile, neither for a reader nor by hand, and `latest` does not lead to a mixture. What is left of
# a checkpoint is completed, in the order of the mount. All of it also where the store has no RENAME_NOREPLACE, as NFS.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/tier.inc"
t=$TMP/tier ref=$TMP/ref
# A fetch waits when it has locked the directory that it writes, or before it gives a name: while $GATE/lock, or
# $GATE/rename, exists. $GATE/at is where it is. As on NFS: $GATE/nfs.
cat >"$TMP/gate.c" <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *gate(char path[4096], const char *name)
{
	snprintf(path, 4096, "%s/%s", getenv("GATE"), name);
	return path;
}

static void wait_at(const char *name)
{
	char path[4096], at[4096];

	for (int first = 1; !access(gate(path, name), F_OK); first = 0) {
		if (first)
			close(open(gate(at, "at"), O_CREAT | O_WRONLY, 0600));
		usleep(10000);
	}
}

int flock(int fd, int op)
{
	char link[64], path[4096] = "";
	long rc = syscall(SYS_flock, fd, op);

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (!rc && readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "/.cairn-fetch."))
		wait_at("lock");
	return (int)rc;
}

int renameat2(int d1, const char *n1, int d2, const char *n2, unsigned flags)
{
	char path[4096];

	if (strstr(n1, ".cairn-fetch."))
		wait_at("rename");
	if (flags && !access(gate(path, "nfs"), F_OK)) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_renameat2, d1, n1, d2, n2, flags);
}
END
"${CC:-cc}" -shared -fPIC -o "$TMP/gate.so" "$TMP/gate.c" || die "cc"
export GATE=$TMP/gate
mkdir "$GATE" "$t" "$ref" "$ref/run"
for i in 1 2 3 4 5 6; do
	cp -r "$assets/dcp" "$ref/run/step-$i"
	touch -d "$((20 - i)) days ago" "$ref/run/step-$i"/{*,.metadata}
done
mkdir -p "$ref/dir/late"
cp -r "$ref/run/step-1" "$ref/dir/late"
cp "$(find "$assets" -name "*.pt" | head -1)" "$ref/last.ckpt"
expect 0 "$cairn" tier push -q "$ref" "$t"

closed() { rm -f "$GATE/at"; touch "$GATE/$1"; }
at_gate() { [ -e "$GATE/at" ]; }
arrives() { retry 20 at_gate || die "no fetch came to the gate: $(cat "$TMP/err" "$TMP/read" 2>/dev/null)"; }
opened() { rm "$GATE/$1"; }
log_has() { has -- "$1" "$s"/.cairn/*/log; }
ended() { [ "$(status_field "$m" fetch.fetching)" = null ]; }
names() { (cd "$1" && find . -mindepth 1 | sort | tr '\n' ' '); }
# reads FILE: in the background
reads() { cat "$m/.cairn/tier/$1" >"$TMP/read" 2>"$TMP/err" & reader=$!; }
no_stage() { [ -z "$(find "$s" -name '.cairn-fetch.*')" ]; }

LD_PRELOAD=$TMP/gate.so start_mount "$s" "$m" "tier=$t"

# A job makes the directory while the fetch copies, and just before it gives the name; the reader has the tier's bytes.
n=0
for at in lock rename; do
	n=$((n + 1))
	closed $at
	reads run/step-$n/.metadata
	arrives
	mkdir -p "$m/run/step-$n" || die "mkdir"
	exec 5>"$m/run/step-$n/__0_0.distcp"
	echo new >&5
	opened $at
	wait $reader || die "$at: the reader: $(cat "$TMP/err")"
	cmp "$TMP/read" "$ref/run/step-$n/.metadata" || die "$at: other bytes were read"
	retry 60 ended || die "$at: the fetch goes on: $(status_field "$m" fetch)"
	exec 5>&-
	expect 0 "$cairn" wait "$m"
	[ "$(names "$s/run/step-$n")" = "./__0_0.distcp " ] || die "$at: in the job's directory: $(names "$s/run/step-$n")"
	[ "$(names "$m/run/step-$n")" = "./__0_0.distcp " ] || die "$at: on the mount: $(names "$m/run/step-$n")"
	log_has "run/step-$n cannot be fetched from the tier: .*run/step-$n: made or changed while it was fetched" ||
		die "$at: not told: $(cat "$s"/.cairn/*/log)"
	no_stage || die "$at: what was fetched is left"
	[ ! -e "$m/run/step-$n/.metadata" ] || die "$at: a mixture"
done

# One that is being saved is not fetched, and nothing is copied for that.
exec 5>"$m/run/step-1/__1_0.distcp"
expect 1 "$cairn" fetch "$m/run/step-1"
says err 'run/step-1: a job writes it'
no_stage || die "fetched for nothing"
exec 5>&-
expect 0 "$cairn" wait "$m"

# What is left of one is completed, through the mount; not if a job writes into it meanwhile.
mkdir "$s/run/step-3" "$s/run/step-4"
cp -p "$ref/run/step-3/__1_0.distcp" "$s/run/step-3"
cp -p "$ref/run/step-4/__1_0.distcp" "$s/run/step-4"
expect 0 "$cairn" fetch "$m/run/step-3"
says out '^fetched  run/step-3 '
same_tree "$ref/run/step-3" "$m/run/step-3"
same_tree "$ref/run/step-3" "$s/run/step-3"
expect 0 "$cairn" fetch "$m/run/step-5"
by_mount() { has -- '"from":"run/.cairn-fetch.step-5","to":"run/step-5"' "$s"/.cairn/*/timeline; }
retry 20 by_mount || die "it got its name past the mount: $(cat "$s"/.cairn/*/timeline)"
no_stage || die "what was fetched is left"
closed lock
reads run/step-4/.metadata
arrives
echo new >"$m/run/step-4/__7_0.distcp"
opened lock
wait $reader || die "completed: the reader: $(cat "$TMP/err")"
retry 60 ended || die "completed: the fetch goes on"
[ "$(names "$m/run/step-4")" = "./__1_0.distcp ./__7_0.distcp " ] || die "completed: $(names "$m/run/step-4")"
log_has "run/step-4 cannot be fetched from the tier: .*made or changed" || die "completed: not told"

# Beside a directory that waits for its place in the order: what the store has there is not seen on the mount yet.
head -c 150M /dev/zero | tr '\0' x >"$m/big"
mkdir "$m/dir" "$m/dir/late"
expect 0 "$cairn" fetch "$m/dir/late/step-1"
same_tree "$ref/dir/late/step-1" "$m/dir/late/step-1"
same_tree "$ref/dir/late/step-1" "$s/dir/late/step-1"
rm -r "$m/dir" "$m/big"

# Of one file; and a name that the job has opened, and not closed.
closed lock
reads last.ckpt
arrives
exec 5>"$m/last.ckpt"
opened lock
wait $reader
retry 60 ended || die "one file: the fetch goes on"
echo mine >&5
exec 5>&-
expect 0 "$cairn" wait "$m"
[ "$(cat "$s/last.ckpt")" = mine ] || die "one file: the store has $(cat "$s/last.ckpt")"
rm "$m/last.ckpt"
touch "$GATE/nfs"	# which the mount's store need not have
expect 0 "$cairn" fetch "$m/last.ckpt"
cmp "$s/last.ckpt" "$ref/last.ckpt" || die "one file"
expect 0 "$cairn" fetch "$m/run/step-6"
same_tree "$ref/run/step-6" "$s/run/step-6"
rm "$GATE/nfs"
stop_mount "$m"

# The next start finds no mixture.
start_mount "$s" "$m"
[ "$("$cairn" latest "$m/run")" = "$m/run/step-6" ] || die "latest: $("$cairn" latest "$m/run")"
for n in 1 2 4; do
	[ ! -e "$m/run/step-$n/.metadata" ] || die "step-$n has a commit file of another save"
done
stop_mount "$m"

# By hand, into a directory; with RENAME_NOREPLACE and without.
by_hand() { LD_PRELOAD=$TMP/gate.so "$cairn" tier fetch -q "$t" "$@" >"$TMP/out" 2>"$TMP/err"; }
for nfs in '' nfs; do
	d=$TMP/dir$nfs
	mkdir -p "$d/run"
	[ -z "$nfs" ] || touch "$GATE/nfs"
	by_hand "$d" last.ckpt || die "${nfs:-plain}: one file: $(cat "$TMP/err")"
	cmp "$d/last.ckpt" "$ref/last.ckpt" || die "${nfs:-plain}: one file"
	by_hand "$d" run/step-1 || die "${nfs:-plain}: a directory: $(cat "$TMP/err")"
	same_tree "$ref/run/step-1" "$d/run/step-1"
	rm "$d/run/step-1/.metadata" "$d/run/step-1/__0_0.distcp"
	by_hand "$d" run/step-1 || die "${nfs:-plain}: completed: $(cat "$TMP/err")"
	same_tree "$ref/run/step-1" "$d/run/step-1"
	[ "$(names "$d")" = "./last.ckpt ./run ./run/step-1 $(cd "$d" && find run/step-1 -mindepth 1 -printf './%p\n' | sort | tr '\n' ' ')" ] ||
		die "${nfs:-plain}: left: $(names "$d")"
	n=1
	for at in lock rename; do
		n=$((n + 1))
		closed $at
		by_hand "$d" run/step-$n &
		fetch=$!
		arrives
		mkdir "$d/run/step-$n"
		ino=$(stat -c %i "$d/run/step-$n")
		opened $at
		wait $fetch && die "${nfs:-plain}, $at: fetched into a directory that was made meanwhile"
		says err "run/step-$n: made or changed while it was fetched; move it away and fetch again"
		[ "$(stat -c %i "$d/run/step-$n") $(names "$d/run/step-$n")" = "$ino " ] ||
			die "${nfs:-plain}, $at: the job's directory was replaced, or has $(names "$d/run/step-$n")"
		rmdir "$d/run/step-$n"
		by_hand "$d" run/step-$n || die "${nfs:-plain}, $at: again: $(cat "$TMP/err")"
		same_tree "$ref/run/step-$n" "$d/run/step-$n"
	done
done

# By hand, into a mount.
rm -f "$GATE/nfs"
rm -rf --one-file-system "$s"
start_mount "$s" "$m"
for at in lock rename; do
	closed $at
	by_hand "$m" run/step-1 &
	fetch=$!
	arrives
	mkdir "$m/run/step-1"
	opened $at
	wait $fetch && die "a mount, $at: fetched into a directory that was made meanwhile"
	says err 'run/step-1: made or changed while it was fetched'
	[ -z "$(names "$m/run/step-1")" ] || die "a mount, $at: $(names "$m/run/step-1")"
	rmdir "$m/run/step-1"
done
by_hand "$m" || die "a mount: $(cat "$TMP/err")"
same_tree "$ref/run" "$m/run"
cmp "$ref/last.ckpt" "$m/last.ckpt" || die "a mount: one file"
