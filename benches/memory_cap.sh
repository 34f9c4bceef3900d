#!/usr/bin/env bash
# Runs a pipeline under a memory limit for all its processes, which the kernel enforces, and writes time and memory.
#
#     benches/memory_cap.sh [PIPELINE] [BYTES] [PROCESSES…]     defaults: benches/planted-2m.toml, 6 GiB, 1 and 2
#
# The limit is a memory control group (version 1 or 2; needs root). It includes the page cache, and processes above it
# are killed, so a run with exit code 0 stayed below it. The result is benches/runs/<date>-memory-cap.json.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
pipeline=${1:-$root/benches/planted-2m.toml} cap=${2:-6442450944}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- 1 2
binary=${CARGO_TARGET_DIR:-$root/target}/release/gnnflow
work=${GNNFLOW_BENCH_DIR:-$(mktemp -d)}

if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    group=/sys/fs/cgroup/gnnflow-bench limit=memory.max peak=memory.peak version=2
else
    group=/sys/fs/cgroup/memory/gnnflow-bench limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes version=1
fi
rows=()
for processes in "$@"; do
    rmdir "$group" 2>/dev/null || true
    mkdir "$group"
    echo "$cap" >"$group/$limit"
    run=$work/run-$processes begin=$(date +%s.%N)
    # Removes the dataset, so that preparation is also under the limit.
    rm -rf "$work/dataset-$processes"
    bash -c "echo \$\$ >'$group/cgroup.procs'; exec \"\$@\"" - "$binary" run "$pipeline" --run-dir "$run" \
        --set "graph.generate.out=$work/dump" --set "partition.out=$work/dataset-$processes" --processes "$processes"
    seconds=$(python3 -c "import time; print(round(time.time() - $begin, 1))")
    rows+=("{\"processes\": $processes, \"wall_seconds\": $seconds, \"cgroup_peak_bytes\": $(cat "$group/$peak"),
      \"summary\": $(cat "$run/summary.json")}")
done
mkdir -p "$root/benches/runs"
result=$root/benches/runs/$(date +%F)-memory-cap.json
python3 - "$result" "$cap" "$version" "$(git -C "$root" rev-parse --short HEAD)" "[$(IFS=,; echo "${rows[*]}")]" <<'PY'
import json, os, platform, sys
path, cap, version, commit, rows = sys.argv[1:]
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
json.dump(dict(what="memory cap", enforced_by=f"memory control group, version {version}", cap_bytes=int(cap), commit=commit,
    machine=dict(cpu=cpu, cores=os.cpu_count(), ram_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    runs=json.loads(rows)), open(path, "w"), indent=1)
print(path)
PY
