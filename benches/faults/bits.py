#!/usr/bin/env python3
"""Flips one bit of a file, or truncates it, and runs a command that reads it. Files of every type that gnnflow reads are damaged.

    benches/faults/bits.py [--seed 1] [--count 100] [--minutes 60] [--only CASE] [--types NAME,…]

Of each type, COUNT bits at random places of random files are flipped, one at a time, and COUNT / 10 files truncated at a random place. The command must end with exit code 3 and name
the file (2 is right for `pipeline.toml`), or its results must have the same bytes. Pages of Parquet files have no checksums unless their writer has added some: a changed value of an input
table is a change of the data. Such cases are counted as `other data`, and are no deviations. `--only` has the number of a case as printed. The result is written to benches/runs/<date>-faults-bits.json.
"""
import collections, json, pathlib, shutil, signal, sys, time

from common import (NEVER, PANIC, Campaign, Deviation, SCHEDULES, Started, digest, generate, must_be_clear, options, pipeline, results, run)

try:
    import pyarrow as arrow
    import pyarrow.parquet as parquet
except ImportError:
    sys.exit("error: benches/faults/bits.py needs pyarrow; run it with a Python that has it")


class Type:
    """Files of one type, the folders that commands need, and the commands that read the files."""

    def __init__(self, name, files, needs, commands, values=False, codes=(3,), skip=()):
        self.name, self.files, self.needs, self.commands, self.values, self.codes, self.skip = name, files, needs, commands, values, codes, skip

    def paths(self, world):
        found = [path for pattern in self.files for path in world.glob(pattern) if path.is_file() and path.stat().st_size > 0 and not any(word in path.name for word in self.skip)]
        return sorted(found)


RUN = ["run", "p.toml", "--quiet", "--run-dir", "new"]
INFER = ["infer", "run", "--dataset", "dataset", "--out", "new", "--set", "infer.embeddings=true", "--quiet"]
TWO = ["--processes", "2"]
RESUME = ["run", "p.toml", "--quiet", "--run-dir", "part", "--resume"]
FROM = [*RUN, "--set", "train.from=run"]
LEARNED = ["run", "learned.toml", "--quiet", "--run-dir"]
REFRESH = ["refresh", "run", "--dataset", "changed", "--out", "results", "--quiet"]
FOLLOW = ["follow", "run", "--changes", "incoming", "--dataset", "followed-dataset", "--out", "followed", "--once", "--quiet"]
UPDATE = ["update", "dataset", "--batches", "incoming", "--out", "updated", "--quiet"]

