#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 240
# set: rest
# cairn tier with a bucket, of moto, read with plain HTTP: push, ls, verify, fetch; and push is killed at many of its
# system calls: no commit file and no manifest is there before what it lists, and the next push completes.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
. "$(dirname "$0")/s3.inc"
s3_serve

t=s3://bucket/a/b
cp -r "$assets/dcp" "$TMP/A"
cp -r "$assets/dcp" "$TMP/B"
for v in A B; do
	echo "of $v" >"$TMP/$v/notes"
	echo "$v" >>"$TMP/$v/__0_0.distcp" # a part: of what lies beside, a mixture would be whole
	head -c 9000000 /dev/urandom >"$TMP/$v/__2_0.distcp"	# in parts
	echo >"$TMP/$v/only-$v"
done
put() { rm -rf "$s"; mkdir -p "$s/run"; cp -r "$TMP/$1" "$s/run/step 1+&"; }
put A
expect 1 "$cairn" tier push "$s" "$t"
says err 'bucket/a/b: the server answers 404 NoSuchBucket'
expect 2 "$cairn" tier push "$s" s3://
s3_bucket
expect 2 "$cairn" tier ls "$t"
says err 'not a tier'

cp -r "$assets/dcp" "$s/run/step-2"
cp "$assets/torch_save/model.pt" "$s/run/last.ckpt"
expect 0 "$cairn" tier push "$s" "$t"
says out '^sent     run/step-2  3 files'
expect 0 "$cairn" tier push "$s" "$t"
says out '^there    run/step-2  3 files'
expect 0 "$cairn" tier ls "$t"
says out '^complete  run/step 1+&  dcp'
expect 0 "$cairn" tier verify "$t"
says out '^10 ok, 0 missing, 0 mismatched, 0 unreadable'
# as a directory has them
mkdir "$TMP/dir"
expect 0 "$cairn" tier push "$s" "$TMP/dir"
plain GET "$url/bucket/a/b/.cairn/manifests/run/step%201+%26/manifest.json" >"$TMP/manifest"
has '"ranges": "[0-9a-f]\{64\}"' "$TMP/manifest" || die "no checksums of ranges: $(cat "$TMP/manifest")"
for key in ranges checksum; do
	sed -n "s/.*\"$key\": \"\([^\"]*\)\".*/\1/p" "$TMP/manifest" >"$TMP/have"
	sed -n "s/.*\"$key\": \"\([^\"]*\)\".*/\1/p" "$TMP/dir/.cairn/manifests/run/step 1+&/manifest.json" >"$TMP/want"
	diff "$TMP/want" "$TMP/have" || die "$key differ"
done
mkdir "$TMP/empty"
expect 0 "$cairn" tier fetch "$t" "$TMP/empty"
same_tree "$s" "$TMP/empty"
expect 0 "$cairn" tier fetch "$t" "$TMP/empty"
says out '^there    run/last.ckpt'

# Damage is found, and not let in.
plain PUT "$url/bucket/a/b/run/step-2/__0_0.distcp" "$(printf 'x%.0s' {1..4731})" >/dev/null
plain DELETE "$url/bucket/a/b/run/last.ckpt" >/dev/null
expect 1 "$cairn" tier verify "$t"
says out '^mismatch    run/step-2/__0_0.distcp: expected xxh3:'
says out '^missing     run/last.ckpt'
rm -r "$TMP/empty/run/step-2"
expect 1 "$cairn" tier fetch "$t" "$TMP/empty"
says err 'step-2/__0_0.distcp: not the bytes that its manifest lists'
[ ! -e "$TMP/empty/run/step-2" ] || die "a damaged checkpoint has its name"

