"""The explicit list of cases.

Keys are the dotted keys of pipeline.toml. `config.py` writes them to a file; rename keys there.
"""
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]
ALL = (1, 2, 4)
ONE_AND_TWO = (1, 2)
ONE = (1,)


@dataclass(frozen=True)
class Run:
    """A training run for each number of processes. If `resume` is set, it resumes from its checkpoint up to that epoch."""

    name: str
    settings: Settings
    processes: tuple[int, ...] = ALL
    quick: bool = False
    resume: int = 0


@dataclass(frozen=True)
class File:
    """A run of a file in `pipelines/` with changed `settings`."""

    name: str
    settings: Settings
    processes: tuple[int, ...]
    quick: bool = True


@dataclass(frozen=True)
class Prepare:
    """A dataset, prepared with 1 and with 2 processes."""

    name: str
    settings: Settings
    processes: tuple[int, ...] = ONE_AND_TWO
    quick: bool = False


@dataclass(frozen=True)
class Commands:
    """Commands in a new folder. `INPUTS` is replaced by the folder of inputs. All output files are hashed."""

    name: str
    commands: list[str]
    pipeline: Settings = field(default_factory=dict)
    quick: bool = True


@dataclass(frozen=True)
class Refused:
    """A run that must fail. The result is its exit code."""

    name: str
    settings: Settings
    processes: int = 1
    quick: bool = True


Case = Run | File | Prepare | Commands | Refused


# Graphs


def planted(**changes: Any) -> Settings:
    """Returns a generated graph with features, classes and splits."""
    keys = {"kind": "planted", "nodes": 1000, "edges": 6000, "features": 16, "classes": 4, "split": [0.3, 0.3, 0.4]}
    return {f"graph.generate.{key}": value for key, value in (keys | changes).items()} | cut("random")


def bare() -> Settings:
    """Returns a generated graph without features, for learned rows."""
    return planted(features=0, homophily=0.9)


def cut(method: str, parts: int = 4) -> Settings:
    return {"partition.method": method, "partition.parts": parts}


def typed(ids: str = "int", edges: str = "edges", **columns: Any) -> Settings:
    """Returns the dump with all kinds of columns. `columns` are read in addition to ids, features and splits."""
    ends = {"id": "node_id", "src": "src", "dst": "dst"}
    if ids == "string":
        ends = {"id": "name", "src": "src_name", "dst": "dst_name"}
    features = {"features": [f"f{i}" for i in range(8)], "split": "split"}
    columns = {"label": "label"} | ends | features | columns
    columns = {key: value for key, value in columns.items() if value is not None}
    files = {"graph.nodes": "INPUTS/typed/nodes.parquet", "graph.edges": f"INPUTS/typed/{edges}.parquet"}
    keep = {"graph.duplicates": "keep"}
    return files | keep | {f"graph.columns.{key}": value for key, value in columns.items()} | cut("random")


def many_labels() -> Settings:
    """Returns a graph from a SciPy matrix, with four labels per node."""
    files = {"graph.nodes": "INPUTS/imported/nodes.parquet", "graph.edges": "INPUTS/imported/edges.parquet"}
    columns = {"features": "features", "label": "label", "split": "split", "weight": "weight"}
    return files | {f"graph.columns.{key}": value for key, value in columns.items()} | cut("random")


TYPES = {"edge_type": "kind", "node_type": "kind"}
EDGE_FEATURES = {"edge_features": ["e0", "e1"]}
TIMES = {"time": "at", "node_time": "seen"}


# Schedules


def train(epochs: int = 2, **keys: Any) -> Settings:
    common = {"epochs": epochs, "seed": 3, "hash_blocks": True} | keys
    outputs = {"infer.predictions": True, "infer.embeddings": True}
    return {f"train.{key}": value for key, value in common.items()} | outputs


def mini_batch(**keys: Any) -> Settings:
    return train(**({"schedule": "mini-batch", "batch": 40} | keys))


def partition_parallel(**keys: Any) -> Settings:
    return train(**({"schedule": "partition-parallel", "batch": 40} | keys))


def full_graph(**keys: Any) -> Settings:
    return train(**({"schedule": "full-graph", "intervals": 3} | keys))


def tensor_parallel(**keys: Any) -> Settings:
    return train(**({"schedule": "tensor-parallel", "chunk_memory": "100KiB"} | keys))


SCHEDULES = {
    "mini-batch": mini_batch,
    "partition-parallel": partition_parallel,
    "full-graph": full_graph,
    "tensor-parallel": tensor_parallel,
}
BATCHES = ("mini-batch", "partition-parallel")
FULL = ("full-graph", "tensor-parallel")


def fanouts(schedule: str, *numbers: Any) -> Settings:
    """Returns the neighbors per hop if the schedule samples."""
    return {"train.fanouts": list(numbers)} if schedule in BATCHES else {}


# Models


def model(kind: str, **keys: Any) -> Settings:
    common = {"kind": kind, "hidden": 16, "dropout": 0.3} | keys
    common = {"input_dropout": common["dropout"]} | common
    if kind == "sgc":
        del common["hidden"]
    if kind == "sgc" or (kind == "appnp" and common.get("mlp_layers") == 1):
        del common["dropout"]
    return {f"model.{key}": value for key, value in common.items()}


