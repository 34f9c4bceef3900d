"""From a generated graph to a picture of its nodes' embeddings.

    pip install gnnflow-*.whl matplotlib
    python plot_embeddings.py embeddings.png

Writes the prepared dataset and the run into the current folder. Editors show the parts between `# %%` as cells of a notebook.
"""

# %% Train a model. Progress goes to stderr.
import sys

import matplotlib
import numpy as np

import gnnflow

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

run = gnnflow.run(
    {
        "name": "communities",
        "graph": {"generate": {"kind": "planted", "nodes": 3000, "edges": 30000, "features": 16, "classes": 5}},
        "partition": {"parts": 2, "out": "communities-dataset"},
        "model": {"kind": "sage", "layers": 2, "hidden": 32},
        "train": {"epochs": 60},
        "infer": {"predictions": True, "embeddings": True},
    }
)
print(f"test accuracy {run.summary['test']['accuracy']:.3f}")

# %% Compute the same results in Python: the rows of a dataset are in the order of its partitions.
graph = gnnflow.dataset("communities-dataset")
csr = graph.csr()
logits = run.model(graph.join("features"), csr.indptr, csr.indices)
classes = dict(zip(graph.join("ids").tolist(), logits.argmax(axis=1).tolist()))
predicted = dict(zip(*(run.predictions.column(name).to_pylist() for name in ["node_id", "prediction"])))
same = np.mean([classes[node] == int(predicted[node]) for node in classes])
print(f"{same:.1%} of the predictions are equal")

# %% Project the embeddings onto their two principal components.
embeddings = run.embeddings.sort_by("node_id")
rows = np.array(embeddings.column("embedding").to_pylist())
rows -= rows.mean(axis=0)
_, _, directions = np.linalg.svd(rows, full_matrices=False)
points = rows @ directions[:2].T

# %% Plot them, colored by class.
labels = np.array(run.predictions.sort_by("node_id").column("label").to_pylist(), dtype=float)
figure, axes = plt.subplots(figsize=(6, 5))
marks = axes.scatter(points[:, 0], points[:, 1], c=labels, s=6, cmap="tab10")
axes.legend(*marks.legend_elements(), title="class")
axes.set(title="Embeddings of nodes", xlabel="first component", ylabel="second component")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "embeddings.png", dpi=120)
