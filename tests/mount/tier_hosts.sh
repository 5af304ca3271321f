#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 180
# set: rest
# Three hosts (-o host=) of one store with one tier, a directory and a bucket: each sends what it published, one commits. One
# is killed while it sends: nothing is committed; a push by hand finishes, and so does the host that comes back. A reader
# with plain calls never sees a commit file or a manifest before what it lists.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root
export COLUMNS=400
ref=$TMP/ref n=0
mkdir "$ref"

# judge PLACE: reads it until $TMP/judge-ends is there
judge()
{
	rm -f "$TMP/judge-ends"
	python3 "$LIB_TOP/tests/lib/tier_judge.py" "$1" "$ref" "$TMP/judge-ends" >"$TMP/judged" 2>&1 &
	judge=$!
}
on_exit 'kill $judge 2>/dev/null'
end_judge()
{
	touch "$TMP/judge-ends"
	wait $judge || die "the tier: $(cat "$TMP/judged")"
	note "$1: $(cat "$TMP/judged")"
}

# save [KIB]: three hosts save one checkpoint; the third has the large shard, the second the last one
save()
{
	n=$((n + 1))
	cp -r "$assets/dcp" "$TMP/new"
	head -c "${1:-100}K" /dev/urandom >"$TMP/new/__2_0.distcp"
	mv "$TMP/new" "$ref/step-$n"
	mkdir -p "$m-a/run/step-$n"
	wait_durable "$m-a/run"
	cp "$ref/step-$n/__0_0.distcp" "$m-a/run/step-$n/"
	cp "$ref/step-$n/__1_0.distcp" "$m-b/run/step-$n/"
	cp "$ref/step-$n/__2_0.distcp" "$m-c/run/step-$n/"
	cp "$ref/step-$n/.metadata" "$m-a/run/step-$n/"
}
opts() { mkdir -p "$TMP/staging-$kind-$1"; echo "tier=$t,host=node-$1,staging=64M,pool=0,staging_dir=$TMP/staging-$kind-$1"; }
in_tier() { "$cairn" tier ls "$t" 2>/dev/null | grep -q "^complete  run/step-$n "; }
wait_for_tier() { echo "# $SECONDS s: $1";  retry 20 in_tier || die "$1: step-$n is not in the tier: $(status_field "$m-a" tier; status_field "$m-b" tier; status_field "$m-c" tier)"; }
field_is() { [ "$(status_field "$1" "$2")" = "$3" ]; }
sent_bytes() { status_field "$m-$1" tier.sent_bytes; }

for kind in directory bucket; do
	s=$TMP/store-$kind m=$TMP/mnt-$kind
	if [ $kind = directory ]; then
		t=$TMP/tier
		mkdir "$t"
		judge "$t"
	else
		[ -x "$BUILD/cairn-tier" ] || { note "no bucket: no cairn-tier"; break; }
		[ -x "${CAIRN_MOTO:-$LIB_TOP/build/scale/bin/moto_server}" ] || { note "no bucket: no moto"; break; }
		. "$(dirname "$0")/s3.inc"
		s3_serve
		s3_bucket
		t=s3://bucket/x
		judge "$url/bucket/x"
	fi
	for h in a b c; do
		start_mount "$s" "$m-$h" "$(opts $h)"
	done
	save
	wait_for_tier "at first"
	before="$(sent_bytes b) $(sent_bytes c)"
	save
	wait_for_tier "the second"
	[ "$(sent_bytes a)" -gt 0 ] && [ "$(sent_bytes b)" -gt "${before% *}" ] && [ "$(sent_bytes c)" -gt "${before#* }" ] ||
		die "not each sent its part: $(sent_bytes a) $(sent_bytes b) $(sent_bytes c), before: $before"

	# The host with the large shard is killed while it sends it.
	stop_mount "$m-c"
	start_mount "$s" "$m-c" "$(opts c),tier_rate=20K"
	save 8000
	for h in a b c; do
		wait_durable "$m-$h/run"
	done
	retry 60 field_is "$m-c" tier.sending "run/step-$n" || die "$kind: c does not send: $(status_field "$m-c" tier)"
	pids="$(status_field "$m-c" tier.guard) $(status_field "$m-c" tier.runner) $(status_field "$m-c" tier.pid)"
	# shellcheck disable=SC2086
	kill -STOP $pids
	# shellcheck disable=SC2086
	kill -KILL $pids
	in_tier && die "$kind: committed without the shard of c"
	waits() { "$cairn" tier ls "$t" | grep -q "^partial   run/step-$n$"; }
	retry 60 waits || die "$kind: a has not begun: $("$cairn" tier ls "$t")"

	# By hand, from the store, while the other two run.
	expect 0 "$cairn" tier push "$s" "$t"
	in_tier || die "$kind: a push by hand did not finish it"
	for h in a b; do
		expect 0 "$cairn" wait --tier "$m-$h/run/step-$n"
	done

	# It comes back, and sends again.
	stop_mount "$m-c"
	start_mount "$s" "$m-c" "$(opts c)"
	save 300
	wait_for_tier "c is back"

	# The one that commits is gone, unmounted: another one does it.
	save 300
	stop_mount "$m-a"
	wait_for_tier "without a"

	# Saved again into the same directory: the old copy is taken back before anything is replaced.
	start_mount "$s" "$m-a" "$(opts a)"
	expect 0 "$cairn" tier verify "$t"
	for h in a b c; do
		expect 0 "$cairn" wait --tier "$m-$h"
	done
	end_judge "$kind"
	rm "$m-a/run/step-$n/.metadata"
	head -c 300K /dev/urandom >"$m-c/run/step-$n/__2_0.distcp"
	wait_durable "$m-c/run/step-$n"
	cp "$ref/step-$n/.metadata" "$m-a/run/step-$n/"
	cp "$m-c/run/step-$n/__2_0.distcp" "$ref/step-$n/"
	again() { "$cairn" tier ls "$t" | grep -q "^complete  run/step-$n .*generation 2"; }
	retry 60 again || die "$kind: not sent again: $("$cairn" tier ls "$t"); $(status_field "$m-a" tier; status_field "$m-c" tier)"
	expect 0 "$cairn" tier verify "$t"
	for h in a b c; do
		stop_mount "$m-$h"
	done
	mkdir "$TMP/back-$kind"
	expect 0 "$cairn" tier fetch -q "$t" "$TMP/back-$kind"
	for step in "$TMP/back-$kind/run"/*; do
		same_tree "$ref/$(basename "$step")" "$step"
	done
	rm -r "${ref:?}"/*
	n=0
done
exit 0