MODELS = {
    "sage": model("sage"),
    "sage-gcn": model("sage", aggregator="gcn", activation="tanh"),
    "sage-pool": model("sage", aggregator="pool"),
    "sage-batch-norm": model("sage", norm="batch", activation="gelu"),
    "sage-jump-max": model("sage", layers=3, residual=True, jumping_knowledge="max"),
    "gcn": model("gcn"),
    "gcn-residual": model("gcn", layers=3, residual=True, norm="layer", activation="leaky_relu"),
    "gcn-jump-mean": model("gcn", jumping_knowledge="mean"),
    "gat": model("gat", heads=4),
    "gat-residual": model("gat", hidden=18, heads=3, attention_dropout=0.4, residual=True, norm="batch"),
    "gat-jump-cat": model("gat", heads=2, jumping_knowledge="cat"),
    "gat-decoupled": model("gat", decoupled=True, output_heads=4, attention_dropout=0.4),
    "gatv2": model("gatv2", heads=4),
    "gatv2-residual": model("gatv2", heads=2, output_heads=3, residual=True),
    "gin": model("gin", train_eps=True, norm="layer"),
    "gin-eps": model("gin", eps=0.2, mlp_layers=1, norm="batch", activation="elu"),
    "sgc": model("sgc"),
    "appnp": model("appnp", layers=3, teleport=0.2),
    "appnp-linear": {key: value for key, value in model("appnp", mlp_layers=1).items() if key != "model.hidden"},
    "mlp": model("mlp", activation="none"),
    "mlp-residual": model("mlp", layers=3, residual=True, norm="batch", jumping_knowledge="cat"),
}
TYPED_MODELS = {
    "rgcn": (model("rgcn"), TYPES),
    "rgcn-bases": (model("rgcn", num_bases=2, norm="layer", residual=True), TYPES),
    "gine": (model("gine", train_eps=True, norm="layer"), EDGE_FEATURES),
    "gine-eps": (model("gine", eps=0.1, mlp_layers=3, jumping_knowledge="cat"), EDGE_FEATURES),
    "gatv2-edges": (model("gatv2", heads=2, edge_features=True), EDGE_FEATURES),
}
READS_EDGE_FEATURES = ("gine", "gine-eps", "gatv2-edges")


def hops(settings: Settings) -> int:
    return int(settings.get("model.layers", 2))


def every_model() -> Iterator[Case]:
    """Returns each schedule with each model."""
    for schedule, make in SCHEDULES.items():
        for name, network in MODELS.items():
            few = fanouts(schedule, *[5, 4, 3][: hops(network)])
            quick = name in ("sage", "gcn", "gat", "gin")
            undirected = {"graph.undirected": name != "gcn-residual"}
            yield Run(f"{schedule}/{name}", planted() | undirected | network | make() | few, quick=quick)
        for name, (network, columns) in TYPED_MODELS.items():
            if schedule in FULL and name in READS_EDGE_FEATURES:
                continue
            few = fanouts(schedule, 5, 4)
            quick = name == "rgcn"
            yield Run(f"{schedule}/{name}", typed(**columns) | network | make() | few, quick=quick)


# Samplers


SAMPLERS = {
    "uniform": {"train.fanouts": [4, 3]},
    "uniform-all": {"train.fanouts": [-1, -1]},
    "uniform-replace": {"train.fanouts": [4, 3], "train.replace": True},
    "by-type": {"train.fanouts": [{"cites": 2, "writes": -1}, {"1": 3}]},
    "weighted": {"train.sampler": "weighted", "train.fanouts": [4, 3]},
    "weighted-replace": {"train.sampler": "weighted", "train.fanouts": [4, 3], "train.replace": True},
    "weighted-by-type": {"train.sampler": "weighted", "train.fanouts": [{"cites": 2, "writes": 3}, 3]},
    "labor": {"train.sampler": "labor", "train.fanouts": [4, 3]},
    "temporal": {"train.sampler": "temporal", "train.fanouts": [4, 3]},
    "temporal-last": {"train.sampler": "temporal", "train.temporal": "last", "train.fanouts": [4, {"cites": 2}]},
    "ladies": {"train.sampler": "ladies", "train.fanouts": [60, 90]},
    "fastgcn": {"train.sampler": "fastgcn", "train.fanouts": [60, 90]},
}
SUBGRAPHS = {
    "cluster": {"train.sampler": "cluster", "train.clusters": 20, "train.clusters_per_batch": 3},
    "saint-node": {"train.sampler": "saint-node", "train.sample_coverage": 10},
    "saint-edge": {"train.sampler": "saint-edge", "train.sample_coverage": 10},
    "saint-walk": {"train.sampler": "saint-walk", "train.sample_coverage": 10, "train.walk_length": 3},
    "saint-node2vec": {"train.sampler": "saint-walk", "train.sample_coverage": 5, "train.walk_p": 0.5, "train.walk_q": 2.0},
}


def without_batch(settings: Settings) -> Settings:
    """Returns settings of a sampler. `cluster` has a number of clusters instead of seeds."""
    return {key: value for key, value in settings.items() if key != "train.batch"}


