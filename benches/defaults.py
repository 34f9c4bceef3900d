#!/usr/bin/env python3
"""Compares the defaults with tuned settings, task by task and model by model, and with a model that learns nothing.

    GNNFLOW_TEST_DATA=<folder of graphs> benches/defaults.py [--only NAME…] [--seeds 1] [--out FILE]

A tuned pipeline is one of docs/book/src/accuracy. Its default pipeline keeps the graph, the partition, the task, the kind of the model, and
what the graph needs: learned rows without features, and the decoder of typed edges. All other keys of [model] and [train] have their
defaults. The untrained model is the default one after an epoch with a learning rate of nearly 0.
The result is written to benches/runs/<date>-defaults.json.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile, tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from program import about, build, write

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = ROOT / "docs/book/src/accuracy"
METRICS = {"link-prediction": "mrr", "node-classification": "accuracy", "edge-classification": "accuracy"}
#: Pipelines, and kinds of models to try besides their own.
CASES = {
    "cora-gcn": ["sage", "gat", "gatv2", "gin", "sgc", "appnp", "mlp"],
    "pubmed-gcn": ["sage", "gat"],
    "facebook-large": ["gcn"],
    "tolokers": ["gcn", "gat"],
    "debian-bookworm": [],
    "twitch-de": [],
    "hetero-acm": [],
    "hetero-dblp": [],
    "lastfm-asia": [],
    "blogcatalog": [],
    "lastfm-asia-links": ["sage", "gcn"],
    "kg-fb15k-237": [],
    "cora-links": ["gcn"],
}


def tuned(name: str, data: str) -> dict:
    """The pipeline of the file, with the paths of the graphs."""
    if name == "cora-links":
        # No file of the accuracy table: the features of Cora for link prediction.
        pipeline = tuned("cora-gcn", data) | {"name": name}
        pipeline["model"] = {"kind": "sage", "hidden": 64, "dropout": 0.0}
        link = {"negative_sampler": "joint", "num_negative_edges": 256, "loss": "softmax-cross-entropy"}
        pipeline["train"] = {"task": "link-prediction", "epochs": 40, "batch": 512, "fanouts": [10, 10], "link": link}
        pipeline["train"]["optimizer"] = {"kind": "adam", "lr": 0.003}
        return pipeline
    pipeline = tomllib.loads((FILES / f"{name}.toml").read_text())
    for key in ("nodes", "edges"):
        pipeline["graph"][key] = str(pathlib.Path(data) / pathlib.Path(pipeline["graph"][key]).relative_to("data"))
    return pipeline


def default(pipeline: dict, kind: str) -> dict:
    """The same task without any tuning."""
    model, train = pipeline["model"], pipeline["train"]
    own = {"kind": kind} | ({"embedding": {}} if "embedding" in model else {})
    task = {key: train[key] for key in ("task",) if key in train}
    link = {key: value for key, value in train.get("link", {}).items() if key in ("decoder", "target_etype", "top_k")}
    link |= {"num_negative_edges_eval": "all"} if train.get("task") == "link-prediction" and "top_k" not in link else {}
    return pipeline | {"model": own, "train": task | ({"link": link} if link else {}), "infer": {"predictions": False}}


def run(program: pathlib.Path, pipeline: dict, folder: str, seed: int) -> tuple[float, float]:
    """The test metric, and the seconds of training."""
    toml = pathlib.Path(folder) / "p.toml"
    pipeline = pipeline | {"train": pipeline["train"] | {"seed": seed}}
    pipeline["partition"] = pipeline.get("partition", {}) | {"out": folder + "/dataset-" + pipeline["name"]}
    toml.write_text("\n".join(f"{key} = {inline(value)}" for key, value in pipeline.items()))
    command = [program, "run", toml, "--run-dir", folder + "/run", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{pipeline['name']}: {done.stderr}\n{toml.read_text()}")
    summary = json.loads(done.stdout)
    metric = METRICS[pipeline["train"].get("task", "node-classification")]
    if metric == "accuracy" and summary["test"].get("accuracy") is not None and pipeline["name"] == "blogcatalog":
        metric = "micro_f1"
    return summary["test"][metric], summary["seconds"]["train"]


def inline(value: object) -> str:
    """A value of TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    return json.dumps(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--skip-tuned", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    data = os.environ.get("GNNFLOW_TEST_DATA") or str(ROOT.parent / "shared/data")
    program, rows = build(), []
    with tempfile.TemporaryDirectory() as folder:
        for name, kinds in CASES.items():
            if name not in args.only:
                continue
            pipeline = tuned(name, data)
            for kind in [pipeline["model"]["kind"], *kinds]:
                plain = default(pipeline, kind)
                nothing = {"optimizer": {"kind": "adam", "lr": 1e-12}}
                still = plain | {"train": plain["train"] | {"epochs": 1} | nothing}
                if "embedding" in plain["model"]:
                    still["model"] = plain["model"] | {"embedding": nothing}
                variants = {"untrained": still, "default": plain}
                if kind == pipeline["model"]["kind"] and not args.skip_tuned:
                    variants["tuned"] = pipeline
                row = {"pipeline": name, "model": kind}
                for what, variant in variants.items():
                    found = [run(program, variant, folder, seed) for seed in range(1, args.seeds + 1)]
                    row[what] = statistics.mean(score for score, _ in found)
                    row[what + "_seconds"] = statistics.median(seconds for _, seconds in found)
                print(json.dumps(row), flush=True)
                rows.append(row)
    print(write(about("defaults") | {"seeds": args.seeds, "rows": rows}, "defaults", args.out))


if __name__ == "__main__":
    main()
