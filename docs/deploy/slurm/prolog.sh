#!/bin/bash
# SPDX-License-Identifier: MIT
# Prolog= in slurm.conf, as root on each node: the node's mount is there before a job starts. A failure drains the node.
set -u
name=${CAIRNFS_NAME:-ckpt}

cairn status "/mnt/$name" >/dev/null 2>&1 && exit 0
# Not started from here: what a prolog starts is in slurmd's cgroup and ends with it.
if ! systemctl start "cairnfs@$name"; then
	echo "prolog: cairnfs@$name does not start: journalctl -u cairnfs@$name" >&2
	exit 1
fi
