"""Runs pipelines and reads run folders."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
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
    options = _options(sets, processes)
    if run_dir is not None:
        options += ["--run-dir", Path(run_dir)]
    if resume:
        options.append("--resume")
    if isinstance(pipeline, Mapping):
        # Beside the file are the prepared datasets. So it is in the current folder, where a later run finds them again.
        with tempfile.NamedTemporaryFile("w", prefix=".gnnflow-", suffix=".toml", dir=".", encoding="utf-8") as file:
            file.write(toml.dumps({"name": "pipeline"} | dict(pipeline)))
            file.flush()
            output = binary.execute(["run", file.name, *options])
    else:
        output = binary.execute(["run", Path(pipeline), *options])
    if run_dir is None:
        run_dir = Path("runs") / json.loads(output)["name"]
    return Run(run_dir)


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
        nodes: str | os.PathLike[str] | Iterable[int] | Iterable[str] | None = None,
        split: str | None = None,
        sets: Iterable[str] | Mapping[str, Any] = (),
        processes: int = 1,
    ) -> Run:
        """Computes results with the model of this run, and returns the folder ``out`` that has them.

        ``dataset`` is the folder of a prepared dataset; that of the run by default. ``nodes`` are the ids of the wanted
        nodes, or the path of a Parquet file with the column ``node_id``; ``split`` is ``"train"``, ``"val"`` or
        ``"test"``. Without both, all nodes have results. ``sets`` and ``processes`` are those of :func:`run`.

        Raises ``Error`` with the message and the exit code of the program if it fails.

        >>> gnnflow.Run("runs/papers").infer("scores", nodes=[17, 4], sets={"infer.scores": True}).predictions.num_rows
        2
        """
        options = _options(sets, processes)
        if split is not None:
            options += ["--split", split]
        if nodes is None or isinstance(nodes, (str, os.PathLike)):
            listed = [] if nodes is None else ["--nodes", Path(nodes)]
            return self._results("infer", out, dataset, [*options, *listed])
        import pyarrow
        import pyarrow.parquet

        with tempfile.NamedTemporaryFile(prefix="gnnflow-", suffix=".parquet") as file:
            ids = nodes.tolist() if hasattr(nodes, "tolist") else list(nodes)
            if not ids:
                raise Error("`nodes` has no ids")
            pyarrow.parquet.write_table(pyarrow.table({"node_id": ids}), file.name)
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
        options = _options(sets, processes) + ([] if layers is None else ["--layers", Path(layers)])
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
        rows = [dict(_flatten(json.loads(line))) for line in lines]
        try:
            import pandas
        except ImportError:
            import pyarrow

            names = dict.fromkeys(name for row in rows for name in row)
            return pyarrow.table({name: [row.get(name) for row in rows] for name in names})
        return pandas.DataFrame(rows)

    @cached_property
    def predictions(self) -> pyarrow.Table:
        """`predictions.parquet`: `node_id`, `prediction`, `label`, `split`, and `scores` with `infer.scores`."""
        return self._table("predictions.parquet", "a finished run writes it with `infer.predictions = true`")

    @cached_property
    def embeddings(self) -> pyarrow.Table:
        """`embeddings.parquet`: `node_id` and `embedding`, the last hidden layer's output."""
        return self._table("embeddings.parquet", "a finished run writes it with `infer.embeddings = true`")

    @cached_property
    def changes(self) -> pyarrow.Table:
        """`changes.parquet` of :meth:`refresh`: `node_id`, `old_prediction`, `prediction`, and `embedding` if wanted."""
        return self._table("changes.parquet", "`refresh` writes it if it knows earlier results")

    @cached_property
    def node_embeddings(self) -> pyarrow.Table:
        """`node_embeddings.parquet`: `node_id` and `embedding`, the learned rows that the first layer reads."""
        return self._table("node_embeddings.parquet", "a finished run writes it with `[model.embedding]`")

    @cached_property
    def model(self) -> Model:
        """The model of the best epoch; see :func:`gnnflow.load`."""
        return load(self.folder)

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise Error(f"{path}: the file is missing; the run has not finished, or the folder is not a run folder")
        return path

    def _table(self, name: str, writer: str) -> pyarrow.Table:
        import pyarrow.parquet

        if not (self.folder / name).is_file():
            raise Error(f"{self.folder / name}: the file is missing; {writer}")
        return pyarrow.parquet.read_table(self.folder / name)


def _options(sets: Iterable[str] | Mapping[str, Any], processes: int) -> list[str | Path]:
    if isinstance(sets, str):
        raise Error(f"`sets` is one text; write it as a list: [{sets!r}]")
    if isinstance(sets, Mapping):
        sets = [f"{key}={toml.value(item, key)}" for key, item in sets.items()]
    options: list[str | Path] = ["--json", "--processes", str(processes)]
    for each in sets:
        options += ["--set", each]
    return options


def _flatten(record: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, item in record.items():
        if isinstance(item, dict):
            yield from _flatten(item, f"{prefix}{key}.")
        else:
            yield prefix + key, item
