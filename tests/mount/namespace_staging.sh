#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 180
# Staging that ends with a mount namespace (unshare -m, a job's private /tmp, PrivateTmp=) or a container: a start there
# says so, and one elsewhere does not. If all is killed and the namespace ends, the next start says that its staging is
# gone; what had moved to the store is in lost+found. While the namespace lives, all stays for a start in it, also where it
# cannot be looked into. With a staging_dir on the machine's /dev/shm nothing is lost.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/cli.inc"
need_root
need_tool unshare nsenter setpriv python3

s=$TMP/store m=$TMP/mnt said=$TMP/said
opts=staging=32M,pool=0,host=job
ends="ends with this mount namespace"
hidden="is gone, or in a mount namespace or container that cannot be looked into from here"
gone="an earlier mount did not end, and its staging below [^ ]* is gone"

# In a namespace: a file that is mapped; behind it, so that nothing is published, files of which most move to the store.
save_and_kill()
{
	start_mount "$s" "$m" "$1" 2>"$said" || die "start"
	need_passthrough "$m"
	map_and_hold "$m/mapped" "$TMP/holds" &
	holder=$!
	retry 20 test -e "$TMP/holds" || die "not mapped"
	rm "$TMP/holds"
	for i in 1 2 3 4; do
		cp "$TMP/big$i" "$m/big$i" && echo "small $i" >"$m/small$i" || die "save $i"
	done
	kill_mount "$m"
	kill -KILL $holder && wait $holder 2>/dev/null
	[ ! -e "$s/small1" ] || die "it is published"
	[ -n "$(ls "$s/.cairn/job/tmp")" ] || die "nothing moved to the store"
}

case ${CAIRN_INSIDE:-} in
"") ;;
container)
	mount -t tmpfs none /run || die "mount"
	save_and_kill "$opts"
	has "ends with this container" "$said" || die "in a container it says: $(cat "$said")"
	exit 0
	;;
visits)
	mount -t tmpfs none /run && start_mount "$s" "$m" "$opts" 2>"$said" && "$cairn" umount -q "$m" || die "a visit"
	has "$hidden" "$said" || die "in a container it says of what is staged outside: $(cat "$said")"
	exit 0
	;;
kept)
	save_and_kill "$opts"
	exec true
	;;
another_user)
	save_and_kill "$opts"
	: >"$TMP/saved"
	exec setpriv --reuid 12345 --regid 12345 --clear-groups sleep 600
	;;
lives)
	save_and_kill "$opts"
	: >"$TMP/saved"
	exec sleep 600
	;;
shm)
	save_and_kill "$opts,staging_dir=$TMP/shm"
	! has "ends with" "$said" || die "with staging on the machine's tmpfs it says: $(cat "$said")"
	exit 0
	;;
*)
	save_and_kill "$opts"
	has "$ends.*$CAIRN_INSIDE" "$said" || die "in a namespace it says: $(cat "$said")"
	exit 0
	;;
esac

