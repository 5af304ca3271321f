#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# All is killed while files are in staging alone. A start that does not look there says that they are not in the store,
# where they are and what to do: one with another staging_dir, and a read-only one. It says so each time until a start
# has published them, and never where there are none: not after an unmount, not where all was durable, not beside the
# mount that has them.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root

s=$TMP/store m=$TMP/mnt said=$TMP/said
opts=staging=64M,pool=0
mkdir -p "$s" "$TMP/one" "$TMP/two"
on_exit 'for d in $(awk "{ print \$5 }" /proc/self/mountinfo | grep -F "$TMP/one/" | sort -r); do umount -l "$d"; done'
on_exit '[ -z "${HOLDER:-}" ] || kill -KILL $HOLDER 2>/dev/null'

hold()
{
	map_and_hold "$m/$1" "$TMP/holds" &
	HOLDER=$!
	retry 20 test -e "$TMP/holds" || die "not mapped"
	rm "$TMP/holds"
}
# Three small files behind one that is mapped: nothing of them is published while it is.
save_and_kill()
{
	hold "mapped$1"
	for i in 1 2 3; do echo "$1 $i" >"$m/$1$i" || die "$1$i"; done
	kill_mount "$m"
	kill -KILL $HOLDER && wait $HOLDER 2>/dev/null
	[ ! -e "$s/$1"1 ] || die "it is published"
}
# A start with these options says what (a pattern) on its terminal, in the log and in the status; "": nothing.
start()
{
	start_mount "$s" "$m" "$opts,$1" 2>"$said"
	cat "$said"
	if [ -z "$2" ]; then
		! has "an earlier mount" <"$said" || die "with $1: $(cat "$said")"
		return
	fi
	has "$2" <"$said" || die "with $1, on the terminal: $(cat "$said")"
	COLUMNS=999 "$cairn" status "$m" | has "$2" || die "with $1, in the status: $("$cairn" status "$m")"
}
logged() { has "$1" "$s/.cairn/$(hostname)/log" || die "not in the log: $1"; }
end() { "$cairn" umount -q "$m" || die "umount"; }

start "staging_dir=$TMP/one" ""
need_passthrough "$m"
end
[ ! -s "$s/.cairn/$(hostname)/staged-in" ] || die "a clean end leaves: $(cat "$s/.cairn/$(hostname)/staged-in")"
start "staging_dir=$TMP/two" "" # the first one was unmounted
end

start "staging_dir=$TMP/one" ""
echo durable >"$m/durable"
wait_durable "$m"
kill_mount "$m"
start "staging_dir=$TMP/two" "" # it had written everything
end

start "staging_dir=$TMP/one" ""
save_and_kill a
there="what an earlier mount staged below $TMP/one is not all in the store (files: [0-9]*[1-9][0-9]*, changes: [0-9]*), and not shown here"
start "staging_dir=$TMP/two" "$there.*start once with that staging_dir\$"
logged "$there"
end
start "staging_dir=$TMP/two" "$there" # again
end
start "" "$there"
kill_mount "$m"
start "staging_dir=$TMP/two,ro" "$there.*without ro"
end
start "staging_dir=$TMP/one,ro" "$there.*without ro"
[ ! -e "$m/a1" ] || die "a read-only mount shows what is staged"
end
start "staging_dir=$TMP/one" ""
[ "$(cat "$m/a1" "$m/a2" "$m/a3")" = "$(printf 'a %s\n' 1 2 3)" ] || die "what was staged is not there"
# beside a mount that will write it
hold mapped
mkdir "$TMP/ro"
"$BUILD/cairnfs" "$s" "$TMP/ro" -o "ro,staging_dir=$TMP/one" 2>"$said" || die "beside: $(cat "$said")"
! has "an earlier mount" <"$said" || die "beside the mount that has it: $(cat "$said")"
"$cairn" umount -q "$TMP/ro" || die "umount of the second"
kill -KILL $HOLDER && wait $HOLDER 2>/dev/null
end
start "staging_dir=$TMP/two" "" # all was published
end
start "staging_dir=$TMP/two,ro" ""
end

# In the usual place.
start "" ""
dir=$(status_field "$m" staging.dir)
save_and_kill b
there="what an earlier mount staged below ${dir%/*} is not all in the store"
start "staging_dir=$TMP/two" "$there.*start once without staging_dir"
end
start ro "$there.*without ro"
end
start "" ""
[ -e "$m/b3" ] || die "what was staged is not there"
end

# One that is still being written has nothing in the store.
start "staging_dir=$TMP/one" ""
exec 5>"$m/open"
echo open >&5
kill_mount "$m"
exec 5>&-
start "" "below $TMP/one is not all in the store (files: 1, .*start once with that staging_dir$"
end
start "staging_dir=$TMP/one" ""
grep -q open "$s"/open "$s"/.cairn/lost+found/* 2>/dev/null || die "what was being written is not in the store"
end

# The machine restarted: the memory is gone.
start "staging_dir=$TMP/one" ""
save_and_kill c
for d in $(awk '{ print $5 }' /proc/self/mountinfo | grep -F "$TMP/one/" | sort -r); do umount "$d" || die "umount $d"; done
sed -i 's/^[0-9a-f]*/00000000/' "$s/.cairn/$(hostname)/staged-in" || die "no record"
lost="did not end, and its staging below $TMP/one went with a restart"
start "staging_dir=$TMP/one" "$lost"
end
start "staging_dir=$TMP/one" "" # it says so once
end