def every_sampler() -> Iterator[Case]:
    """Returns mini-batch training with each sampler, and partition-parallel training with each sampler of hops."""
    graph = typed(**TYPES, **TIMES, weight="weight") | model("sage")
    for schedule in BATCHES:
        for name, sampler in SAMPLERS.items():
            quick = schedule == "mini-batch" and name in ("uniform", "weighted", "labor", "temporal", "ladies", "fastgcn")
            yield Run(f"{schedule}/sampler-{name}", graph | SCHEDULES[schedule]() | sampler, quick=quick)
    for name, sampler in SUBGRAPHS.items():
        settings = graph | mini_batch() | sampler
        if name == "cluster":
            settings = without_batch(settings)
        yield Run(f"mini-batch/sampler-{name}", settings, quick=name in ("cluster", "saint-walk"))
    by_cluster = without_batch(typed(**TYPES) | mini_batch() | SUBGRAPHS["cluster"])
    yield Run("mini-batch/sampler-cluster-rgcn", by_cluster | model("rgcn"))
    yield Run("mini-batch/sampler-cluster-gcn", by_cluster | model("gcn"))
    yield Run("mini-batch/sampler-weighted-rgcn", graph | model("rgcn") | mini_batch() | SAMPLERS["weighted"])
    yield Run("mini-batch/sampler-labor-gat", planted() | model("gat", heads=2) | mini_batch() | SAMPLERS["labor"])
    edges = typed(**EDGE_FEATURES, weight="weight") | model("gine", norm="layer") | mini_batch()
    yield Run("mini-batch/sampler-weighted-gine", edges | SAMPLERS["weighted"])
    yield Run("mini-batch/sampler-labor-gine", edges | SAMPLERS["labor"])
    yield Run("mini-batch/sampler-cluster-gine", without_batch(edges | SUBGRAPHS["cluster"]))


# Tasks


def link(**keys: Any) -> Settings:
    if not keys.keys() & {"num_negative_edges_eval", "eval_negative_dstnode", "top_k"}:
        keys["num_negative_edges_eval"] = "all"
    keys = {"loss": "binary-cross-entropy"} | keys
    return {"train.task": "link-prediction"} | {f"train.link.{key}": value for key, value in keys.items()}


def edge(**keys: Any) -> Settings:
    return {"train.task": "edge-classification"} | {f"train.edge.{key}": value for key, value in keys.items()}


LINKS = {
    "dot": link(num_negative_edges=8),
    "distmult": link(decoder="distmult", loss="softmax-cross-entropy", negative_sampler="joint", num_negative_edges=32),
    "in-batch": link(loss="softmax-cross-entropy", negative_sampler="in-batch", num_negative_edges_eval=50)
    | {"train.metric": "hits-at-3"},
    "degree": link(negative_sampler="degree", num_negative_edges=4, split_fractions=[0.6, 0.2, 0.2])
    | {"train.metric": "hits-at-10"},
    "candidates": link(num_negative_edges=4, eval_negative_dstnode="INPUTS/typed/candidates.parquet")
    | {"train.metric": "hits-at-1"},
    "target-type": link(target_etype=["cites"], num_negative_edges=4),
}
EDGE_BATCH = {"train.batch": 300}


