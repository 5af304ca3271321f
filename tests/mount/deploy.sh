#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# What docs/deploy has: units that systemd takes, manifests that the Kubernetes schema takes, with memory that fits,
# scripts that do what they say.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool python3
deploy=$LIB_TOP/docs/deploy

# The units, with the programs where they were built.
if command -v systemd-analyze >/dev/null; then
	mkdir "$TMP/units"
	for unit in "$deploy"/systemd/*; do
		sed "s|/usr/local/bin/|$BUILD/|" "$unit" >"$TMP/units/${unit##*/}"
	done
	cp "$TMP/units/cairnfs@.service" "$TMP/units/cairnfs@ckpt.service"
	for unit in cairnfs@ckpt.service mnt-ckpt.mount cairnfs-drain.service; do
		SYSTEMD_UNIT_PATH=$TMP/units: systemd-analyze verify --man=no "$TMP/units/$unit" >"$TMP/said" 2>&1
		grep -F "$TMP/units" "$TMP/said" && die "$unit"
	done
	sed -i 's/^TimeoutStopSec=.*/TimeoutStopSec=forever/' "$TMP/units/cairnfs@ckpt.service"
	SYSTEMD_UNIT_PATH=$TMP/units: systemd-analyze verify --man=no "$TMP/units/cairnfs@ckpt.service" 2>&1 |
		has -F "$TMP/units" || die "a wrong unit is taken"
else
	note "no systemd-analyze: the units were not checked"
fi
for unit in cairnfs@.service cairnfs-drain.service; do
	for line in 'ExecStop=.*cairn umount' TimeoutStopSec=infinity RequiresMountsFor= 'After=mnt-.*mount'; do
		has "^$line" "$deploy/systemd/$unit" || die "$unit has no $line"
	done
done
for line in Type=notify NotifyAccess=all; do
	has "^$line" "$deploy/systemd/cairnfs@.service" || die "cairnfs@.service has no $line"
done

# The manifests.
if python3 -c 'import yaml' 2>/dev/null; then
	python3 - "$deploy"/kubernetes/*.yaml <<'END' || die "the manifests"
import re, sys, yaml
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None
    print("# no kubernetes-validate: the schema was not checked")

def pods(doc):
    spec = doc["spec"]
    if doc["kind"] in ("Pod", "DaemonSet"):
        yield spec["template"]["spec"] if "template" in spec else spec

def size(text):
    n, unit = re.fullmatch(r"(\d+)([GMT])i?", text).groups()
    return int(n) << {"M": 20, "G": 30, "T": 40}[unit]

def check(path, doc):
    for pod in pods(doc):
        volumes = {v["name"]: v for v in pod["volumes"]}
        for c in pod.get("initContainers", []) + pod["containers"]:
            for m in c["volumeMounts"]:
                assert m["name"] in volumes, (path, m)
            if c["name"] != "cairnfs":
                assert not c.get("securityContext", {}).get("privileged"), (path, "a privileged trainer")
                continue
            assert c["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}, path
            staging = size(re.search(r"staging=(\w+)", c["args"][0])[1])
            room = size(volumes["staging"]["emptyDir"]["sizeLimit"])
            limit = size(c["resources"]["limits"]["memory"])
            assert staging < room < limit and staging <= limit * 3 // 4, (path, staging, room, limit)
            assert [m for m in c["volumeMounts"] if m.get("mountPropagation") == "Bidirectional"], path
            assert c["lifecycle"]["preStop"]["exec"]["command"][:2] == ["cairn", "umount"], path

for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        for doc in yaml.safe_load_all(f):
            if kubernetes_validate:
                kubernetes_validate.validate(doc, kubernetes_validate.latest_version().rsplit(".", 1)[0], strict=True)
            check(path, doc)
if kubernetes_validate:
    print("# checked against the schema of", kubernetes_validate.latest_version())
    try:
        doc["spec"]["contaimers"] = []
        kubernetes_validate.validate(doc, kubernetes_validate.latest_version().rsplit(".", 1)[0], strict=True)
        sys.exit("a wrong manifest is taken")
    except kubernetes_validate.ValidationError:
        pass
END
else
	note "no yaml for python3: the manifests were not checked"
fi

# The scripts: prolog mounts once, epilog waits, and both fail when that fails.
for script in "$deploy"/slurm/*.sh; do
	bash -n "$script" || die "$script"
	if command -v shellcheck >/dev/null; then
		shellcheck "$script" || die "$script"
	fi
done
mkdir "$TMP/all" "$TMP/all/ckpt" "$TMP/bin"
cat >"$TMP/bin/systemctl" <<-'END'
	#!/bin/bash
	echo "$*" >>"$TMP/started"
	[ ! -e "$TMP/broken" ] && [ "$*" = "start cairnfs@ckpt" ] && cairnfs "$TMP/store" /mnt/ckpt -o staging=64M,pool=0
END
chmod +x "$TMP/bin/systemctl"
mkdir "$TMP/store"
# shellcheck disable=SC2016	# the other shell's
PATH=$TMP/bin:$BUILD:$PATH unshare -m "$LIB_TOP/tests/lib/own_mounts" bash -ec '
	deploy=$1
	mount --bind "$TMP/all" /mnt
	touch "$TMP/broken"
	if "$deploy/slurm/prolog.sh"; then echo "the prolog takes a service that does not start"; exit 1; fi
	rm "$TMP/broken"
	"$deploy/slurm/prolog.sh"
	"$deploy/slurm/prolog.sh"
	[ "$(wc -l <"$TMP/started")" = 2 ]
	exec 7>/mnt/ckpt/open
	echo x >&7
	if CAIRNFS_WAIT_S=0.2 "$deploy/slurm/epilog.sh"; then echo "the epilog takes an open file"; exit 1; fi
	exec 7>&-
	"$deploy/slurm/epilog.sh"
	[ -s "$TMP/store/open" ]
	cairn umount -q /mnt/ckpt
	if "$deploy/slurm/epilog.sh"; then echo "the epilog takes no mount"; exit 1; fi
' - "$deploy" >"$TMP/said" 2>&1 </dev/null || die "prolog and epilog: $(cat "$TMP/said")"
exit 0