KILLED = "preparation that was killed"
TYPES = [
    *[Type(f"dataset: {kind}.arrow", [f"dataset/part-*/{kind}.arrow"], ["dataset", "run", "incoming"], [RUN, RUN + TWO, INFER, INFER + TWO, UPDATE]) for kind in ["topology", "nodes", "features"]],
    Type("dataset: halo.arrow", ["dataset/part-*/halo.arrow"], ["dataset", "run"],
         [RUN + TWO, ["run", "local.toml", "--quiet", "--run-dir", "new"], INFER + TWO, ["export", "dataset", "--out", "new", "--quiet"]]),
    Type("dataset: manifest.json", ["dataset/manifest.json"], ["dataset", "run", "incoming"], [RUN, RUN + TWO, INFER, UPDATE, ["export", "dataset", "--out", "new", "--quiet"]]),
    Type("dataset: partition.json", ["dataset/partition.json"], ["dataset", "run"], [RUN, INFER]),
    Type("dataset: string ids", ["named-dataset/part-*/nodes.arrow"], ["named-dataset"],
         [["run", "named.toml", "--quiet", "--run-dir", "new"], ["update", "named-dataset", "--edges", "named-edges.parquet", "--out", "updated", "--quiet"]]),
    Type("checkpoint", ["part/checkpoints/last.safetensors"], ["dataset", "part"], [RESUME, RESUME + TWO]),
    Type("checkpoint within an epoch", ["within/checkpoints/last.safetensors"], ["dataset", "within"],
         [["run", "within.toml", "--quiet", "--run-dir", "within", "--resume"], ["run", "within.toml", "--quiet", "--run-dir", "within", "--resume", *TWO]]),
    Type("checkpoint of full-graph", ["full-part/checkpoints/last.safetensors"], ["dataset", "full-part"], [["run", "full.toml", "--quiet", "--run-dir", "full-part", "--resume"]]),
    Type("learned rows of a checkpoint", ["learned-part/checkpoints/*.safetensors"], ["learned-dataset", "learned-part"],
         [LEARNED + ["learned-part", "--resume"], LEARNED + ["learned-part", "--resume", *TWO]]),
    Type("model.safetensors", ["run/model.safetensors"], ["dataset", "run"], [INFER, FROM, INFER + TWO]),
    Type("optimizer.safetensors", ["run/optimizer.safetensors"], ["dataset", "run"], [FROM + ["--set", "train.from_optimizer=true"]]),
    Type("node_embeddings.parquet", ["learned-run/node_embeddings.parquet"], ["learned-dataset", "learned-run"],
         [["infer", "learned-run", "--dataset", "learned-dataset", "--out", "new", "--quiet"], LEARNED + ["new", "--set", "train.from=learned-run"]]),
    Type("pipeline.toml of a run", ["run/pipeline.toml"], ["dataset", "run"], [INFER, FROM], codes=(2, 3)),
    Type("summary.json of a run", ["run/summary.json"], ["dataset", "run"], [INFER, FROM]),
    Type("metrics.jsonl of a checkpoint", ["part/metrics.jsonl"], ["dataset", "part"], [RESUME]),
    Type("refresh: stored rows", ["changed.layers/**/*"], ["changed", "changed.layers", "run", "results"], [REFRESH, REFRESH + TWO]),
    Type("refresh: results", ["results/*"], ["changed", "changed.layers", "run", "results"], [REFRESH]),
    Type("follow: state", ["followed/*.json", "followed/applied.txt", "followed/pending/**/*"], ["followed-dataset", "followed-dataset.layers", "followed", "run", "incoming"], [FOLLOW]),
    Type("follow: stored rows", ["followed-dataset.layers/**/*"], ["followed-dataset", "followed-dataset.layers", "followed", "run", "incoming"], [FOLLOW]),
    Type("follow: results", ["followed/batches/**/*", "followed/*.parquet"], ["followed-dataset", "followed-dataset.layers", "followed", "run", "incoming"], [FOLLOW]),
    Type("follow: dataset", ["followed-dataset/**/*.arrow", "followed-dataset/manifest.json"], ["followed-dataset", "followed-dataset.layers", "followed", "run", "incoming"], [FOLLOW], skip=["halo"]),
    Type("update: batches", ["incoming/*/*.parquet"], ["dataset", "incoming"], [UPDATE], values=True),
    Type("input: nodes.parquet", ["dump/nodes.parquet"], ["dump"], [["prepare", "prepare.toml", "--quiet"]], values=True),
    Type("input: edges.parquet", ["dump/edges.parquet"], ["dump"], [["prepare", "prepare.toml", "--quiet"]], values=True),
    Type("input with page checksums", ["checked/*.parquet"], ["checked"], [["prepare", "checked.toml", "--quiet"]]),
    Type(KILLED, ["killed/**/*"], ["killed", "dump"], [["prepare", "killed.toml", "--quiet"]]),
]


def batches(world, dump):
    """Writes two batches of changes."""
    nodes = parquet.read_table(dump / "nodes.parquet")
    edges = parquet.read_table(dump / "edges.parquet", columns=["src", "dst"])
    for number in range(3):
        folder = world / "incoming" / f"000{number + 1}"
        folder.mkdir(parents=True)
        ids = lambda values: arrow.array(values, arrow.int64())
        start = 100 * number
        parquet.write_table(edges.slice(start, 4), folder / "remove.parquet")
        parquet.write_table(arrow.table({"src": ids(range(start, start + 6)), "dst": ids(range(start + 150, start + 156))}), folder / "edges.parquet")
        new = nodes.slice(start, 2)
        parquet.write_table(new.set_column(new.schema.get_field_index("node_id"), "node_id", ids([nodes.num_rows + 2 * number, nodes.num_rows + 2 * number + 1])), folder / "nodes.parquet")
        parquet.write_table(nodes.slice(start + 20, 3).select(["node_id", "features"]), folder / "values.parquet")
        (folder / "_SUCCESS").touch()