def every_task() -> Iterator[Case]:
    """Returns each schedule with each task. All other cases use node classification."""
    regression = {"train.task": "node-regression"}
    for schedule, make in SCHEDULES.items():
        few = fanouts(schedule, 5, 4)
        yield Run(f"{schedule}/many-labels", many_labels() | model("sage") | make() | few, quick=True)
        imbalanced = {"train.classes.weights": "balanced", "train.classes.focal_gamma": 2.0}
        yield Run(f"{schedule}/many-labels-weighted", many_labels() | model("sage") | make() | few | imbalanced, ONE_AND_TWO)
        # Tensor-parallel training is limited to as many processes as the narrowest layer has columns.
        columns = schedule == "tensor-parallel"
        two = typed(label="binary") | model("gcn") | make(metric="roc-auc") | few
        yield Run(f"{schedule}/two-classes", two, ONE_AND_TWO if columns else ALL)
        weighted = {"weights": "balanced", "focal_gamma": 2.0, "min_precision": 0.5, "top_k": 20}
        weighted = two | {f"train.classes.{key}": value for key, value in weighted.items()}
        yield Run(f"{schedule}/two-classes-weighted", weighted, ONE_AND_TWO)
        values = typed(label="value") | model("sage") | make() | few | regression
        yield Run(f"{schedule}/regression", values, ONE if columns else ALL, quick=True)
        if schedule == "partition-parallel":
            continue
        graph = typed(**TYPES, edge_split="split")
        for name, task in LINKS.items():
            source = typed(**TYPES) if name == "degree" else graph
            settings = source | model("rgcn") | make() | EDGE_BATCH | few | task
            yield Run(f"{schedule}/link-{name}", settings, quick=name in ("dot", "distmult"))
        plain = planted() | {"graph.undirected": True} | model("sage", norm="batch")
        yield Run(f"{schedule}/link-planted", plain | make() | EDGE_BATCH | few | link(num_negative_edges=4))
        purchases = typed("string", "purchases", node_type="kind", edge_split="split") | {"graph.reverse_edges": True}
        lists = link(loss="softmax-cross-entropy", negative_sampler="joint", top_k=10)
        metric = "ndcg" if schedule == "full-graph" else "recall"
        ranked = purchases | model("appnp", mlp_layers=1) | make(metric=metric) | EDGE_BATCH | few | lists
        yield Run(f"{schedule}/recommendation", ranked, quick=True)
        rated = typed(**TYPES, edge_label="rating", edge_split="split") | make() | EDGE_BATCH | few
        yield Run(f"{schedule}/edges", rated | model("sage") | edge(), quick=True)
        drawn = typed(edge_label="rating", edge_type="kind") | {"graph.reverse_edges": True}
        linear = edge(num_decoder_layers=1, target_etype=["cites", "writes"], split_fractions=[0.5, 0.2, 0.3])
        yield Run(f"{schedule}/edges-linear", drawn | model("gat", heads=2) | make() | EDGE_BATCH | few | linear)
    for schedule in FULL:
        some = typed(**TYPES, edge_split="split", edge_label="rating") | SCHEDULES[schedule](edges_per_epoch=1000)
        yield Run(f"{schedule}/some-links", some | model("sage") | EDGE_BATCH | LINKS["dot"])
        yield Run(f"{schedule}/some-edges", some | model("gcn") | EDGE_BATCH | edge())
    graph = typed(**TYPES, edge_split="split", edge_label="rating", weight="weight") | model("sage") | mini_batch()
    for name in ("uniform-replace", "by-type", "weighted", "labor", "ladies", "fastgcn"):
        yield Run(f"mini-batch/link-{name}", graph | EDGE_BATCH | SAMPLERS[name] | LINKS["dot"])
        yield Run(f"mini-batch/edges-{name}", graph | EDGE_BATCH | SAMPLERS[name] | edge())
    few = fanouts("mini-batch", 5, 4)
    seen = {"train.link.exclude_training_targets": False}
    yield Run("mini-batch/link-seen", graph | EDGE_BATCH | few | LINKS["dot"] | seen)
    seen = {"train.edge.exclude_training_targets": False, "graph.columns.edge_label": "kind"}
    yield Run("mini-batch/edges-seen", graph | EDGE_BATCH | few | edge() | seen)
    for name in ("cluster", "saint-node", "saint-edge", "saint-walk"):
        labels = many_labels() | model("sage") | mini_batch() | SUBGRAPHS[name]
        yield Run(f"mini-batch/many-labels-{name}", without_batch(labels) if name == "cluster" else labels)
    values = typed(**TIMES, label="value", weight="weight") | model("sage") | mini_batch() | regression
    for name, metric in (("weighted", "mae"), ("temporal", "r2"), ("fastgcn", "loss")):
        few = {"train.fanouts": [40, 60], "train.metric": metric}
        yield Run(f"mini-batch/regression-{name}", values | SAMPLERS[name] | few)


# Learned rows of nodes


def rows(**keys: Any) -> Settings:
    return {f"model.embedding.{key}": value for key, value in ({"dim": 12} | keys).items()}


def learned_rows() -> Iterator[Case]:
    clipped = {"train.clip_norm": 0.1, "train.lr_schedule.kind": "linear"}
    adagrad = rows(init="normal", init_scale=0.2, **{"optimizer.kind": "adagrad", "optimizer.lr": 0.1})
    sgd = rows(init_scale=0.5, **{"optimizer.kind": "sgd", "optimizer.lr": 1.0})
    betas = rows(mode="sync", **{"optimizer.betas": [0.8, 0.99], "optimizer.eps": 1e-6})
    for schedule in ("mini-batch", *FULL):
        make, few = SCHEDULES[schedule], fanouts(schedule, 5, 3)
        yield Run(f"{schedule}/rows-adam", bare() | model("sage") | make() | few | rows(), quick=True)
        yield Run(f"{schedule}/rows-adagrad", bare() | model("gcn") | make() | few | clipped | adagrad)
        yield Run(f"{schedule}/rows-sgd", bare() | model("gat", heads=2) | make() | few | sgd)
        no_features = typed(**TYPES, edge_split="split", features=None)
        linked = no_features | model("rgcn") | make() | EDGE_BATCH | few | LINKS["distmult"] | betas
        yield Run(f"{schedule}/rows-link", linked)
    rated = typed(edge_label="rating", features=None) | model("sage") | mini_batch() | EDGE_BATCH | edge()
    yield Run("mini-batch/rows-edges", rated | fanouts("mini-batch", 5, 4) | rows())
    zeros = bare() | model("gin", norm="batch") | mini_batch() | fanouts("mini-batch", 5, 3) | rows(init="zeros")
    yield Run("mini-batch/rows-zeros", zeros)
    by_cluster = without_batch(bare() | model("sage") | mini_batch() | SUBGRAPHS["cluster"] | rows())
    yield Run("mini-batch/rows-cluster", by_cluster)


# Options of schedules


