"""Runs pipelines and reads run folders."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import binary, toml
from .error import Error
from .models import Model, load

if TYPE_CHECKING:
    import pandas
    import pyarrow


def run(
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    *,
    run_dir: str | os.PathLike[str] | None = None,
    sets: Iterable[str] | Mapping[str, Any] = (),
    processes: int = 1,
    resume: bool = False,
) -> Run:
    """Runs a pipeline: prepares its dataset if it is missing or stale, then trains and infers.

    ``pipeline`` is the path of a TOML file, or its content as a dictionary. Paths in a dictionary are relative to the
    current folder. ``run_dir`` is the run folder; ``runs/NAME`` by default. ``sets`` overrides keys: texts
    ``"train.epochs=5"``, or a dictionary from keys to values. ``resume`` continues after the last checkpoint in the run
    folder.

    Raises ``Error`` with the message and the exit code of the program if it fails.

    >>> run = gnnflow.run({"name": "a", "graph": {"generate": {"kind": "planted", "nodes": 1000, "edges": 9000}}},
    ...                   sets={"train.epochs": 3}, processes=2)
    >>> run.summary["epochs"]
    3
    """
    options = options_of(sets, processes)
    if run_dir is not None:
        options += ["--run-dir", Path(run_dir)]
    if resume:
        options.append("--resume")
    with pipeline_file(pipeline) as path:
        output = binary.execute(["run", path, *options])
    if run_dir is None:
        run_dir = Path("runs") / json.loads(output)["name"]
    return Run(run_dir)


@contextlib.contextmanager
def pipeline_file(pipeline: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[Path]:
    """Yields the path of a pipeline file. A dictionary is written to a temporary file."""
    if not isinstance(pipeline, Mapping):
        yield Path(pipeline)
        return
    # Beside the file are the prepared datasets. So it is in the current folder, where a later run finds them again.
    with tempfile.NamedTemporaryFile("w", prefix=".gnnflow-", suffix=".toml", dir=".", encoding="utf-8") as file:
        file.write(toml.dumps({"name": "pipeline"} | dict(pipeline)))
        file.flush()
        with _errors((rf"{re.escape(file.name)}(:\d+)?", "`pipeline`")):
            yield Path(file.name)


@contextlib.contextmanager
def _errors(*replacements: tuple[str, str]) -> Iterator[None]:
    """Replaces patterns in errors. So they name an argument, not the temporary file that has its values."""
    try:
        yield
    except Error as error:
        message = str(error)
        for pattern, text in replacements:
            message = re.sub(pattern, text, message)
        raise Error(message, error.exit_code) from None


class Run:
    """The folder of a finished run, or of `gnnflow infer` or `gnnflow refresh`. Files are read when they are needed, and kept.

    >>> run = gnnflow.Run("runs/papers")
    >>> run.metrics[["epoch", "loss"]].tail(1)
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder).absolute()
        if not self.folder.is_dir():
            raise Error(f"{self.folder}: there is no such run folder")

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"gnnflow.Run({str(self.folder)!r})"

    def infer(
        self,
        out: str | os.PathLike[str],
        *,
        dataset: str | os.PathLike[str] | None = None,
        pipeline: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        nodes: str | os.PathLike[str] | Iterable[int] | Iterable[str] | None = None,
        split: str | None = None,
        unseen: str | None = None,
        fanouts: Iterable[int] = (),
        sets: Iterable[str] | Mapping[str, Any] = (),
        processes: int = 1,
    ) -> Run:
        """Computes results with the model of this run, and returns the folder ``out`` that has them.

        ``dataset`` is the folder of a prepared dataset; that of the run by default. ``pipeline`` is a pipeline file, or a
        dictionary with its sections, whose tables are prepared like those of the run. ``nodes`` are the ids of the wanted
        nodes, or the path of a Parquet file with the column ``node_id``; ``split`` is ``"train"``, ``"val"`` or
        ``"test"``. Without both, all nodes have results. ``unseen`` is ``"refuse"``, ``"zero"`` or ``"mean"``, for nodes
        of which a model with learned rows has none. ``fanouts`` are numbers of in-neighbors to draw in each layer, from
        the output layer on, instead of all. ``sets`` and ``processes`` are those of :func:`run`. If a model predicts edges,
        only a split column (``graph.columns.edge_split``) holds out edges of another dataset.

        Raises ``Error`` with the message and the exit code of the program if it fails.

        >>> gnnflow.Run("runs/papers").infer("scores", nodes=[17, 4], sets={"infer.scores": True}).predictions.num_rows
        2
        """
        if nodes is not None and split is not None:
            raise Error("`nodes` and `split` both choose nodes; leave one of them out")
        if isinstance(pipeline, Mapping):
            with pipeline_file(pipeline) as file:
                return self.infer(
                    out,
                    dataset=dataset,
                    pipeline=file,
                    nodes=nodes,
                    split=split,
                    unseen=unseen,
                    fanouts=fanouts,
                    sets=sets,
                    processes=processes,
                )
        options = options_of(sets, processes)
        if pipeline is not None:
            options += ["--pipeline", Path(pipeline)]
        if split is not None:
            options += ["--split", split]
        if unseen is not None:
            options += ["--unseen", unseen]
        if fanouts := list(fanouts):
            options += ["--fanouts", ",".join(map(str, fanouts))]
        if nodes is None or isinstance(nodes, (str, os.PathLike)):
            listed = [] if nodes is None else ["--nodes", Path(nodes)]
            return self._results("infer", out, dataset, [*options, *listed])
        import pyarrow.parquet

        ids = _node_ids(nodes)
        with tempfile.NamedTemporaryFile(prefix="gnnflow-nodes-", suffix=".parquet") as file:
            pyarrow.parquet.write_table(pyarrow.table({"node_id": ids}), file.name)
            column = re.escape(file.name) + r'(?:: |, )column "node_id"'
            with _errors(
                (rf"{column}, row (\d+) \(row group \d+\)", r"`nodes[\1]`"),
                (rf"{column} is .* needs (integers|strings), .*", r"`nodes` needs \1, like the ids of the dataset"),
                (re.escape(file.name), "`nodes`"),
                ("remove this row", "remove this id"),
            ):
                return self._results("infer", out, dataset, [*options, "--nodes", Path(file.name)])

    def refresh(
        self,
        out: str | os.PathLike[str],
        *,
        dataset: str | os.PathLike[str] | None = None,
        layers: str | os.PathLike[str] | None = None,
        sets: Iterable[str] | Mapping[str, Any] = (),
        processes: int = 1,
    ) -> Run:
        """Computes the results that differ since the last refresh, and returns the folder ``out`` that has all of them.

        ``layers`` is the folder of stored rows; beside the dataset by default. The other arguments are those of
        :meth:`infer`. ``changes`` of the result has the nodes that have changed.
        """
        options = options_of(sets, processes) + ([] if layers is None else ["--layers", Path(layers)])
        return self._results("refresh", out, dataset, options)

    def _results(
        self,
        command: str,
        out: str | os.PathLike[str],
        dataset: str | os.PathLike[str] | None,
        options: list[str | Path],
    ) -> Run:
        of_dataset = [] if dataset is None else ["--dataset", Path(dataset)]
        binary.execute([command, self.folder, "--out", Path(out), *of_dataset, *options])
        return Run(out)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`: metrics of the best epoch, seconds, bytes, hashes of results."""
        return json.loads(self._file("summary.json").read_text(encoding="utf-8"))

    @cached_property
    def pipeline(self) -> dict[str, Any]:
        """`pipeline.toml`: the pipeline with all defaults."""
        return tomllib.loads(self._file("pipeline.toml").read_text(encoding="utf-8"))

    @cached_property
    def metrics(self) -> pandas.DataFrame | pyarrow.Table:
        """`metrics.jsonl`: a row per epoch. Metrics of a split have names such as `val.accuracy`."""
        lines = self._file("metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return frame([json.loads(line) for line in lines])

    @cached_property
    def predictions(self) -> pyarrow.Table:
        """`predictions.parquet`: `node_id`, `prediction`, `label`, `split`, and `scores` with `infer.scores`."""
        return self._table("predictions.parquet", "a finished run writes it with `infer.predictions = true`")

    @cached_property
    def embeddings(self) -> pyarrow.Table:
        """`embeddings.parquet`: `node_id` and `embedding`, the last hidden layer's output."""
        return self._table("embeddings.parquet", "a finished run writes it with `infer.embeddings = true`")

    @cached_property
    def recommendations(self) -> pyarrow.Table:
        """`recommendations.parquet`: `src`, `dst`, `type` if edges have types, `rank` from 1, and `score`."""
        return self._table("recommendations.parquet", "link prediction writes it with `infer.recommendations`")

    @cached_property
    def changes(self) -> pyarrow.Table:
        """`changes.parquet` of :meth:`refresh`: `node_id`, `old_prediction`, `prediction` (null for a removed node), and `embedding` if wanted."""
        return self._table("changes.parquet", "`refresh` writes it if it knows earlier results")

    @cached_property
    def node_embeddings(self) -> pyarrow.Table:
        """`node_embeddings.parquet`: `node_id` and `embedding`, the learned rows that the first layer reads."""
        return self._table("node_embeddings.parquet", "a finished run writes it with `[model.embedding]`")

    @cached_property
    def model(self) -> Model:
        """The model of the best epoch; see :func:`gnnflow.load`."""
        return load(self.folder)

    def log_to_mlflow(self, *, experiment: str | None = None, files: bool = True) -> str:
        """Logs the run to MLflow, and returns the id that it has there.

        Parameters are the keys of the pipeline, metrics those of all epochs. With ``files``, artifacts are the
        pipeline, the summary, the metrics, the report, the model and the Parquet files of the run folder. The server is that of ``mlflow.set_tracking_uri`` or ``MLFLOW_TRACKING_URI``.
        """
        try:
            import mlflow
        except ImportError:
            raise Error("mlflow is not installed: pip install mlflow") from None
        parameters = {key: str(value) for key, value in _flatten(self.pipeline)}
        epochs = [dict(_flatten(json.loads(line))) for line in self._file("metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        now = time.time_ns() // 1_000_000
        metrics = [
            mlflow.entities.Metric(key, float(value), now, record["epoch"])
            for record in epochs
            for key, value in record.items()
            if key != "epoch" and isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        if experiment is not None:
            mlflow.set_experiment(experiment)
        nested = mlflow.active_run() is not None
        with mlflow.start_run(run_name=self.summary["name"], tags={"gnnflow.run": str(self.folder)}, nested=nested) as active:
            client, number = mlflow.MlflowClient(), active.info.run_id
            # A server accepts 100 parameters and 1,000 metrics at a time.
            items = [mlflow.entities.Param(key, value) for key, value in parameters.items()]
            for first in range(0, len(items), 100):
                client.log_batch(number, params=items[first : first + 100])
            for first in range(0, len(metrics), 1000):
                client.log_batch(number, metrics=metrics[first : first + 1000])
            for path in sorted(self.folder.iterdir()) if files else []:
                if path.is_file() and path.suffix in {".toml", ".json", ".jsonl", ".html", ".safetensors", ".parquet"}:
                    mlflow.log_artifact(str(path))
                elif (path / "_SUCCESS").is_file():
                    mlflow.log_artifacts(str(path), artifact_path=path.name)
        return number

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise Error(f"{path}: the file is missing; the run has not finished, or the folder is not a run folder")
        return path

    def _table(self, name: str, writer: str) -> pyarrow.Table:
        import pyarrow.parquet

        path = self.folder / name
        if (path / "_SUCCESS").is_file():
            parts = sorted(path.glob("part-*.parquet"))
            if len(parts) != self.summary["partitions"]:
                raise Error(f"{path}: {len(parts)} of {self.summary['partitions']} parts are here; the others are on other hosts")
            return pyarrow.concat_tables([pyarrow.parquet.read_table(part) for part in parts])
        if not path.is_file():
            raise Error(f"{path}: the file is missing; {writer}")
        return pyarrow.parquet.read_table(path)


def _node_ids(nodes: Iterable[int] | Iterable[str]) -> pyarrow.Array:
    import pyarrow

    try:
        ids = pyarrow.array(nodes.tolist() if hasattr(nodes, "tolist") else list(nodes))
    except (TypeError, OverflowError, pyarrow.ArrowException):
        ids = pyarrow.nulls(1)
    if not len(ids):
        raise Error("`nodes` has no ids")
    if ids.null_count or not (pyarrow.types.is_integer(ids.type) or pyarrow.types.is_string(ids.type)):
        raise Error("`nodes` must have ids of nodes, all integers or all strings, or be the path of a Parquet file")
    return ids


def options_of(sets: Iterable[str] | Mapping[str, Any], processes: int) -> list[str | Path]:
    if isinstance(sets, str):
        raise Error(f"`sets` is one text; write it as a list: [{sets!r}]")
    if isinstance(sets, Mapping):
        sets = [f"{key}={toml.value(item, key)}" for key, item in sets.items()]
    options: list[str | Path] = ["--json", "--processes", str(processes)]
    for each in sets:
        options += ["--set", each]
    return options


def frame(records: list[dict[str, Any]]) -> pandas.DataFrame | pyarrow.Table:
    """Returns a table with a row per record. Keys of inner dictionaries have names such as `val.accuracy`."""
    rows = [dict(_flatten(record)) for record in records]
    try:
        import pandas
    except ImportError:
        import pyarrow

        names = dict.fromkeys(name for row in rows for name in row)
        return pyarrow.table({name: _column([row.get(name) for row in rows]) for name in names})
    return pandas.DataFrame(rows)


def _column(values: list[Any]) -> pyarrow.Array:
    """Returns a column. Values of several types become texts, since a column has one type."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except pyarrow.ArrowException:
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pyarrow.array(texts)


def _flatten(record: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, item in record.items():
        if isinstance(item, dict):
            yield from _flatten(item, f"{prefix}{key}.")
        else:
            yield prefix + key, item
