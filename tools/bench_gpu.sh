#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/bench_gpu.sh - `make bench-gpu`: from the GPU into staging and back, on a mount of its own.
#
# Without a GPU it says so. With one but no FUSE, or no root, plain files of a tmpfs stand for the
# mount's memory. Where torch with CUDA can be imported, tools/python/bench_gpu.py is run after that,
# which measures torch.save and DCP's async_save on the same machine.
#
#	--fake		small sizes against tests/lib/fake_cuda.c: a self test, no figures
#	other options	of build/cairn-bench-gpu (-s SIZES -t TENSORS -n CHECKPOINTS)
#	CAIRN_BENCH_DIR	where store and mount are made (/var/tmp); should be on a disk

set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${BUILD:=$top/build}"
BUILD=$(cd "$BUILD" && pwd)
bench=$BUILD/cairn-bench-gpu
fake='' args=() staging=80%

for arg; do
	case $arg in
	--fake) fake=1 ;;
	*) args+=("$arg") ;;
	esac
done
if [ -n "$fake" ]; then
	[ -e "$BUILD/tests/fake_cuda/libcuda.so.1" ] || { echo "bench-gpu: make tests first" >&2; exit 1; }
	export LD_LIBRARY_PATH=$BUILD/tests/fake_cuda FAKE_CUDA_STRICT=1
	args=(-s 16M,64M -t 10,200 -n 4 "${args[@]}")
	staging=512M
fi

"$bench" --probe || exit $?

dir=$(mktemp -d "${CAIRN_BENCH_DIR:-/var/tmp}/cairn-bench-gpu.XXXXXX")
mkdir "$dir/store" "$dir/mnt" "$dir/tmpfs"
mounted=''
finish()
{
	cd /
	[ "$mounted" != cairnfs ] || "$BUILD/cairn" umount "$dir/mnt" >/dev/null || umount -l "$dir/mnt" || true
	[ "$mounted" != tmpfs ] || umount "$dir/tmpfs" || true
	rm -rf --one-file-system "$dir"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

if [ -e /dev/fuse ] && [ "$(id -u)" = 0 ] && [ -z "${CAIRN_BENCH_NO_FUSE:-}" ] &&
	"$BUILD/cairnfs" "$dir/store" "$dir/mnt" -o "staging=$staging"; then
	mounted=cairnfs
	mkdir "$dir/mnt/run"
	"$bench" "${args[@]}" "$dir/mnt/run"
	place=$dir/mnt/run
elif mount -t tmpfs -o huge=always,size=90% cairn-bench "$dir/tmpfs" 2>/dev/null; then
	mounted=tmpfs
	"$bench" "${args[@]}" --stand-in "$dir/tmpfs"
	place=$dir/tmpfs
else
	place=$(mktemp -d /dev/shm/cairn-bench-gpu.XXXXXX)
	trap 'rm -rf "$place"; finish' EXIT
	"$bench" "${args[@]}" --stand-in "$place"
fi

[ -z "$fake" ] || exit 0
if [ -e "$top/tools/python/bench_gpu.py" ] &&
	python3 -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
	mkdir -p "$dir/disk"
	python3 "$top/tools/python/bench_gpu.py" --mount "$place" --disk "$dir/disk"
else
	echo "torch with CUDA is not there: no figures of torch.save and DCP"
fi
