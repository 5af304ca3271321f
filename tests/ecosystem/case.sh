#!/bin/bash
# SPDX-License-Identifier: MIT
#
# case.sh FILE.py - one case: its save() and check() on a mount, then check() on the bare store.
# The first lines of FILE.py say `# needs: GROUP...` of what install installs, and may say
# `# options: OPTS` for the mount, `# disk: TYPE` for a store on a filesystem of 512 MiB of its own, and `# modes:` and
# `# timeout:` for the runner.
. "$(dirname "$0")/../lib/lib.sh"

py=$1
dir=$LIB_TOP/build/ecosystem
cairn=$BUILD/cairn
store=$TMP/store mnt=$TMP/mnt
key() { sed -n "1,15s/^# $1: *//p" "$py"; }

for group in $(key needs); do
	[ -e "$dir/$group.ok" ] ||
		skip "$group: $(cat "$dir/$group.why" 2>/dev/null || echo "run tests/ecosystem/install")"
done

export PYTHONWARNINGS=ignore CAIRN=$cairn ECOSYSTEM=$dir STORE=$store MOUNT=$mnt
export PYTHONPATH=$LIB_TOP/tests/ecosystem/lib:$LIB_TOP/tools/python PYTHONPYCACHEPREFIX=$dir/pycache
# tools/python runs without libcairn too.
export CAIRN_LIBRARY=
[ ! -e "$BUILD/libcairn.so" ] || CAIRN_LIBRARY=$BUILD/libcairn.so
unset PYTHONDONTWRITEBYTECODE
# Small models: threads only cost. Nothing asks a network, and gloo finds itself.
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export JAX_PLATFORMS=cpu HOME=$TMP
[ "$(key gpu)" = yes ] || export CUDA_VISIBLE_DEVICES=''
mkdir -p "$TMP/tmp"
export TMPDIR=$TMP/tmp

python()
{
	local rc=0
	"$dir/venv/bin/python" "$py" "$@" || rc=$?
	[ $rc != 77 ] || exit 77
	[ $rc = 0 ] || die "$(basename "$py") $*: exit code $rc"
}

disk=$(key disk)
if [ -n "$disk" ]; then
	make_disk disk "$disk" 512M
	store=$TMP/disk/store STORE=$store
fi
start_mount "$store" "$mnt" "$(key options)"
[ "$MODE" != fast ] || need_passthrough "$mnt"
python save "$mnt" check "$mnt"
"$cairn" wait "$mnt" || die "cairn wait: exit code $?"
cp -a "$mnt" "$TMP/mounted"
stop_mount "$mnt"
same_tree "$TMP/mounted" "$store"
"$cairn" verify "$store" || die "cairn verify: exit code $?"
python check "$store"
