#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
#
# What is removed gives its space back, also after a death of the worker: no descriptor keeps the blocks.
. "$(dirname "$0")/../lib/lib.sh"
store=$TMP/store mnt=$TMP/mnt

# staging holds a part of the files only: the others are read in the store
start_mount "$store" "$mnt" staging=32M
deleted() { find "/proc/$(worker_pid "$mnt")/fd" -lname "$store/* (deleted)" | wc -l; }
freed() { [ "$(deleted)" = 0 ]; }

save()
{
	mkdir "$mnt/$1"
	for i in $(seq 60); do
		head -c 1000000 /dev/zero >"$mnt/$1/f$i" || die "write"
	done
	within 60 "$BUILD/cairn" wait -q "$mnt" || die "wait"
}

save before
kill -KILL "$(worker_pid "$mnt")"
rm -r "$mnt/before" || die "rm"
within 60 "$BUILD/cairn" wait -q "$mnt" || die "wait"
retry 20 freed || die "$(deleted) removed files are still open"

# One that a program has open stays readable, until that closes it.
save readers
exec 7<"$mnt/readers/f1"
kill -KILL "$(worker_pid "$mnt")"
rm -r "$mnt/readers" || die "rm"
within 60 "$BUILD/cairn" wait -q "$mnt" || die "wait"
cmp <(head -c 1000000 /dev/zero) - <&7 || die "a removed file lost its reader"
exec 7<&-
retry 20 freed || die "$(deleted) removed files are still open after the last close"
stop_mount "$mnt"
