"""Turns the settings of a case into pipeline.toml, or into `--set` arguments.

Only `rename` depends on the names of configuration keys. If keys are renamed, change it instead of the cases.
"""
import json
import pathlib
from typing import Any

Settings = dict[str, Any]


# Flat keys of cases that are options of a schedule, by kind.
SCHEDULES = {
    "mini-batch": {"cache", "cache_policy", "seed_split"},
    "partition-parallel": {"average_every", "average_momentum"},
    "full-graph": {"mode", "staleness", "intervals", "row_dtype", "edges_per_epoch"},
    "tensor-parallel": {"mode", "chunk_memory", "intervals", "row_dtype", "edges_per_epoch"},
}
# Those that are options of a sampler, and what they are called there.
SAMPLERS = {
    "replace": "replace",
    "temporal": "take",
    "clusters": "clusters",
    "clusters_per_batch": "clusters_per_batch",
    "walk_length": "walk_length",
    "walk_p": "p",
    "walk_q": "q",
    "sample_coverage": "coverage",
}


def rename(settings: Settings) -> Settings:
    """Returns the settings under the keys that pipeline.toml has today. Cases have options of schedules and samplers as flat keys."""
    all_options = set().union(*SCHEDULES.values())
    plain: Settings = {}
    schedule: Settings = {}
    sampler: Settings = {}
    for key, item in settings.items():
        name = key.removeprefix("train.")
        if key == f"train.{name}" and name in all_options:
            schedule[name] = item
        elif key == f"train.{name}" and name in SAMPLERS:
            sampler[SAMPLERS[name]] = item
        elif key == "train.fused_sampling":
            plain["debug.fused_sampling"] = item
        else:
            plain[key.replace("train.tensor.", "train.tensor_workers.")] = item
    if schedule:
        plain["train.schedule"] = with_options(plain.get("train.schedule", "mini-batch"), schedule)
    if sampler:
        plain["train.sampler"] = {"kind": plain.get("train.sampler", "uniform")} | sampler
    return plain


def with_options(kind: str, options: Settings) -> Settings:
    """The table of a schedule. The candidates of `auto` are those that have all options."""
    if kind == "auto":
        able = (other for other in ("mini-batch", "full-graph", "tensor-parallel") if options.keys() <= SCHEDULES[other])
        return {"kind": kind, "candidates": [with_options(other, options) for other in able]}
    table: Settings = {"kind": kind} | options
    if kind == "tensor-parallel" and table.get("mode") in ("pipe", "sync"):
        table["pipelined"] = table.pop("mode") == "pipe"
    return table


def value(item: Any) -> str:
    """Formats a value as TOML."""
    if isinstance(item, dict):
        return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in item.items()) + " }"
    if isinstance(item, list):
        return "[" + ", ".join(map(value, item)) + "]"
    return json.dumps(item)


def to_toml(settings: Settings, inputs: pathlib.Path) -> str:
    """Formats settings as a pipeline file of dotted keys. `INPUTS` is replaced by the folder of inputs."""
    text = "".join(f"{key} = {value(item)}\n" for key, item in rename(settings).items())
    return text.replace("INPUTS", str(inputs))


def to_sets(settings: Settings) -> list[str]:
    """Returns the settings as command-line arguments."""
    return [word for key, item in rename(settings).items() for word in ("--set", f"{key}={value(item)}")]