def prepare_world(campaign, given):
    """Makes the files of all types. Returns their folder."""
    world = campaign.folder("world")
    succeed = lambda *arguments: campaign.succeed(world, *arguments)
    for name, features in [("dump", 8), ("bare", 0)]:
        succeed("generate", "planted", "--out", name, "--nodes", 600, "--edges", 3000, "--features", features, "--classes", 5, "--seed", 7, "--quiet")
    batch = SCHEDULES["mini-batch"]
    common = {"dump": "dump", "epochs": 3}
    pipeline(world / "prepare.toml", train=batch, dataset="new", **common)
    pipeline(world / "first.toml", train=batch, dataset="dataset", **common)
    succeed("prepare", "first.toml", "--quiet")
    for name, train in [("p", batch), ("local", SCHEDULES["partition-parallel"]), ("full", SCHEDULES["full-graph"]), ("within", batch.replace("batch = 10", "batch = 1"))]:
        pipeline(world / f"{name}.toml", train=train, **common)
        text = (world / f"{name}.toml").read_text()
        # The dataset alone: the input tables are damaged in other cases.
        (world / f"{name}.toml").write_text("[graph]\ndataset = 'dataset'\n[model]" + text.split("[model]", 1)[1])
    succeed(*RUN[:-1], "run")
    shutil.rmtree(world / "run" / "checkpoints")
    succeed(*RUN[:-1], "part", "--set", "train.epochs=1")
    succeed("run", "full.toml", "--quiet", "--run-dir", "full-part", "--set", "train.epochs=1")
    # Learned rows.
    pipeline(world / "learned-first.toml", "bare", batch, "learned-dataset", model="embedding = { dim = 6 }\n", epochs=3)
    text = (world / "learned-first.toml").read_text().replace("halo = 'features'\n", "")
    (world / "learned-first.toml").write_text(text)
    (world / "learned.toml").write_text("[graph]\ndataset = 'learned-dataset'\n[model]" + text.split("[model]", 1)[1])
    succeed("prepare", "learned-first.toml", "--quiet")
    succeed(*LEARNED, "learned-run")
    succeed(*LEARNED, "learned-part", "--set", "train.epochs=1")
    # A checkpoint within an epoch.
    metrics, header = world / "within" / "metrics.jsonl", ""
    for _ in range(20):
        shutil.rmtree(world / "within", ignore_errors=True)
        started = Started(campaign.binary, world, ["run", "within.toml", "--quiet", "--run-dir", "within", "--set", "train.epochs=100000", "--set", "train.checkpoint_on_signal=true"])
        while started.running() and not (metrics.exists() and metrics.read_text().count("\n") > 2):
            time.sleep(0.005)
        started.send(signal.SIGTERM)
        started.wait(given.deadline)
        header = (world / "within" / "checkpoints" / "last.safetensors").read_bytes()[:1 << 14].decode(errors="replace")
        # The signal may come just before the end of an epoch.
        if '\\"part\\":{' in header:
            break
    else:
        sys.exit("error: no signal has left a checkpoint within an epoch")
    epoch = metrics.read_text().count("\n")
    text = (world / "within.toml").read_text().replace("epochs = 3\n", f"epochs = {epoch + 2}\n")
    (world / "within.toml").write_text(text)
    # Refresh: stored rows of the dataset, then a change.
    batches(world, world / "dump")
    for name in ["changed", "followed-dataset"]:
        shutil.copytree(world / "dataset", world / name)
    succeed(*REFRESH, "--set", "infer.embeddings=true")
    succeed("update", "changed", "--edges", "incoming/0001/edges.parquet", "--quiet")
    # Follow: two batches are applied and not stored, the third is new.
    shutil.move(world / "incoming" / "0003", world / "0003")
    started = Started(campaign.binary, world, [word for word in FOLLOW if word != "--once"])
    applied = world / "followed" / "applied.txt"
    until = time.monotonic() + 60
    while not (applied.exists() and applied.read_text().count("\n") == 2):
        if not started.running() or time.monotonic() > until:
            sys.exit(f"error: follow has not applied two batches: {started.stderr()}")
        time.sleep(0.01)
    started.kill()
    shutil.move(world / "0003", world / "incoming" / "0003")
    # Ids that are strings.
    nodes, edges = parquet.read_table(world / "dump" / "nodes.parquet"), parquet.read_table(world / "dump" / "edges.parquet")
    text = lambda column: arrow.array([f"node {value}" for value in column.to_pylist()])
    (world / "named").mkdir()
    parquet.write_table(nodes.set_column(0, "node_id", text(nodes["node_id"])), world / "named" / "nodes.parquet")
    named = arrow.table({name: text(edges[name]) for name in ["src", "dst"]})
    parquet.write_table(named, world / "named" / "edges.parquet")
    parquet.write_table(arrow.table({"src": named["src"].slice(3, 2), "dst": named["dst"].slice(900, 2)}), world / "named-edges.parquet")
    pipeline(world / "named-first.toml", "named", batch, "named-dataset", epochs=2)
    text = (world / "named-first.toml").read_text()
    (world / "named.toml").write_text("[graph]\ndataset = 'named-dataset'\n[model]" + text.split("[model]", 1)[1])
    succeed("prepare", "named-first.toml", "--quiet")
    # Input tables with checksums of pages.
    (world / "checked").mkdir()
    for name, table in [("nodes", nodes), ("edges", edges)]:
        parquet.write_table(table, world / "checked" / f"{name}.parquet", write_page_checksum=True)
    pipeline(world / "checked.toml", "checked", batch, "new")
    # A preparation that was killed with a stage on disk.
    pipeline(world / "killed.toml", "dump", batch, "killed/dataset")
    (world / "killed").mkdir()
    kept = world / "most"
    for tries in range(60):
        started = Started(campaign.binary, world, ["prepare", "killed.toml", "--quiet"])
        time.sleep(0.002 * tries)
        started.kill()
        size = lambda folder: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if not (world / "killed" / "dataset" / "manifest.json").exists() and (not kept.exists() or size(world / "killed") > size(kept)):
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(world / "killed", kept)
        shutil.rmtree(world / "killed", ignore_errors=True)
        (world / "killed").mkdir()
    (world / "killed").rmdir()
    shutil.move(kept, world / "killed")
    print("killed preparation:", sum(path.is_file() for path in (world / "killed").rglob("*")), "files", flush=True)
    return world


