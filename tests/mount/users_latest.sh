#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# .cairn/latest and user.cairn.latest for two users: no name below a directory that the caller may not
# search, and no checkpoint that somebody else has put there.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root
need_tool setpriv getfattr

A=54301 B=54302
as() { local u=$1; shift; setpriv --reuid="$u" --regid="$u" --clear-groups "$@" 2>/dev/null; }
cd /
chmod 755 "$TMP"
cp -r "$assets/dcp" "$TMP/ckpt"	# where A and B can read it
start_mount "$TMP/store" "$TMP/m" allow_other
m=$TMP/m l=$TMP/m/.cairn/latest
# latest_is USER DIR WANT: in each way to ask; "" is none
latest_is()
{
	local got
	got=$(as "$1" readlink "$l/$2")
	[ "${got##*../}" = "$3" ] || die "for $1, .cairn/latest/$2 leads to '$got', not to '$3'"
	got=$(as "$1" getfattr --absolute-names --only-values -n user.cairn.latest "$m/$2")
	[ "${got:+$2/$got}" = "$3" ] || die "for $1, user.cairn.latest of $2 is '$got', not '$3'"
	got=$(as "$1" "$cairn" latest "$m/$2")
	[ "$got" = "${3:+$m/$3}" ] || die "for $1, cairn latest $2 is '$got', not '$3'"
	got=$(as "$1" "$cairn" latest -v "$m/$2")
	[ "$got" = "${3:+$m/$3}" ] || die "for $1, cairn latest -v $2 is '$got', not '$3'"
}

# --- names ------------------------------------------------------------------------------------
mkdir -m 1777 "$m/pub"
as $A mkdir -p "$m/pub/a/secret-x/run" && as $A cp -r "$TMP/ckpt" "$m/pub/a/secret-x/run/step-1" || die "A"
as $A chmod 700 "$m/pub/a"
wait_durable "$m"
latest_is $A pub/a/secret-x/run pub/a/secret-x/run/step-1
for p in "" pub pub/a pub/a/secret-x pub/a/secret-x/run; do
	{ as $B ls -R "$l/$p"; as $B readlink "$l/$p"; as $B getfattr -d -m . "$m/$p"; } >"$TMP/out"
	has secret "$TMP/out" && die "B learns of '$p': $(cat "$TMP/out")"
	as $B getfattr --absolute-names --only-values -n user.cairn.latest "$m/$p" >"$TMP/out"
	[ -s "$TMP/out" ] && die "B learns of the xattr of '$p': $(cat "$TMP/out")"
done
as $B stat "$l/pub/a/secret-x" >/dev/null && die "B learns that there is a secret-x"
# not either while the store does not know yet that it is shut
as $A chmod 755 "$m/pub/a"
as $A ls "$l/pub/a" >/dev/null
as $A chmod 700 "$m/pub/a"
as $B ls "$l/pub/a" >"$TMP/out"
[ -s "$TMP/out" ] && die "B lists what was just shut: $(cat "$TMP/out")"

# --- spoofed ----------------------------------------------------------------------------------
# A's run is open for B to write; sticky, so that his own stay
mkdir "$m/run" && chown $A "$m/run" && chmod 1777 "$m/run" && as $A cp -r "$TMP/ckpt" "$m/run/step-5" || die "A's run"
as $B cp -r "$TMP/ckpt" "$m/run/step-9" || die "B's"		# a checkpoint
as $B mkdir "$m/run/more" && as $B cp -r "$TMP/ckpt" "$m/run/more/step-8" || die "B's"	# a directory with one
wait_durable "$m"
latest_is $A run run/step-5
latest_is 0 run run/step-5
latest_is $B run run/more/step-8
# root's counts for all, A's directory with a shard that B made for nobody but B
cp -r "$TMP/ckpt" "$m/run/step-6"
as $A mkdir "$m/run/step-7" && as $A chmod 1777 "$m/run/step-7" || die "A's"
as $A cp "$TMP"/ckpt/.metadata "$TMP"/ckpt/__0_0.distcp "$m/run/step-7" || die "A's"
as $B cp "$TMP"/ckpt/__1_0.distcp "$m/run/step-7" || die "B's"
wait_durable "$m"
latest_is $A run run/step-6
latest_is 0 run run/step-6
stop_mount "$m"
# the store without a mount, too
[ "$(as $A "$cairn" latest "$TMP/store/run")" = "$TMP/store/run/step-6" ] || die "in the store: $(as $A "$cairn" latest "$TMP/store/run")"
