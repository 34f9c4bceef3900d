"""Train graph neural networks with gnnflow, and use their results.

    import gnnflow

    run = gnnflow.run("pipeline.toml", processes=2)     # trains; progress is on stderr
    print(run.summary["test"]["accuracy"])
    print(run.predictions.column("prediction"))

    graph = gnnflow.dataset("dataset")                  # a prepared dataset, mapped into memory
    csr = graph.csr()
    logits = run.model(graph.join("features"), csr.indptr, csr.indices)     # [nodes, classes]

gnnflow needs numpy, and pyarrow for tables and datasets. PyTorch, PyTorch Geometric and pandas are used if they are
installed.
"""

from .datasets import Csr, Dataset, Partition, dataset
from .error import Error
from .experiments import compare, sweep
from .models import Model, load
from .runs import Run, run

__all__ = ["Csr", "Dataset", "Error", "Model", "Partition", "Run", "compare", "dataset", "load", "run", "sweep"]
