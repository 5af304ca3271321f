#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# set: rest
# The tier's disk loses its power during cairn tier push, at many of its system calls and after its end: mounted again
# and read with plain calls, what is committed is whole and of one save, and what was reported as sent is committed.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"

need_root
need_tool xfs_io
helper at_call 1 true /bin/true || skip "no ptrace here"
t=$TMP/disk/tier c=run/step-10
cp -r "$assets/dcp" "$TMP/A"
cp -r "$assets/dcp_safetensors" "$TMP/B"
for v in A B; do
	head -c 3000000 /dev/urandom >"$TMP/$v/more"	# so that much is not written back by itself
done
make_disk disk ext4 64M

put() { rm -rf "$s"; mkdir -p "$s/run"; cp -r "$TMP/$1" "$s/$c"; }

# The version that is committed, in $is: A, B or none.
judge()
{
	local file
	is=none
	if [ -e "$t/.cairn/manifests/$c/manifest.json" ]; then
		[ -e "$t/$c/.metadata" ] || die "$1: a manifest without the commit file"
		"$cairn" tier verify "$t" >"$TMP/out" 2>&1 || die "$1: $(cat "$TMP/out")"
	fi
	[ -e "$t/$c/.metadata" ] || return 0
	for is in A B; do
		cmp -s "$t/$c/.metadata" "$TMP/$is/.metadata" && break
	done
	for file in .metadata __0_0.distcp __1_0.distcp more; do
		cmp "$t/$c/$file" "$TMP/$is/$file" || die "$1: committed, and $file is not that of $is"
	done
}

# cut POINT FROM TO: TO is pushed over FROM; at that system call the power goes.
cut()
{
	local code=0
	rm -rf "$t"
	mkdir "$t"
	if [ "$2" != none ]; then
		put "$2"
		"$cairn" tier push -q "$s" "$t" >/dev/null || die "push of $2"
	fi
	sync -f "$t"
	put "$3"
	rm -f "$TMP/reached"
	helper at_call "$1" "touch $TMP/reached; xfs_io -x -c shutdown $TMP/disk" "$cairn" tier push -q "$s" "$t" \
		>"$TMP/push" 2>&1 || code=$?
	power_cut disk
	remount_disk disk
	judge "point $1, from $2"
	if [ -e "$TMP/reached" ]; then
		cuts=$((cuts + 1))
		[ "$code" -le 1 ] || die "point $1: exit code $code: $(cat "$TMP/push")"
	fi
	[ $code != 0 ] || [ $is = "$3" ] || die "point $1: $3 was reported as sent, and $is is there"
	[ $is = "$2" ] || [ $is = "$3" ] || [ $is = none ] || die "point $1: $is is there"
	seen="$seen $2>$is"
	"$cairn" tier push -q "$s" "$t" >"$TMP/push" 2>&1 || die "push after point $1: $(cat "$TMP/push")"
	judge "after point $1"
	[ $is = "$3" ] || die "after point $1: $is is there"
}

cuts=0 seen=
for from in none A; do
	[ $from = none ] && to=A || to=B
	for point in 30 40 50 60 70 80 90 100 105 110 115 120 125 130 135 140 145 150 155 160 165 170 10000; do
		cut $point $from "$to"
	done
done
note "power was cut $cuts times: $(tr ' ' '\n' <<<"$seen" | sort | uniq -c | tr -s '\n ' ' ')"
[ $cuts -ge 35 ] || die "only $cuts cuts"
for want in 'none>none' 'none>A' 'A>A' 'A>B'; do
	has -F " $want" <<<"$seen" || die "no cut left $want"
done
