#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 60
# .cairn/views for two users: it shows nobody a byte, a name or a size that he could not have
# found by walking to each file himself; and what one user looked up is not another's to see.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root
need_tool setpriv

A=54301 B=54302 G=54310
as() { local u=$1; shift; setpriv --reuid="$u" --regid="$u" --clear-groups "$@" 2>/dev/null; }
in_group() { setpriv --reuid=$B --regid=$B --groups=$G "$@" 2>/dev/null; }
cd /
chmod 755 "$TMP"
start_mount "$TMP/store" "$TMP/m" allow_other
m=$TMP/m v=$TMP/m/.cairn/views
mkdir -m 1777 "$m/team"

# A's private file, below a directory that only he may search; its own mode is 0644.
# shellcheck disable=SC2016
as $A bash -c 'umask 022; mkdir -m 700 "$1/a"; printf %s "this is A secret" >"$1/a/key"' - "$m/team" || die "A"
# B's metadata (torchsnapshot's) that says his tensor lies in there, and in a file that is not
write()
{
	rm -f "$m/team/.snapshot_metadata"
	printf '{"version":"0.1.0","world_size":1,"manifest":{"0":{"type":"dict","keys":["w"]},"0/w":{"type":"Tensor",
		"location":"%s","serializer":"buffer_protocol","dtype":"torch.uint8","shape":[16],"replicated":false,
		"byte_range":null}}}' "$1" | as $B tee "$m/team/.snapshot_metadata" >/dev/null || die "B's metadata"
}
tries=(a/key a/none)
for i in 0 1; do
	as $B mkdir "$m/team/b$i" || die "mkdir"
	as $A ln -s ../a "$m/team/l$i" || die "ln"	# nor through a symlink
done
# metadata names only what is below its own directory: so B's lies in the common one
for where in "${tries[@]}" l0/key; do
	write "$where"
	for i in 1 2; do	# staged, durable
		for name in model.safetensors tensors/0%2Fw.npy tensors/w.npy refused reshard/1/rank-0.safetensors; do
			as $B cat "$v/team/$name" >"$TMP/out"
			has -a "A secret" "$TMP/out" && die "$where: B reads $name"
			as $B stat "$v/team/$name" >"$TMP/out" && die "$where: B sees $name"
		done
		as $B ls "$v/team" >"$TMP/out"
		[ "$(grep -c . "$TMP/out")" = "$(as $B ls -d "$m"/team/*/ | grep -vc /l)" ] ||
			die "$where: B's list of views: $(cat "$TMP/out")"
		wait_durable "$m/team"
	done
done
# root's reading, and A's, give B nothing either
write a/key
for u in 0 $A; do
	as $u grep -qa 'A secret' "$v/team/model.safetensors" || die "$u cannot read it, who may"
	as $B cat "$v/team/model.safetensors" | has -a 'A secret' && die "B reads what $u had open"
	as $B stat "$v/team/model.safetensors" >/dev/null && die "B sees what $u looked up"
done
# open to a group: B is in it, or not; and not any more, though the kernel knows the name
chgrp $G "$m/team/a"
chmod 710 "$m/team/a"
as $B cat "$v/team/model.safetensors" >/dev/null && die "B is not in the group"
in_group grep -qa 'A secret' "$v/team/model.safetensors" || die "the group's member"
chmod 700 "$m/team/a"
in_group cat "$v/team/model.safetensors" >/dev/null && die "the group was shut out, at once"
chmod 711 "$m/team/a"
as $B grep -qa 'A secret' "$v/team/model.safetensors" || die "everybody may"

# A checkpoint whose directory is shut is shut as a view, at once, as its parents are.
mkdir -p "$m/run/step"
cp "$assets"/dcp/* "$assets"/dcp/.metadata "$m/run/step"
as $B cat "$v/run/step/model.safetensors" >/dev/null || die "B reads an open one"
cd "$v/run/step" || die "cd"
for what in run run/step; do
	chmod 700 "$m/$what"
	as $B cat "$v/run/step/model.safetensors" >/dev/null && die "$what is shut, its view is not"
	as $B cat model.safetensors >/dev/null && die "$what is shut, its view is not from within"
	as $B ls "$v/run/step/tensors" >/dev/null && die "$what is shut, its tensors are listed"
	chmod 755 "$m/$what"
	as $B cat "$v/run/step/model.safetensors" >/dev/null || die "open again"
done
# metadata that B may not read: no names of tensors
chmod 600 "$m/run/step/.metadata"
as $B ls "$v/run/step/tensors" >"$TMP/out"
[ ! -s "$TMP/out" ] || die "B lists tensors of metadata that he cannot read: $(cat "$TMP/out")"
cd /
stop_mount "$m"
