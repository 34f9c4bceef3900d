#!/usr/bin/env python3
"""Updates a prepared dataset by 1%, 0.1% and one of its edges, compared with preparing the changed dump again.

    benches/update.py [--scale 20] [--edge-factor 16] [--parts 8] [--method multilevel] [--repeats 3] [--directed]

Half of a change removes edges, and half adds edges. Every update is compared byte by byte with a preparation of the changed dump that
keeps the part of every node (method "file", the cheapest rebuild). The rebuild by `--method` is also measured. The result is written to
benches/runs/<date>-update.json.
"""
import argparse, json, os, pathlib, random, shutil, statistics, sys, tempfile

from program import about, build, timed, write

SHARES = [("1%", 0.01), ("0.1%", 0.001), ("one edge", 0.0)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--edge-factor", type=int, default=16)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--method", default="multilevel")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directed", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = build()

    def gnnflow(*arguments):
        return timed(binary, *arguments)

    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        nodes, edges = 1 << options.scale, options.edge_factor << options.scale
        gnnflow("generate", "rmat", "--out", work / "dump", "--scale", options.scale, "--edges", edges, "--quiet")

        def pairs(name, count, seed):
            """Writes a Parquet file of random edges and returns its path."""
            draw = random.Random(seed)
            text = work / f"{name}.txt"
            text.write_text("".join(f"{draw.randrange(nodes)} {draw.randrange(nodes)}\n" for _ in range(count)))
            gnnflow("import", "text", text, "--header", "no", "--directed", "--out", work / name, "--quiet")
            return work / name / "edges.parquet"

        gone, come = {}, {}
        for seed, (name, share) in enumerate(SHARES):
            count = max(1, int(edges * share / 2))
            gone[name] = pairs(f"gone-{seed}", count, 2 * seed)
            come[name] = pairs(f"come-{seed}", count, 2 * seed + 1) if share else None

        def pipeline(name, files, method):
            """Writes a pipeline file that prepares the generated edges and those of `files`."""
            listed = ", ".join(f'"{path}"' for path in [work / "dump" / "edges.parquet", *files])
            path = work / name
            path.write_text(
                f'[graph]\nnodes = "{work}/dump/nodes.parquet"\nedges = [{listed}]\nduplicates = "keep"\n'
                f"undirected = {str(not options.directed).lower()}\n[partition]\nparts = {options.parts}\n{method}\n"
            )
            return path

        chosen = f'method = "{options.method}"'
        base, dataset = pipeline("base.toml", gone.values(), chosen), work / "dataset"
        gnnflow("prepare", base, "--out", dataset, "--quiet")
        gnnflow("export", dataset, "--out", work / "export", "--quiet")
        same = f'method = "file"\nfile = "{work}/export/nodes.parquet"\nfile_columns = {{ part = "partition" }}'
        rows = []
        for name, _ in SHARES:
            files = [path for other, path in gone.items() if other != name] + ([come[name]] if come[name] else [])
            change = ["--remove", gone[name]] + (["--edges", come[name]] if come[name] else [])
            times = {"update": [], "rebuild in place": [], "rebuild": []}
            for _ in range(options.repeats):
                for out in ["updated", "rebuilt", "anew"]:
                    shutil.rmtree(work / out, ignore_errors=True)
                seconds, printed = gnnflow("update", dataset, "--out", work / "updated", *change, "--json", "--quiet")
                times["update"].append(seconds)
                times["rebuild in place"].append(gnnflow("prepare", pipeline("same.toml", files, same), "--out", work / "rebuilt", "--quiet")[0])
                times["rebuild"].append(gnnflow("prepare", pipeline("anew.toml", files, chosen), "--out", work / "anew", "--quiet")[0])
            updated = json.loads(printed)
            for path in sorted((work / "updated").glob("part-*/*.arrow")):
                if path.read_bytes() != (work / "rebuilt" / path.relative_to(work / "updated")).read_bytes():
                    sys.exit(f"error: {name}: {path.name} of {path.parent.name} is not the rebuild's")
            median = {key: round(statistics.median(values), 3) for key, values in times.items()}
            row = {"change": name, "seconds": median, "all_seconds": times, "counts": updated["counts"]}
            row |= {"partitions_written": len(updated["rewritten"]), "affected": updated["affected"]}
            row |= {"times_faster": round(median["rebuild"] / median["update"], 1)}
            row |= {"times_faster_in_place": round(median["rebuild in place"] / median["update"], 1)}
            rows.append(row)
            print(
                f"{name:>9}: update {median['update']:.2f} s; rebuild with the parts known {median['rebuild in place']:.2f} s "
                f"({row['times_faster_in_place']}×), by {options.method} {median['rebuild']:.2f} s ({row['times_faster']}×); equal",
                flush=True,
            )
    result = about("update beside rebuild")
    result |= {"nodes": nodes, "edge_rows": edges, "parts": options.parts, "undirected": not options.directed, "results": rows}
    write(result, "update", options.out)


if __name__ == "__main__":
    main()
