#!/usr/bin/env python3
"""Prepares R-MAT graphs of growing size under a memory limit that the kernel enforces, and plots peak memory over edges.

    benches/prepare_memory.py [--scales 21,22,23,24] [--edge-factor 30] [--parts 16] [--memory 3GiB] [--method multilevel]

Needs root and about 40 bytes of disk per edge. The limit is a memory control group of version 1 or 2, which includes the page cache
and kills processes above it. The result is written to benches/runs/<date>-prepare-memory.json and .svg. It contains an estimate for
ogbn-papers100M, extrapolated linearly.
"""
import argparse, json, os, pathlib, shutil, subprocess, tempfile, time

from memory_group import Group, size
from program import about, build, write

PAPERS = {"nodes": 111_059_956, "edges": 1_615_685_872}  # rows of edges; both directions are 3.2 billion


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", default="21,22,23,24")
    parser.add_argument("--edge-factor", type=int, default=30)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--memory", default="3GiB")
    parser.add_argument("--method", default="multilevel")
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = build()
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        for scale in map(int, options.scales.split(",")):
            dump, out, pipeline = work / "dump", work / "out", work / "p.toml"
            edges = options.edge_factor << scale
            begin = time.perf_counter()
            generate = [binary, "generate", "rmat", "--out", dump, "--scale", str(scale), "--edges", str(edges), "--quiet"]
            subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
            generated = time.perf_counter() - begin
            pipeline.write_text(
                f'[graph]\nnodes = "{dump}/nodes.parquet"\nedges = "{dump}/edges.parquet"\nundirected = true\n'
                f'[partition]\nmethod = "{options.method}"\nparts = {options.parts}\nmemory = "{options.memory}"\n'
            )
            # Excludes the generator's page cache from the measurement.
            subprocess.run(["sync"], check=True)
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
            seconds, peak = Group(size(options.memory)).run([binary, "prepare", pipeline, "--out", out, "--quiet"])
            report = json.loads((out / "partition.json").read_text())
            row = {"scale": scale, "nodes": 1 << scale, "edge_rows": edges, "generate_seconds": round(generated, 1)}
            row |= {"wall_seconds": round(seconds, 1), "cgroup_peak_bytes": peak}
            row |= {key: report[key] for key in ["peak_rss_bytes", "partition_bytes", "partition_seconds", "replication_factor", "edge_cut", "balance", "passes"]}
            rows.append(row)
            print(f"scale {scale}: {edges:,} edges in {seconds:.0f} s, peak {row['peak_rss_bytes'] / 2**20:.0f} MiB", flush=True)
            shutil.rmtree(dump)
            shutil.rmtree(out)
    result = about("memory of preparing, by edges")
    result |= {"method": options.method, "parts": options.parts, "memory": options.memory, "estimate": estimate(rows), "results": rows}
    out = write(result, "prepare-memory", options.out)
    out.with_suffix(".svg").write_text(plot(rows, size(options.memory)))
    print(json.dumps(result["estimate"], indent=1))


def estimate(rows):
    """Extrapolates to ogbn-papers100M: memory by nodes, time by edges."""
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    per_node = (last["peak_rss_bytes"] - first["peak_rss_bytes"]) / (last["nodes"] - first["nodes"])
    per_edge = (last["wall_seconds"] - first["wall_seconds"]) / (last["edge_rows"] - first["edge_rows"])
    fixed = last["peak_rss_bytes"] - per_node * last["nodes"]
    return {
        "of": "ogbn-papers100M, structure only, both directions", **PAPERS,
        "bytes_per_node": round(per_node, 1), "fixed_bytes": round(fixed), "seconds_per_edge_row": per_edge,
        "peak_rss_bytes": round(fixed + per_node * PAPERS["nodes"]),
        "hours_on_this_machine": round((last["wall_seconds"] + per_edge * (PAPERS["edges"] - last["edge_rows"])) / 3600, 2),
    }


def plot(rows, limit):
    """Plots peak memory over edges, with the limit as a dashed line."""
    width, height, left, bottom = 640, 360, 70, 45
    most_x = max(r["edge_rows"] for r in rows) * 1.05
    most_y = limit * 1.1
    x = lambda edges: left + (width - left - 20) * edges / most_x
    y = lambda bytes: height - bottom - (height - bottom - 20) * bytes / most_y
    line = lambda key: " ".join(f"{x(r['edge_rows']):.1f},{y(r[key]):.1f}" for r in rows)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} 20V{height - bottom}H{width - 20}" fill="none" stroke="black"/>',
        f'<path d="M{left} {y(limit):.1f}H{width - 20}" stroke="#b33" stroke-dasharray="6 4"/>',
        f'<text x="{width - 24}" y="{y(limit) - 5:.1f}" text-anchor="end" fill="#b33">partition.memory, enforced</text>',
        f'<polyline points="{line("peak_rss_bytes")}" fill="none" stroke="#27a" stroke-width="2"/>',
        f'<text x="{x(rows[-1]["edge_rows"]):.1f}" y="{y(rows[-1]["peak_rss_bytes"]) - 8:.1f}" text-anchor="end" fill="#27a">peak of the process</text>',
        f'<polyline points="{line("partition_bytes")}" fill="none" stroke="#2a7" stroke-width="2"/>',
        f'<text x="{x(rows[-1]["edge_rows"]):.1f}" y="{y(rows[-1]["partition_bytes"]) - 8:.1f}" text-anchor="end" fill="#2a7">of it the partitioner</text>',
    ]
    for r in rows:
        svg.append(f'<circle cx="{x(r["edge_rows"]):.1f}" cy="{y(r["peak_rss_bytes"]):.1f}" r="3" fill="#27a"/>')
        label = f'{r["edge_rows"] / 1e6:.0f} M'
        svg.append(f'<text x="{x(r["edge_rows"]):.1f}" y="{height - bottom + 16}" text-anchor="middle">{label}</text>')
    for gib in range(int(most_y / 2**30) + 1):
        svg.append(f'<text x="{left - 6}" y="{y(gib * 2**30) + 4:.1f}" text-anchor="end">{gib} GiB</text>')
    svg.append(f'<text x="{(left + width) / 2}" y="{height - 8}" text-anchor="middle">edges (rows of the dump)</text></svg>')
    return "\n".join(svg) + "\n"


if __name__ == "__main__":
    main()