def options() -> Iterator[Case]:
    few = fanouts("mini-batch", 5, 4)
    batches = planted() | model("sage") | mini_batch() | few
    for policy in ("degree", "frequency", "dynamic"):
        cache = {"train.cache": "8KiB", "train.cache_policy": policy}
        yield Run(f"mini-batch/cache-{policy}", batches | cache, quick=policy == "dynamic")
    yield Run("mini-batch/replicated", batches | {"partition.topology": "replicated"}, quick=True)
    labor = batches | SAMPLERS["labor"] | {"partition.topology": "replicated", "train.cache": "8KiB"}
    yield Run("mini-batch/replicated-labor", labor)
    edges = typed(**EDGE_FEATURES) | model("gatv2", heads=2, edge_features=True) | mini_batch() | few
    yield Run("mini-batch/replicated-edge-features", edges | {"partition.topology": "replicated"})
    uneven = batches | cut("greedy") | {"train.batch": 10}
    for split in ("even", "partition"):
        yield Run(f"mini-batch/seeds-{split}", uneven | {"train.seed_split": split})
    yield Run("mini-batch/seeds-unset", uneven)
    halo = {"partition.halo": "features", "partition.method": "multilevel"}
    yield Run("mini-batch/halo", batches | halo)
    yield Run("mini-batch/halo-gcn", planted() | model("gcn") | mini_batch() | few | halo)
    yield Run("mini-batch/unfused", batches | {"train.fused_sampling": False})
    yield Run("mini-batch/window", batches | {"train.window": 1, "train.read_ahead": True})
    waits = {"cluster.start_timeout": "1min", "cluster.heartbeat_timeout": "20s", "cluster.stall_timeout": "3min"}
    yield Run("mini-batch/timeouts", batches | waits | {"cluster.restarts": 1, "name": "with-a-name"}, processes=ONE_AND_TWO)
    yield Run("mini-batch/one-layer", batches | {"model.layers": 1, "train.fanouts": [5]})
    yield Run("mini-batch/scores", batches | {"infer.scores": True, "infer.batch": 100, "infer.embeddings": False})
    yield Run("mini-batch/no-outputs", batches | {"infer.predictions": False, "infer.embeddings": False})
    for dtype in ("f16", "bf16"):
        yield Run(f"mini-batch/features-{dtype}", batches | {"graph.feature_dtype": dtype})
    mixed = {"graph.feature_dtype": ["f32"] * 4 + ["bf16"] * 4, "graph.normalize_features": "standard"}
    yield Run("mini-batch/features-mixed", typed("string") | model("sage") | mini_batch() | few | mixed)
    sgd = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
    adamw = {"kind": "adamw", "lr": 0.005, "weight_decay": 0.1, "betas": [0.8, 0.99], "eps": 1e-6}
    for optimizer in (sgd, adamw):
        keys = {f"train.optimizer.{key}": value for key, value in optimizer.items()}
        yield Run(f"mini-batch/{optimizer['kind']}", batches | keys | {"train.clip_norm": 0.5})
    for kind, more in {
        "step": {"every": 1, "gamma": 0.5},
        "exponential": {"gamma": 0.8},
        "cosine": {"warmup": 1, "end": 0.1},
        "linear": {"warmup": 1, "end": 0.2},
    }.items():
        keys = {f"train.lr_schedule.{key}": value for key, value in ({"kind": kind} | more).items()}
        yield Run(f"mini-batch/lr-{kind}", batches | keys | {"train.epochs": 3}, processes=ONE_AND_TWO)
    for metric in ("loss", "micro-f1", "macro-f1"):
        stop = {"train.metric": metric, "train.early_stop": 1, "train.epochs": 4}
        yield Run(f"mini-batch/metric-{metric}", batches | stop, processes=ONE_AND_TWO)
    rare = {"train.evaluate_every": 2, "train.checkpoint_every": 1, "train.epochs": 3}
    yield Run("mini-batch/evaluate-every", batches | rare)
    yield Run("mini-batch/one-partition", batches | {"partition.parts": 1}, processes=ONE)

    alone = planted() | cut("multilevel") | model("sage", norm="batch") | partition_parallel(epochs=4) | few
    yield Run("partition-parallel/average-every", alone | {"train.average_every": 2}, quick=True)
    yield Run("partition-parallel/average-momentum", alone | {"train.average_momentum": 0.5})
    yield Run("partition-parallel/one-partition", alone | {"partition.parts": 1}, processes=ONE)
    many = alone | {"partition.parts": 9, "partition.halo": "features", "train.average_every": 3, "train.epochs": 3}
    yield Run("partition-parallel/nine-partitions", many)
    yield Run("partition-parallel/sgd", alone | {"train.optimizer.kind": "sgd", "train.optimizer.momentum": 0.9})

    undirected = planted() | {"graph.undirected": True}
    for schedule in FULL:
        make = SCHEDULES[schedule]
        for name in ("gcn", "sage-pool", "gat", "gatv2", "appnp"):
            yield Run(f"{schedule}/sync-{name}", undirected | MODELS[name] | make(mode="sync"), processes=ONE_AND_TWO)
        for name in ("gcn", "gcn-residual", "sage", "sage-gcn", "gin", "sgc", "appnp"):
            yield Run(f"{schedule}/bf16-{name}", undirected | MODELS[name] | make(row_dtype="bf16"), quick=name == "gcn")
        rounded = typed(**TYPES) | model("rgcn") | make(row_dtype="bf16")
        yield Run(f"{schedule}/bf16-rgcn", rounded)
        linked = undirected | model("sage") | make(row_dtype="bf16") | EDGE_BATCH | LINKS["dot"]
        yield Run(f"{schedule}/bf16-link", linked)
        most = planted(split=[0.7, 0.1, 0.2]) | {"graph.undirected": True}
        yield Run(f"{schedule}/most-nodes", most | model("gcn", dropout=0.0) | make(intervals=1))
        yield Run(f"{schedule}/most-nodes-gat", most | model("gat", heads=2) | make())
        yield Run(f"{schedule}/self-loops", planted() | {"graph.self_loops": "add"} | model("gin", norm="batch") | make())
        price = {"price.graph_worker_hour": 0.4, "price.tensor_call": 2e-7, "price.tensor_second": 3e-6}
        workers = {"train.tensor.workers": 2} | price
        yield Run(f"{schedule}/tensor-workers-gcn", undirected | model("gcn") | make() | workers, processes=ONE_AND_TWO)
        late = workers | {"train.tensor.autotune": False, "train.tensor.threads": 2, "train.tensor.when_gone": "fail"}
        late |= {"train.tensor.late": 8.0, "train.tensor.timeout": "1min", "train.tensor.relaunch": 1}
        yield Run(f"{schedule}/tensor-workers-gat", undirected | MODELS["gat"] | make() | late, processes=ONE_AND_TWO)
        large = planted(nodes=2000, edges=12000) | {"graph.undirected": True} | model("sage", hidden=256)
        memory, processes = ("66MiB", ALL) if schedule == "full-graph" else ("76MiB", ONE_AND_TWO)
        yield Run(f"{schedule}/rows-in-files", large | make(memory=memory, threads=1), processes)
    coupled = undirected | tensor_parallel() | model("gcn", decoupled=False)
    yield Run("tensor-parallel/gcn-coupled", coupled)
    yield Run("tensor-parallel/chunk-memory", undirected | tensor_parallel(chunk_memory="64MiB") | model("gat", heads=4))
    yield Run("full-graph/gcn-decoupled", undirected | full_graph() | model("gcn", decoupled=True))
    # With one process no row is stale, and the bits equal those of `pipe`.
    for name in ("gcn", "gat"):
        for staleness in (0, 1):
            stale = full_graph(mode="async", staleness=staleness)
            yield Run(f"full-graph/async-{staleness}-{name}", undirected | MODELS[name] | stale, processes=ONE)

    yield Run("auto/gcn", undirected | model("gcn") | train(schedule="auto"), quick=True)
    yield Run("auto/fanouts", undirected | model("sage") | train(schedule="auto", fanouts=[4, 3]))
    yield Run("auto/chunk-memory", undirected | model("gat", heads=2) | train(schedule="auto", chunk_memory="1MiB"))
    yield Run("auto/memory", undirected | model("gcn") | train(schedule="auto", memory="1GiB", threads=1))
    seen = {"train.link.exclude_training_targets": False}
    yield Run("auto/links", undirected | model("sage") | train(schedule="auto", batch=300) | LINKS["dot"] | seen)


