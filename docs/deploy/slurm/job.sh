#!/bin/bash
# SPDX-License-Identifier: MIT
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
# The store of cairnfs@ckpt, /srv/ckpt, is the same shared filesystem on each node; each node's cairnfs writes its own
# ranks' shards, and .metadata reaches the store after all of them.
set -eu
run=/mnt/ckpt/$SLURM_JOB_NAME
newest=/mnt/ckpt/.cairn/latest/$SLURM_JOB_NAME

srun mkdir -p "$run"
# The newest checkpoint that is complete and durable, if there is one.
resume=()
[ ! -e "$newest" ] || resume=(--resume "$newest")
srun python3 train.py --save "$run" "${resume[@]}"
# Durable on each node before the job is called done.
srun --ntasks-per-node=1 cairn wait "$run"
