#!/usr/bin/env python3
"""Epochs on a GPU beside epochs on the CPU of the same machine and PyTorch Geometric on the GPU, in turn, with the time of each stage.

    benches/gpu.py [--rounds 5] [--cases NAME…] [--threads N] [--no-cpu] [--pyg] [--set graph.generate.nodes=500000 …] [--out FILE]

Needs a GPU, and what a build with `--features cuda` needs; with --pyg also torch, torch-geometric, numpy and pyarrow. One partition in one
process, on a planted graph of 100 thousand nodes and 4 million directed edges. gnnflow has --threads compute threads (default: all cores).
Full-graph cases run on the GPU once with the graph there, and once with the rows added on the CPU, as several partitions do. PyTorch
Geometric needs pyg-lib or torch-sparse for batches, which its wheel lacks. The first round warms up and is left out;
within a run, so is the first epoch. `idle_share` is the part of the epochs' time in which the GPU was in no pass. Whether all runs on a device gave the same model is in the result, and so are the losses. The result is
written to benches/runs/<date>-gpu.json.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

from program import CORES, about, build, sets, write

PIPELINE = """
name = "gpu"
[graph]
generate = {{ kind = "planted", nodes = 100_000, edges = 2_000_000, features = 128, classes = 32, split = [0.2, 0.1, 0.4], out = "{scratch}/graph" }}
undirected = true
[partition]
method = "range"
parts = 1
out = "{scratch}/dataset"
[model]
dropout = 0.0
[train]
epochs = 6
evaluate_every = 0
checkpoint_every = 0
optimizer = {{ kind = "adam", lr = 0.003 }}
[infer]
predictions = false
"""
BATCHES = ["train.schedule.kind=mini-batch", "train.batch=1000", "model.layers=3"]
FULL = ["train.schedule.kind=full-graph", "model.layers=2"]
CASES = {
    "SAGE, batches, hidden 256": [*BATCHES, "model.kind=sage", "model.hidden=256", "train.fanouts=[15, 10, 5]"],
    "GAT, batches, 4 heads of 64": [*BATCHES, "model.kind=gat", "model.hidden=256", "model.heads=4", "train.fanouts=[10, 10, 10]"],
    "GCN, full graph, hidden 64": [*FULL, "model.kind=gcn", "model.hidden=64"],
    "GCN, full graph, hidden 512": [*FULL, "model.kind=gcn", "model.hidden=512"],
    "GAT, full graph, 4 heads of 16": [*FULL, "model.kind=gat", "model.hidden=64", "model.heads=4"],
}
STAGES = ["sample", "fetch", "forward", "backward", "reduce", "step", "device"]


def run(binary, pipeline, settings, folder):
    """Trains. Returns seconds by epoch and by stage, losses, and the model's checksum."""
    command = [binary, "run", pipeline, "--quiet", "--json", "--run-dir", folder, *sets(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"error: {settings}: {done.stderr}")
    summary = json.loads(done.stdout)
    losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = summary["seconds"]
    stages = {stage: round(seconds[stage] / summary["epochs"], 4) for stage in STAGES if stage in seconds}
    return seconds["per_epoch"], stages, losses, summary["model_sha256"]


def pyg(graph, case, format):
    """Runs a case with PyTorch Geometric. Returns the same as `run`, or None if it fails."""
    keys = dict(key.removeprefix("model.").split("=") for key in case if key.startswith("model."))
    script = pathlib.Path(__file__).parent / "peers" / "pyg_on_gpu.py"
    command = [sys.executable, script, graph, "--model", keys["kind"], "--hidden", keys["hidden"], "--heads", keys.get("heads", "1"), "--layers", keys["layers"]]
    if format == "batches":
        keys |= dict(key.removeprefix("train.").split("=") for key in case if key.startswith("train."))
        command += ["--fanouts", keys["fanouts"].strip("[]").replace(" ", ""), "--batch", keys["batch"], "--loaders", CORES // 2, "--epochs", 4]
    else:
        command += ["--format", format]
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    except subprocess.TimeoutExpired as late:
        done = subprocess.CompletedProcess(command, 1, stderr=str(late))
    if done.returncode:
        print(f"PyTorch Geometric, {format}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return None
    found = json.loads(done.stdout)
    return found["seconds"][1:], {}, found["losses"], None


def row(name, device, runs):
    """The figures of a case on a device, without the first round. Models are compared by checksum, which PyTorch Geometric has none of."""
    seconds = [statistics.median(epochs[1:]) for epochs, *_ in runs[1:] or runs]
    epochs, stages, losses, model = runs[-1]
    found = {"case": name, "device": device, "epoch_seconds": round(statistics.median(seconds), 5), "rounds": [round(second, 5) for second in seconds],
             "stages": stages, "losses": losses}
    # A GPU that samples counts the sampling of the next batch as well.
    if stages.get("device") and "samples" not in device:
        # All epochs, since the stages have no times of single epochs.
        found["idle_share"] = round(1 - stages["device"] * len(epochs) / sum(epochs), 3)
    return found | ({"equal_models": len({model for *_, model in runs}) == 1} if model else {})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--threads", type=int, default=CORES)
    parser.add_argument("--no-cpu", action="store_true")
    parser.add_argument("--pyg", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = build("--features", "cuda")
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    cuda, threads = "train.device=cuda", f"train.threads={options.threads}"
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        scratch = pathlib.Path(scratch)
        pipeline = scratch / "p.toml"
        pipeline.write_text(PIPELINE.format(scratch=scratch))
        subprocess.run([binary, "prepare", pipeline, "--quiet", *sets(options.set), "--set", "model.kind=gcn"], check=True, stdout=subprocess.DEVNULL)
        for name in options.cases:
            of = lambda *keys: lambda case: run(binary, pipeline, [*options.set, *case, threads, *keys], scratch / "run")
            devices, full = {"cuda": of(cuda)}, CASES[name][0] == FULL[0]
            if not full:
                devices["cuda, which samples"] = of(cuda, "train.schedule.device_sampling=true")
            if full:
                devices["cuda, rows added on the CPU"] = of(cuda, "train.schedule.intervals=4")
            if not options.no_cpu:
                devices[f"cpu, {options.threads} threads"] = of()
            if options.pyg:
                formats = ["batches"] if not full else ["coo"] if "model.kind=gat" in CASES[name] else ["csr", "coo"]
                devices |= {f"PyTorch Geometric, {format}": lambda case, format=format: pyg(scratch / "graph", case, format) for format in formats}
            runs = {device: [] for device in devices}
            for number in range(options.rounds + 1):
                for device in list(devices)[:: 1 if number % 2 else -1]:
                    runs[device].append(devices[device](CASES[name]))
            found = [row(name, device, of_device) for device, of_device in runs.items() if None not in of_device]
            for each in found:
                each["ratio_to_cuda"] = round(each["epoch_seconds"] / found[0]["epoch_seconds"], 2)
                print(f"{name}, {each['device']}: {each['epoch_seconds']:.5f} s, losses {each['losses']}, {each['stages']}", file=sys.stderr, flush=True)
            rows += found
            # After each case: the rest takes minutes.
            path = write({**about("gpu"), "gpu": gpu, "rounds": options.rounds, "results": rows}, "gpu", options.out)
    print(path)


if __name__ == "__main__":
    main()