def resumed() -> Iterator[Case]:
    """Returns runs that resume from their checkpoint with the same number of processes."""
    few = fanouts("mini-batch", 5, 4)
    sage = planted() | model("sage", norm="batch")
    yield Run("resume/mini-batch", sage | mini_batch() | few, resume=4, quick=True)
    yield Run("resume/saint-walk", sage | mini_batch() | SUBGRAPHS["saint-walk"], resume=4)
    momentum = {"train.average_momentum": 0.5}
    yield Run("resume/partition-parallel", sage | partition_parallel() | few | momentum, resume=4)
    yield Run("resume/full-graph", sage | full_graph(), resume=4)
    yield Run("resume/tensor-parallel", planted() | model("gcn") | tensor_parallel(), resume=4)
    yield Run("resume/rows", bare() | model("sage") | mini_batch() | few | rows(), resume=4)


# Datasets


def dump() -> Settings:
    return planted(nodes=3000, edges=40000, features=8, classes=5) | {"partition.parts": 5}


METHODS = ("random", "range", "multilevel", "metis", "spring", "dbh", "greedy", "hdrf", "2ps-l", "ldg", "fennel")


def datasets() -> Iterator[Case]:
    """Returns all partition methods and all options that clean a graph."""
    for method in METHODS:
        quick = method in ("random", "multilevel", "spring", "hdrf")
        yield Prepare(f"prepare/{method}", dump() | {"partition.method": method}, quick=quick)
    for method in ("spring", "dbh", "greedy", "hdrf", "2ps-l"):
        settings = dump() | {"partition.method": method, "partition.degrees": "online", "graph.undirected": True}
        if method != "spring":
            settings["partition.hold_balance"] = True
        if method in ("spring", "2ps-l"):
            settings["partition.volume"] = 0.5
        yield Prepare(f"prepare/{method}-online", settings)
    for method in ("random", "spring", "metis", "2ps-l", "ldg"):
        settings = {"partition.method": method, "partition.refine": 3, "graph.undirected": True, "partition.seed": 7}
        yield Prepare(f"prepare/{method}-refined", dump() | settings)
    for method in ("multilevel", "hdrf", "fennel"):
        small = {"partition.method": method, "partition.halo": "features"}
        if method != "fennel":
            small["partition.method_memory"] = "2MiB"
        yield Prepare(f"prepare/{method}-spilled", dump() | small, quick=method == "multilevel")
    shaped = planted(homophily=0.7, degree_exponent=2.2, signal=1.5, seed=4) | {"partition.halo": "ids"}
    yield Prepare("prepare/planted", shaped)
    balance = {f"partition.balance.{key}": 1.1 for key in ("nodes", "edges", "train", "val", "test")}
    yield Prepare("prepare/balance", dump() | {"partition.method": "multilevel"} | balance)
    yield Prepare("prepare/balance-types", typed(node_type="kind") | cut("multilevel") | {"partition.balance.types": 1.1})
    own = {"partition.file": "INPUTS/typed/nodes.parquet", "partition.file_columns.part": "part"}
    yield Prepare("prepare/file", typed() | cut("file") | own)
    own |= {"partition.file_columns.id": "name"}
    yield Prepare("prepare/file-string-ids", typed("string") | cut("file") | own)
    auto = {"partition.parts": "auto", "partition.workers": 3, "partition.worker_memory": "900kB"}
    yield Prepare("prepare/auto", dump() | auto | {"partition.reserve": "600kB"})
    everything = TYPES | TIMES | EDGE_FEATURES | {"weight": "weight", "edge_label": "rating", "edge_split": "split"}
    for ids in ("int", "string"):
        yield Prepare(f"prepare/all-columns-{ids}", typed(ids, **everything) | cut("multilevel"), quick=True)
        small = cut("multilevel") | {"partition.method_memory": "24KiB"}
        yield Prepare(f"prepare/all-columns-{ids}-spilled", typed(ids, **everything) | small)
        one_way = typed(ids, **everything) | cut("ldg")
        yield Prepare(f"prepare/reverse-edges-{ids}", one_way | {"graph.reverse_edges": True})
    yield Prepare("prepare/reverse-edges-untyped", typed() | {"graph.reverse_edges": True})
    two = ["INPUTS/typed/edges.parquet", "INPUTS/typed/purchases.parquet"]
    yield Prepare("prepare/two-files", typed() | {"graph.edges": two})
    for key, value in (
        ("duplicates", "drop"),
        ("self_loops", "drop"),
        ("self_loops", "add"),
        ("isolated", "drop"),
        ("k_core", 8),
        ("largest_component", True),
        ("normalize_features", "row"),
        ("normalize_features", "standard"),
        ("num_classes", 9),
        ("split_fractions", [0.5, 0.2, 0.2]),
    ):
        columns = {"split": None} if key == "split_fractions" else {}
        # Few edges, so that some nodes are isolated.
        few = {"edges": "unknown"} if key in ("isolated", "largest_component") else {}
        shown = "drawn" if columns else value
        policy = {"graph.seed": 5, "graph.unknown_nodes": "drop", f"graph.{key}": value}
        yield Prepare(f"prepare/{key}-{shown}", typed(**columns, **few) | policy)
    for policy in ("drop", "create"):
        unknown = typed(edges="unknown", label=None, split=None) | {"graph.unknown_nodes": policy}
        yield Prepare(f"prepare/unknown-{policy}", unknown)
    dense = {"graph.undirected": True, "graph.duplicates": "drop", "graph.self_loops": "add", "graph.isolated": "drop"}
    yield Prepare("prepare/cleaned", typed("string", **TYPES, weight="weight") | dense | {"graph.k_core": 3} | cut("spring"))
    rmat = {"kind": "rmat", "scale": 11, "edge_factor": 8, "features": 4, "classes": 3, "files": 3, "seed": 5}
    rmat |= {"a": 0.5, "b": 0.2, "c": 0.25}
    generated = {f"graph.generate.{key}": value for key, value in rmat.items()} | cut("multilevel", 3)
    yield Prepare("prepare/rmat", generated | {"graph.undirected": True, "graph.self_loops": "drop"}, quick=True)