inside()	# WHAT [OPTIONS of unshare...]
{
	local what=$1 rc=0
	shift
	CAIRN_INSIDE=$what TMP=$TMP unshare -m "$@" "$LIB_TOP/tests/lib/own_mounts" bash "$0" || rc=$?
	[ $rc != 77 ] || exit 77
	[ $rc = 0 ] || die "$what: exit code $rc"
}
start()
{
	start_mount "$s" "$m" "${1:-$opts}" 2>"$said"
	cat "$said"
	! has "ends with" "$said" || die "where it does not end it says: $(cat "$said")"
}
end() { "$cairn" umount -q "$m" || die "umount"; }
# What is in lost+found is whole; COUNT files of them.
kept()
{
	local n=0 f sum
	for f in "$s"/.cairn/lost+found/*; do
		[ -e "$f" ] || continue
		sum=$(sha256sum <"$f")
		for i in 1 2 3 4; do
			[ "$sum" != "$(sha256sum <"$TMP/big$i")" ] || n=$((n + 1))
		done
	done
	[ $n -gt 0 ] || die "none is whole in lost+found: $(ls -l "$s/.cairn/lost+found")"
	has "$(ls "$s/.cairn/lost+found" | wc -l) files" "$said" || die "how many are kept it does not say: $(cat "$said")"
}
no_files_left()
{
	[ -z "$(cd "$s/.cairn/job" && find . -path './tmp*' -type f ! -name tmp-of)" ] || die "left: $(find "$s/.cairn/job")"
	rm -rf "$s"/.cairn/lost+found/* "$s"/big* "$s"/small* "$s/mapped"
}
all_there()
{
	for i in 1 2 3 4; do
		cmp "$TMP/big$i" "$1/big$i" && [ "$(cat "$1/small$i")" = "small $i" ] || die "$1: $i"
	done
}
tells_gone()
{
	start
	has "$gone" "$said" || die "$1: not said: $(cat "$said")"
	! has "another staging area" "$said" "$s/.cairn/job/log" || die "$1: it names one that is gone: $(cat "$said")"
	COLUMNS=999 "$cairn" status "$m" | has "$gone" || die "$1: not in the status"
	has "$gone" "$s/.cairn/job/log" || die "$1: not in the log"
	kept
	end
	start # once
	! has "an earlier mount" "$said" || die "$1: said twice: $(cat "$said")"
	end
	no_files_left
	: >"$s/.cairn/job/log"
}

mkdir -p "$s"
on_exit 'rmdir "/run/cairnfs/$(cat "$s/.cairn/id")" 2>/dev/null' # it stays where a namespace had it
for i in 1 2 3 4; do head -c 15000000 /dev/urandom >"$TMP/big$i"; done
start_mount "$s" "$m" "$opts" 2>"$said"
! has "ends with" "$said" || skip "all that runs here is in a mount namespace or container: $(cat "$said")"
end

inside start
tells_gone "the namespace ended"
inside container --pid --fork --mount-proc
tells_gone "the container ended"

# Killed where another process keeps the namespace.
CAIRN_INSIDE=lives TMP=$TMP unshare -m "$LIB_TOP/tests/lib/own_mounts" bash "$0" &
job=$!
on_exit 'kill -KILL $job 2>/dev/null'
retry 60 test -e "$TMP/saved" || die "the job saves nothing"
"$cairn" staging --force remove "$(cat "$s/.cairn/id")" 2>"$said" && die "removed, with what the job staged"
has "another mount namespace has staging there.* -t $job " "$said" || die "the refusal says: $(cat "$said")"
start
has "in the mount namespace of process $job" "$said" || die "it does not say where: $(cat "$said")"
! has "$gone" "$said" || die "it is not gone: $(cat "$said")"
end
[ -z "$(ls "$s/.cairn/lost+found")" ] || die "in lost+found: $(ls "$s/.cairn/lost+found")"
nsenter -t $job -m bash -c '"$1" "$2" "$3" -o "$4" && "$5" umount -q "$3"' - "$BUILD/cairnfs" "$s" "$m" "$opts" "$cairn" ||
	die "a start in the namespace"
all_there "$s"
kill -KILL $job
start
! has "an earlier mount" "$said" || die "all is published: $(cat "$said")"
end
no_files_left

# Nothing is moved where the log may be what a start does not see: in a namespace whose only process is another user's,
publishes()	# NSENTER'S OPTIONS
{
	start
	has "$hidden" "$said" || die "it does not say that it may be hidden: $(cat "$said")"
	end
	[ -z "$(ls "$s/.cairn/lost+found")" ] || die "in lost+found: $(ls "$s/.cairn/lost+found")"
	nsenter "$@" bash -c '"$1" "$2" "$3" -o "$4" && "$5" umount -q "$3"' - "$BUILD/cairnfs" "$s" "$m" "$opts" "$cairn" ||
		die "a start in the namespace"
	all_there "$s"
}
rm "$TMP/saved"
CAIRN_INSIDE=another_user TMP=$TMP unshare -m "$LIB_TOP/tests/lib/own_mounts" bash "$0" &
job=$!
retry 60 test -e "$TMP/saved" || die "the job saves nothing"
publishes -m -t $job
kill -KILL $job
no_files_left
# ... or that has none, ...
mkdir "$TMP/keep" && : >"$TMP/keep/ns" && mount --bind "$TMP/keep" "$TMP/keep" && mount --make-private "$TMP/keep" || die "mount"
on_exit 'umount -l "$TMP/keep/ns"; umount -l "$TMP/keep"'
inside kept --mount="$TMP/keep/ns"
publishes --mount="$TMP/keep/ns"
umount -l "$TMP/keep/ns"
no_files_left
# ... or outside of the container.
(save_and_kill "$opts"; exec true) || exit
inside visits --pid --fork --mount-proc
[ -z "$(ls "$s/.cairn/lost+found")" ] || die "in lost+found: $(ls "$s/.cairn/lost+found")"
start
"$cairn" wait "$m" || die "what was staged on the machine is lost: $("$cairn" status "$m")"
end
all_there "$s"
no_files_left

# On a tmpfs of the machine's.
mkdir "$TMP/shm" && mount -t tmpfs -o size=200M,mode=700 none "$TMP/shm" || die "mount"
on_exit 'umount -l "$TMP/shm"'
inside shm
start
has "staged below $TMP/shm is not all in the store.*start once with that staging_dir" "$said" || die "not said: $(cat "$said")"
end
start "$opts,staging_dir=$TMP/shm"
end
all_there "$s"
[ -z "$(ls -A "$TMP/shm")" ] || die "left behind: $(ls -A "$TMP/shm")"