# Removed: all objects of its manifest, and nothing else.
plain PUT "$url/bucket/a/b/run/step-2/notes" mine >/dev/null
keys() { plain GET "$url/bucket?list-type=2&prefix=a/b/" | sed 's|<Key>|\n|g' | sed -n 's|^a/b/\([^<]*\)</Key>.*|\1|p' | grep "$1" || true; }
expect 1 "$cairn" tier rm "$t" run/step-2
says err 'the newest of its directory that is whole'
expect 0 "$cairn" tier rm --force "$t" run/step-2
says out '^removed  run/step-2  3 files, .*files that it does not list stay there'
[ "$(keys step-2)" = run/step-2/notes ] || die "left of step-2: $(keys step-2)"
expect 0 "$cairn" tier rm --force "$t" "run/step 1+&"
says out '^removed  run/step 1+&  6 files, [^;]*$'
[ -z "$(keys 'step.1')" ] || die "left of step 1: $(keys 'step.1')"

# judge PREFIX FROM TO: what plain reads of the bucket find committed, in $is: A, B or none
judge()
{
	is=$(python3 - "$url/bucket" "$1" "$TMP" "$2" "$3" <<'PY'
import json, os, re, sys, urllib.parse as p, urllib.request as u
bucket, prefix, tmp, *versions = sys.argv[1:]
def read(url):
    signed = os.environ["SIGNED"]
    return u.urlopen(u.Request(url, headers={"Authorization": signed} if signed else {})).read()
xml = read(f"{bucket}?list-type=2&encoding-type=url&prefix={prefix}/").decode()
keys = [p.unquote_plus(k)[len(prefix) + 1:] for k in re.findall("<Key>(.*?)</Key>", xml)]
get = lambda key: read(f"{bucket}/{prefix}/{p.quote(key)}")
top = "run/step 1+&/"
def holds(v):
    for name in os.listdir(f"{tmp}/{v}"):
        if top + name not in keys or get(top + name) != open(f"{tmp}/{v}/{name}", "rb").read():
            return False
    return True
manifest = f".cairn/manifests/{top}manifest.json"
whole = [v for v in versions if v != "none" and top + ".metadata" in keys and holds(v)]
if top + ".metadata" in keys:
    assert whole, f"a commit file before what it lists: {keys}"
if manifest in keys:
    assert whole, f"a manifest before the commit file: {keys}"
    m = json.loads(get(manifest))
    assert sorted(f["path"] for f in m["files"]) == sorted(top + n for n in os.listdir(f"{tmp}/{whole[0]}")), m
print(whole[0] if whole else "none")
PY
	) || die "$4"
}

helper at_call 1 true /bin/true || skip "no ptrace here"
rm "$TMP"/[AB]/__2_0.distcp		# quicker
n=0 seen='' killed=0
for from in none A; do
	[ $from = none ] && to=A || to=B
	for ((point = 25; point < 400; point += 3)); do
		n=$((n + 1)) rc=0
		if [ $from != none ]; then
			put $from
			"$cairn" tier push -q "$s" "s3://bucket/$n" >/dev/null || die "push of $from"
		fi
		put $to
		# shellcheck disable=SC2016	# at_call replaces $PID
		helper at_call "$point" 'kill -KILL $PID' "$cairn" tier push -q "$s" "s3://bucket/$n" >"$TMP/push" 2>&1 || rc=$?
		judge $n $from $to "killed at call $point, from $from: $(cat "$TMP/push")"
		seen="$seen $from>$is"
		[ $rc != 0 ] || [ "$is" = $to ] || die "point $point: $to was reported as sent, and $is is there"
		"$cairn" tier push -q "$s" "s3://bucket/$n" >"$TMP/push" 2>&1 || die "push after point $point: $(cat "$TMP/push")"
		judge $n $from $to "push after point $point"
		[ "$is" = $to ] || die "after point $point: $is is there"
		[ $rc != 0 ] || break
		killed=$((killed + 1))
	done
done
note "killed $killed times: $(tr ' ' '\n' <<<"$seen" | sort | uniq -c | tr -s '\n ' ' ')"
[ $killed -ge 20 ] || die "only $killed kills"
for want in 'none>none' 'none>A' 'A>A' 'A>none' 'A>B'; do
	has -F " $want" <<<"$seen" || die "no kill left $want"
done
grep -r not-to-be-seen "$TMP/out" "$TMP/err" "$TMP/push" && die "a secret was printed"
"$cairn" tier fetch -q "s3://bucket/$n" "$TMP/empty" 'run/step 1+&' >/dev/null 2>&1 && die "another version was replaced"
exit 0