def commands() -> Iterator[Case]:
    """Returns cases for the outputs of `generate`, `import`, `export` and `update`."""
    small = "--nodes 2000 --edges 9000 --features 8 --classes 5 --seed 3"
    shape = "--homophily 0.7 --signal 1.5 --degree-exponent 2.2"
    yield Commands("generate/planted", [f"generate planted {small} {shape} --out out"])
    yield Commands("generate/rmat", ["generate rmat --scale 11 --edge-factor 6 --features 4 --classes 3 --files 2 --out out"])
    matrix = "INPUTS/matrices"
    arrays = f"--features-from {matrix}/features.npy --labels-from {matrix}/labels.npy --split-from {matrix}/split.npy"
    texts = "INPUTS/texts"
    people = f"--nodes {texts}/people.csv --features age,height --label city"
    for name, arguments in {
        "npz": f"npz {matrix}/graph.npz {arrays}",
        "text": f"{texts}/friends.txt --undirected",
        "csv": f"{texts}/payments.csv --weight amount --time at {people} --file-rows 250",
        "metis": f"{texts}/mesh.graph",
        "ogb": f"ogb {texts}/ogbn_tiny",
    }.items():
        prepare = "prepare out/pipeline.toml --set partition.parts=2 --out dataset"
        yield Commands(f"import/{name}", [f"import {arguments} --out out", prepare, "export dataset --out back"])
    given = {"graph.dataset": "dataset"} | model("sage") | mini_batch(threads=1) | fanouts("mini-batch", 5, 4)
    train_on = ["prepare INPUTS/imported/pipeline.toml --out dataset", "run p.toml --run-dir run"]
    yield Commands("run/dataset", train_on, given)
    everything = TYPES | TIMES | EDGE_FEATURES | {"weight": "weight", "edge_label": "rating", "edge_split": "split"}
    undirected = {"graph.undirected": True}
    for ids in ("int", "string"):
        export = ["prepare p.toml --out dataset", "export dataset --out back --file-rows 700"]
        yield Commands(f"export/all-columns-{ids}", export, typed(ids, **everything) | cut("ldg") | undirected)
    change = "--edges INPUTS/changes/batch-1/edges.parquet --remove INPUTS/changes/batch-1/remove.parquet"
    nodes = "--nodes INPUTS/changes/batch-1/nodes.parquet"
    graph = typed() | cut("ldg") | {"graph.duplicates": "drop", "partition.halo": "features"}
    for name, arguments, more in (
        ("edges", change, {}),
        ("edges-undirected", change, undirected),
        ("nodes", f"{change} {nodes}", undirected),
        ("three-hops", f"{change} {nodes} --hops 3", {}),
        ("batches", "--batches INPUTS/changes", undirected),
    ):
        update = ["prepare p.toml --out dataset", f"update dataset {arguments} --missing ignore --out updated"]
        yield Commands(f"update/{name}", update, graph | more)