def outputs(place):
    """Returns the hashes of all results in a folder of a case."""
    found = {}
    for folder in ["new", "part", "within", "full-part", "learned-part"]:
        found |= {f"{folder}/{name}": value for name, value in results(place / folder).items()} if (place / folder).is_dir() else {}
    for pattern in ["new/**/*.arrow", "new/nodes.parquet", "new/edges.parquet", "updated/**/*.arrow", "killed/dataset/part-*/*.arrow", "results/*.parquet", "followed/*.parquet",
                    "followed/batches/*/changes.parquet", "followed-dataset/part-*/*.arrow"]:
        found |= {str(path.relative_to(place)): digest(path) for path in place.glob(pattern)}
    return found


def main():
    given = options(__doc__, count=100, minutes=60.0, types="")
    campaign = Campaign("bits", given)
    world = prepare_world(campaign, given)
    chosen = [kind for kind in TYPES if not given.types or any(word in kind.name for word in given.types.split(","))]
    expected, table = {}, {kind.name: collections.Counter() for kind in chosen}

    def start(kind, command, place, damage=None):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name in kind.needs:
            shutil.copytree(world / name, place / name)
        for path in [*world.glob("*.toml"), *world.glob("*.parquet")]:
            shutil.copy(path, place)
        for name in ["dump", "bare", "named"]:
            if name not in kind.needs:
                (place / name).symlink_to(world / name)
        if damage:
            damage(place)
        return run(campaign.binary, place, command, given.deadline)

    def wanted(kind, command):
        """Returns the results of a command without damage."""
        key = kind.name, tuple(command)
        if key not in expected:
            place = campaign.scratch / "whole"
            ended = start(kind, command, place)
            if ended.code:
                sys.exit(f"error: {kind.name}: {' '.join(command)} fails without damage: {ended}")
            expected[key] = outputs(place)
            if not expected[key]:
                sys.exit(f"error: {kind.name}: {' '.join(command)} has no results")
        return expected[key]

    cuts = max(1, given.count // 10)
    each, given.count = given.count + cuts, (given.count + cuts) * len(chosen)
    # One of each type in turn, so that a time limit shortens all of them.
    for number, draw in campaign.cases():
        kind, turn = chosen[number % len(chosen)], number // len(chosen)
        paths = kind.paths(world)
        if not paths:
            sys.exit(f"error: {kind.name}: no files")
        path, command = draw.choice(paths), draw.choice(kind.commands)
        # Stored rows have reserved space at the end, which is not used.
        size = len(path.read_bytes().rstrip(b"\0")) or 1 if path.suffix == ".f32" else path.stat().st_size
        flip = turn < given.count // len(chosen) - cuts
        at, bit = draw.randrange(size), draw.randrange(8)
        name = str(path.relative_to(world))
        what = f"{kind.name}: {name}, " + (f"byte {at} of {size}, bit {bit}" if flip else f"cut to {at} of {size} bytes") + f"; {' '.join(command)}"
        place, harmed = campaign.scratch / "case", []

        def damage(place):
            content = bytearray((place / name).read_bytes())
            if flip:
                content[at] ^= 1 << bit
            else:
                del content[at:]
            (place / name).write_bytes(content)
            harmed.append(digest(place / name))

        def case():
            right = wanted(kind, command)
            ended = start(kind, command, place, damage)
            if ended.code in NEVER or PANIC.search(ended.stderr):
                raise Deviation(f"panics: {ended}")
            if ended.code:
                must_be_clear(ended)
                if ended.code not in kind.codes:
                    raise Deviation(f"ends with {ended.code} instead of 3: {ended}")
                named = [name, str(pathlib.Path(name).name), str(pathlib.Path(name).parent.name)] if kind.values else [pathlib.Path(name).name]
                if not any(word in ended.stderr for word in named):
                    raise Deviation(f"does not name the file: {ended}")
                return "refused"
            found = outputs(place)
            if name in found and digest(place / name) in harmed:
                # The file is a result itself, and was neither read nor written again.
                found[name] = right[name]
            # A refresh that cannot use stored rows computes all of them, and has no changes to write.
            if found == {key: value for key, value in right.items() if key != "results/changes.parquet" or key in found}:
                return "same results"
            if kind.values:
                return "other data"
            if kind.name == KILLED:
                # A file that an earlier process has written is damaged. The manifest has the checksum from before.
                seen = run(campaign.binary, place, ["inspect", "killed/dataset", "--quiet"], given.deadline)
                if seen.code == 3 and "checksum" in seen.stderr or "bytes" in seen.stderr:
                    return "refused at the next use"
            differing = sorted(key for key in {*found, *right} if found.get(key) != right.get(key))
            raise Deviation(f"exit code 0 with other results: {', '.join(differing)[:300]}: {ended.stderr[-300:]}")

        outcome = campaign.try_case(number, what, case, [place])
        table[kind.name][("" if flip else "cut: ") + outcome] += 1
    campaign.figures["types"] = {name: dict(sorted(counts.items())) for name, counts in table.items()}
    for name, counts in campaign.figures["types"].items():
        print(f"{name}: {counts}")
    campaign.finish()


if __name__ == "__main__":
    main()
