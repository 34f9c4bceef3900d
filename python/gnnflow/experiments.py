"""Several runs side by side, and runs of a pipeline with several values of its keys."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import binary, toml
from .error import Error
from .runs import frame, options_of, pipeline_file

if TYPE_CHECKING:
    import pandas
    import pyarrow


def compare(
    runs: Iterable[str | os.PathLike[str]], *, html: str | os.PathLike[str] | None = None
) -> pandas.DataFrame | pyarrow.Table:
    """Compares runs: a row for each, with the keys that differ, metrics of the best epoch, and times.

    Keys have names such as ``model.hidden``, and metrics ``val.accuracy``. ``html`` is the path of a page with charts that is
    written, too.

    >>> gnnflow.compare(["runs/sage", "runs/gat"])[["run", "model.kind", "test.accuracy"]]
    """
    if isinstance(runs, (str, os.PathLike)):
        raise Error(f"`runs` is one path; write it as a list: [{str(runs)!r}]")
    folders = [Path(folder) for folder in runs]
    page = [] if html is None else ["--html", Path(html)]
    return _table(binary.execute(["compare", "--json", *folders, *page]))


def sweep(
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    vary: Mapping[str, Iterable[Any]],
    *,
    out: str | os.PathLike[str] | None = None,
    sets: Iterable[str] | Mapping[str, Any] = (),
    processes: int = 1,
) -> pandas.DataFrame | pyarrow.Table:
    """Runs a pipeline with all combinations of the values in ``vary``, and returns the table of :func:`compare`, the best run first.

    Raises ``Error`` if a run fails, after the others; :func:`compare` then has the table of those that have finished. Runs that
    have finished before are not repeated. ``out`` is the folder of the run folders, ``runs/NAME-sweep`` by default;
    the other arguments are those of :func:`gnnflow.run`.

    >>> gnnflow.sweep("pipeline.toml", {"model.hidden": [64, 128], "train.seed": [1, 2, 3]})
    """
    options = options_of(sets, processes)
    for key, values in vary.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise Error(f"the values of {key} are {values!r}; write them as a list: [{values!r}]")
        texts = [toml.value(value, key) for value in values]
        if not texts:
            raise Error(f"{key} has no values")
        options += ["--vary", f"{key}={','.join(texts)}"]
    if out is not None:
        options += ["--out", Path(out)]
    with pipeline_file(pipeline) as path:
        return _table(binary.execute(["sweep", path, *options]))


def _table(output: str) -> pandas.DataFrame | pyarrow.Table:
    rows = json.loads(output)["runs"]
    # The keys come first, after the run. Their names have dots; so have those of metrics, which have the names of splits.
    return frame([{"run": row.pop("run"), **row.pop("settings")} | row for row in rows])
