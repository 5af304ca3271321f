#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay
# timeout: 120
# In a store of several nodes a .metadata waits that is too large to be parsed as a whole, and one
# that cannot be read; a file that is only named so does not.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool unshare

assets=$LIB_TOP/tests/assets/dcp s=$TMP/store a=$TMP/a b=$TMP/b
relay=; [ "$MODE" != relay ] || relay=,nopassthrough

mount_b()
{
	mkdir -p "$b" "$TMP/staging-b"
	# shellcheck disable=SC2016
	unshare --uts sh -c 'hostname node-b && exec "$0" "$1" "$2" -o "$3"' "$BUILD/cairnfs" "$s" "$b" \
		"staging=64M,pool=0,staging_dir=$TMP/staging-b$relay" || die "node b does not mount"
	LIB_STORE[$b]=$s
	LIB_KEEPER[$b]=$(keeper_pid "$b")
}

held() { status_field "$a" held; }
holds() { case $(held) in *"$1"*) ;; *) return 1 ;; esac; }

# 256 ranks, 1,500 tensors each, more than 64 MiB; the files of all ranks are empty but the last.
large()
{
	python3 - "$TMP/large" <<-'END'
	import pickle, sys, types
	name = "torch.distributed.checkpoint.metadata"
	for n in ("torch", "torch.distributed", "torch.distributed.checkpoint", name):
	    sys.modules[n] = types.ModuleType(n)
	def cls(n):
	    c = type(n, (), {"__module__": name, "__init__": lambda s, **k: s.__dict__.update(k)})
	    setattr(sys.modules[name], n, c)
	    return c
	Metadata, MetadataIndex, _StorageInfo = map(cls, ("Metadata", "MetadataIndex", "_StorageInfo"))
	data = {}
	for rank in range(256):
	    path = "__%d_0.distcp" % rank
	    for t in range(1500):
	        fqn = "model.layers.%d.self_attention.linear_qkv.weight.of.the.optimizer.of.rank.%d." % (t, rank)
	        data[MetadataIndex(fqn=fqn + "x" * 80, offset=None, index=t)] = _StorageInfo(
	            relative_path=path, offset=0, length=4 * (rank == 255))
	with open(sys.argv[1], "wb") as f:
	    pickle.dump(Metadata(state_dict_metadata={}, planner_data=None, storage_data=data), f)
	END
	[ "$(stat -c %s "$TMP/large")" -gt $((64 << 20)) ] || die "only $(stat -c %s "$TMP/large") bytes"
}

start_mount "$s" "$a" staging=512M,pool=0,commit_wait=1
mount_b

large
mkdir -p "$a/large"
for i in $(seq 0 254); do : >"$a/large/__${i}_0.distcp"; done
wait_durable "$a"
cp "$TMP/large" "$a/large/.metadata"
retry 60 eval 'holds __255_0.distcp || [ -e "$s/large/.metadata" ]'
[ ! -e "$s/large/.metadata" ] || die "an incomplete checkpoint with a large .metadata is in the store"
holds "__255_0.distcp is not in the store" || die "not told: $(held)"
echo data >"$b/large/__255_0.distcp"
wait_durable "$b"
wait_durable "$a"
cmp "$TMP/large" "$s/large/.metadata" || die "the large .metadata differs"

# Cut short: held until a person's word; the shards it lists do not help, for they are not known.
for n in 100 2000; do
	mkdir -p "$a/cut-$n"
	cp "$assets"/*.distcp "$a/cut-$n"
	head -c "$n" "$assets/.metadata" >"$a/cut-$n/.metadata"
	retry 20 eval 'holds "its list of files cannot be read" || [ -e "$s/cut-$n/.metadata" ]'
	"$BUILD/cairn" wait -q "$a/cut-$n" 2>"$TMP/err" && die "cairn wait says that it is durable"
	has 'its list of files cannot be read' "$TMP/err" || die "cairn wait: $(cat "$TMP/err")"
	[ ! -e "$s/cut-$n/.metadata" ] || die "a damaged .metadata of $n bytes is in the store"
	kill -KILL "$(worker_pid "$a")"
	retry 20 holds "its list of files cannot be read" || die "forgotten by the next worker"
	"$BUILD/cairn" commit --force "$a/cut-$n" || die "cairn commit --force"
	wait_durable "$a"
	cmp "$a/cut-$n/.metadata" "$s/cut-$n/.metadata" || die "not published by request"
done

# Not DCP's: published in its turn.
mkdir -p "$a/other"
echo 'a text' >"$a/other/.metadata"
wait_durable "$a"
python3 -c 'import pickle, sys; pickle.dump({"a": 1}, open(sys.argv[1], "wb"))' "$a/other/.metadata"
wait_durable "$a"
: >"$a/other/.metadata"
wait_durable "$a"
same_tree "$a" "$s" || die "the store differs"
stop_mount "$a"
stop_mount "$b"