# Files in pipelines/


def pipeline_files() -> Iterator[Case]:
    def smaller(nodes: int, edges: int, epochs: int) -> Settings:
        graph = {"graph.generate.nodes": nodes, "graph.generate.edges": edges}
        return graph | {"train.epochs": epochs, "train.hash_blocks": True}

    yield File("planted-gat", smaller(1500, 9000, 3), ONE_AND_TWO)
    pipe = {"train.schedule": "full-graph", "train.mode": "pipe"}  # the bits of "async" differ between runs
    yield File("planted-gat-full-graph", smaller(1500, 9000, 3) | pipe, ONE_AND_TWO)
    yield File("planted-gcn-full-neighbours", smaller(1500, 6000, 5), ONE_AND_TWO)
    yield File("planted-gcn-tensor-parallel", smaller(1500, 9000, 5), ONE_AND_TWO)
    yield File("planted-link-prediction", smaller(800, 5000, 2), ONE_AND_TWO)
    yield File("planted-sage-3layer", smaller(2000, 16000, 1) | {"train.batch": 50}, ALL)
    yield File("prepare-only", {"graph.generate.scale": 11}, ONE_AND_TWO)
    yield File("quickstart", smaller(4000, 24000, 3), ALL)


# Refused


def refused() -> Iterator[Case]:
    few = fanouts("mini-batch", 5, 4)
    batches = planted() | model("sage") | mini_batch() | few
    full = planted() | model("gcn") | full_graph()
    columns = planted() | model("gcn") | tensor_parallel()
    alone = planted() | model("sage") | partition_parallel() | few
    yield Refused("unknown-key", batches | {"train.epoch": 2})
    yield Refused("unknown-word", batches | {"train.schedule": "mini-batches"})
    yield Refused("too-many-processes", batches, processes=5)
    yield Refused("fanouts-of-other-layers", batches | {"train.fanouts": [5]})
    yield Refused("mode-of-batches", batches | {"train.mode": "sync"})
    yield Refused("average-of-batches", batches | {"train.average_every": 2})
    yield Refused("ladies-with-gcn", batches | {"train.sampler": "ladies", "model.kind": "gcn"})
    yield Refused("replace-with-labor", batches | {"train.sampler": "labor", "train.replace": True})
    yield Refused("fanouts-of-subgraphs", batches | {"train.sampler": "saint-node"})
    yield Refused("weights-missing", batches | {"train.sampler": "weighted"})
    yield Refused("types-missing", batches | {"model.kind": "rgcn"})
    yield Refused("features-missing", bare() | model("sage") | mini_batch() | few)
    yield Refused("policy-without-cache", batches | {"train.cache_policy": "degree"})
    yield Refused("metric-of-other-task", batches | {"train.metric": "rmse"})
    yield Refused("cache-alone", alone | {"train.cache": "1MiB"})
    yield Refused("replicated-alone", alone | {"partition.topology": "replicated"})
    yield Refused("rows-alone", bare() | model("sage") | partition_parallel() | few | rows())
    yield Refused("fanouts-of-full-graph", full | {"train.fanouts": [5, 4]})
    yield Refused("staleness-of-pipe", full | {"train.staleness": 1})
    yield Refused("gine-of-full-graph", typed(**EDGE_FEATURES) | model("gine") | full_graph())
    yield Refused("async-columns", columns | {"train.mode": "async"})
    yield Refused("bf16-of-gat", columns | {"model.kind": "gat", "train.row_dtype": "bf16"})
    yield Refused("little-memory", full | {"train.memory": "1KiB"})
    for policy in ("duplicates", "self_loops"):
        yield Refused(f"{policy}-found", typed() | {f"graph.{policy}": "fail"})
    yield Refused("isolated-found", typed(edges="unknown") | {"graph.unknown_nodes": "drop", "graph.isolated": "fail"})
    yield Refused("unknown-nodes-found", typed(edges="unknown"))
    yield Refused("no-such-file", typed(edges="nothing") | model("sage") | mini_batch() | few)
    yield Refused("regression-of-classes", typed() | model("sage") | mini_batch() | few | {"train.task": "node-regression"})
    yield Refused("bounds", batches | {"model.dropout": 1.5})


def cases() -> list[Case]:
    training = (every_model, every_sampler, every_task, learned_rows, options, resumed)
    return [case for make in (pipeline_files, *training, datasets, commands, refused) for case in make()]
