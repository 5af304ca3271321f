#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/bench_gpu.sh - `make bench-gpu`: from the GPU into staging and back, on a mount of its own, and
# what PyTorch does on the same machine. Ends within ten minutes by itself.
#
#	1  build/cairn-bench-gpu: libcairn against cuMemcpyDtoHAsync into cuMemAllocHost memory
#	2  tools/python/bench_gpu.py: the trainer's time, against torch.save and DCP's pinned stager
#
# Without a GPU it says so and ends with 77. Without FUSE or root (or a cairnfs that is built) plain
# files of a tmpfs stand for the mount's memory in 1, and 2 saves to plain directories. Without a
# torch that has CUDA 2 is left out. Each says so.
#
#	--minutes N	in all (9; 0: without limit)
#	--only 1|2	that part alone, with all the time
#	--fake		small sizes against tests/lib/fake_cuda.c, tensors in host memory: a self test of
#			every row, no figures
#	other options	of build/cairn-bench-gpu (-s SIZES -t TENSORS -n CHECKPOINTS); sizes and tensors
#			are those of 2 as well
#	CAIRN_BENCH_DIR	where store and mount are made (/var/tmp); should be on a disk
#	PYTHON		the one that has torch (python3)

set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${BUILD:=$top/build}"
BUILD=$(cd "$BUILD" && pwd)
bench=$BUILD/cairn-bench-gpu
fake='' only='' minutes=9 args=() py=() staging=staging=75%,ballast=8G

usage() { sed -n '/^#	--/,/^#	PYTHON/s/^#	//p' "$0" >&2; exit 2; }
mib() {
	local v=${1%[KMG]}
	case $1 in *K) v=$((v >> 10)) ;; *G) v=$((v << 10)) ;; *M) ;; *) v=$((v >> 20)) ;; esac
	echo "$v"
}
while [ $# -gt 0 ]; do
	case $1 in
	--fake) fake=1; shift; continue ;;
	--minutes|--only|-s|-t|-n) [ $# -gt 1 ] || usage ;;
	*) usage ;;
	esac
	case $1 in
	--minutes) minutes=$2 ;;
	--only) only=$2 ;;
	-s)	args+=(-s "$2")
		py+=(--mib "$(for s in ${2//,/ }; do mib "$s"; done | paste -sd,)") ;;
	-t)	args+=(-t "$2") py+=(--tensors "$2") ;;
	-n)	args+=(-n "$2") ;;
	esac
	shift 2
done
case $minutes in ''|*[!0-9]*) usage ;; esac
case $only in ''|1|2) ;; *) usage ;; esac
if [ -n "$fake" ]; then
	[ -e "$BUILD/tests/fake_cuda/libcuda.so.1" ] || { echo "bench-gpu: make tests first" >&2; exit 1; }
	args=(-s 16M,4M,48M -t 10,200 -n 4 "${args[@]}")
	py=(--cpu --mib 16,4,48 --tensors 10,200 --rounds 1 "${py[@]}")
	staging=staging=512M,ballast=0
fi
# The driver that both programs are to find, or its stand-in.
driver() {
	[ -z "$fake" ] || set -- env LD_LIBRARY_PATH="$BUILD/tests/fake_cuda" FAKE_CUDA_STRICT=1 "$@"
	"$@"
}

driver "$bench" --probe || exit $?

dir=$(mktemp -d "${CAIRN_BENCH_DIR:-/var/tmp}/cairn-bench-gpu.XXXXXX")
mkdir "$dir/store" "$dir/mnt" "$dir/tmpfs" "$dir/disk"
mounted='' shm='' start=$SECONDS
finish()
{
	cd /
	[ "$mounted" != cairnfs ] || "$BUILD/cairn" umount "$dir/mnt" >/dev/null || umount -l "$dir/mnt" || true
	[ "$mounted" != tmpfs ] || umount "$dir/tmpfs" || true
	[ -z "$shm" ] || rm -rf "$shm"
	rm -rf --one-file-system "$dir"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

echo "$(nproc) CPUs, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) of memory," \
	"Linux $(uname -r); store and disk: $(df --output=fstype "$dir" | tail -1) at $dir"
why=''
if [ -n "${CAIRN_BENCH_NO_FUSE:-}" ]; then
	why='CAIRN_BENCH_NO_FUSE is set'
elif [ ! -x "$BUILD/cairnfs" ]; then
	why='build/cairnfs is not built (make, which wants what tools/setup installs)'
elif [ ! -e /dev/fuse ]; then
	why='there is no /dev/fuse (a container gets it by --device /dev/fuse --cap-add SYS_ADMIN)'
elif [ "$(id -u)" != 0 ]; then
	why='passthrough wants root'
elif ! "$BUILD/cairnfs" "$dir/store" "$dir/mnt" -o "$staging"; then
	why='cairnfs did not start, see above'
else
	mounted=cairnfs
	mkdir "$dir/mnt/run"
fi
if [ -n "$why" ]; then
	echo "no mount: $why"
	if mount -t tmpfs -o huge=always,size=90% cairn-bench "$dir/tmpfs" 2>/dev/null; then
		mounted=tmpfs shm=''
	fi
fi
# Where a tmpfs is wanted: ours, or the system's.
tmpfs=$dir/tmpfs
if [ "$mounted" != tmpfs ] && [ -w /dev/shm ]; then
	shm=$(mktemp -d /dev/shm/cairn-bench-gpu.XXXXXX)
	tmpfs=$shm
fi

# left SHARE: seconds of what is left of the time, as an option; none where it has no limit
left()
{
	[ "$minutes" = 0 ] || {
		local s=$(((minutes * 60 - SECONDS + start) * $1 / 100))
		echo "--seconds=$((s > 1 ? s : 1))"
	}
}

if [ "$only" != 2 ]; then
	share=40
	[ -z "$only" ] || share=100
	if [ "$mounted" = cairnfs ]; then
		driver "$bench" $(left $share) "${args[@]}" "$dir/mnt/run"
	else
		driver "$bench" $(left $share) "${args[@]}" --stand-in "$tmpfs"
	fi
fi
[ "$only" != 1 ] || exit 0

: "${PYTHON:=python3}"
if [ -n "$fake" ] && ! "$PYTHON" -c 'import torch' 2>/dev/null && [ -x "$BUILD/ecosystem/venv/bin/python" ]; then
	PYTHON=$BUILD/ecosystem/venv/bin/python
fi
if ! "$PYTHON" -c 'import torch' 2>/dev/null; then
	echo "$PYTHON has no torch: no figures of torch.save and DCP; PYTHON= names one that has"
elif [ -z "$fake" ] && ! "$PYTHON" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
	echo "torch of $PYTHON sees no GPU (a build for the CPU, or for a newer driver?): no figures of" \
		"torch.save and DCP; PYTHON= names another"
else
	[ "$mounted" != cairnfs ] || py+=(--mount "$dir/mnt/run")
	[ "$tmpfs" = "$dir/tmpfs" ] && [ "$mounted" != tmpfs ] || py+=(--tmpfs "$tmpfs")
	CAIRN_LIBRARY=$BUILD/libcairn.so GLOO_SOCKET_IFNAME=lo "$PYTHON" "$top/tools/python/bench_gpu.py" \
		--disk "$dir/disk" $(left 100) "${py[@]}"
fi
