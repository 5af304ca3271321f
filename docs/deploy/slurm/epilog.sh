#!/bin/bash
# SPDX-License-Identifier: MIT
# Epilog= in slurm.conf, as root on each node: a job's end waits until what was saved is durable, an hour at most. The
# mount stays for the next job. A failure drains the node: its staging may be all there is of a checkpoint.
set -u
name=${CAIRNFS_NAME:-ckpt}

if ! cairn wait -q --timeout "${CAIRNFS_WAIT_S:-3600}" "/mnt/$name"; then
	echo "epilog: /mnt/$name is not durable: cairn status /mnt/$name" >&2
	exit 1
fi
