"""The forward pass equals the results of the program, for every kind of model."""

from __future__ import annotations

import importlib.util
import json
import shutil
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

import gnnflow
from gnnflow import graph as graph_module
from gnnflow import layers
from gnnflow.graph import Graph
from gnnflow.ops import NumpyOps

from .common import INFER, PLANTED, TRAIN, TYPED, FolderCase, lists, run, write_dump

FULL = {"schedule": "full-graph"}
#: Keys of `[model]`, and those of `[train]` that replace the sampler.
PLANTED_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sage": ({"kind": "sage"}, {}),
    "sage to wider rows": ({"kind": "sage", "hidden": 40, "activation": "tanh"}, {}),
    "sage by gcn's mean": ({"kind": "sage", "aggregator": "gcn", "activation": "gelu"}, {}),
    "sage by pooling": ({"kind": "sage", "aggregator": "pool", "activation": "leaky_relu"}, {}),
    "one layer": ({"kind": "sage", "layers": 1}, {"fanouts": [-1]}),
    "gcn": ({"kind": "gcn", "activation": "none"}, {}),
    "gcn, decoupled": ({"kind": "gcn"}, {"schedule": "tensor-parallel"}),
    "gat": ({"kind": "gat", "heads": 4, "output_heads": 3}, {}),
    "gat, decoupled": ({"kind": "gat", "output_heads": 2, "decoupled": True}, FULL),
    "gatv2": ({"kind": "gatv2", "heads": 2, "output_heads": 2}, {}),
    "gin": ({"kind": "gin", "eps": 0.25, "norm": "batch"}, {}),
    "gin with learned eps": (
        {"kind": "gin", "train_eps": True, "mlp_layers": 3, "norm": "layer", "activation": "elu"},
        {},
    ),
    "sgc": ({"kind": "sgc", "layers": 3}, FULL),
    "sgc, one layer": ({"kind": "sgc", "layers": 1}, FULL),
    "appnp": ({"kind": "appnp", "layers": 4, "teleport": 0.3}, FULL),
    "mlp": ({"kind": "mlp", "layers": 3, "residual": True}, FULL),
    "residual": ({"kind": "gat", "heads": 2, "layers": 3, "residual": True, "norm": "batch"}, FULL),
    "jumping knowledge by cat": ({"kind": "sage", "residual": True, "norm": "layer", "jumping_knowledge": "cat"}, {}),
    "jumping knowledge by max": ({"kind": "gat", "heads": 4, "jumping_knowledge": "max"}, {}),
    "jumping knowledge by mean": ({"kind": "gcn", "layers": 1, "jumping_knowledge": "mean"}, {"fanouts": [-1]}),
}
TYPED_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sage, directed": ({"kind": "sage"}, {}),
    "sage by gcn's mean, directed": ({"kind": "sage", "aggregator": "gcn"}, {}),
    "sage by pooling, directed": ({"kind": "sage", "aggregator": "pool"}, {}),
    "gcn, directed": ({"kind": "gcn"}, {}),
    "gat, directed": ({"kind": "gat"}, {}),
    "gatv2 with features of edges": ({"kind": "gatv2", "heads": 2, "edge_features": True}, {}),
    "gine": ({"kind": "gine", "eps": 0.5}, {}),
    "gine with learned eps": ({"kind": "gine", "train_eps": True, "mlp_layers": 1, "norm": "layer"}, {}),
    "rgcn": ({"kind": "rgcn"}, {}),
    "rgcn with bases": ({"kind": "rgcn", "num_bases": 2}, {}),
}


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def pipeline(base: dict[str, Any], model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    sampled = {} if "schedule" in train else TRAIN
    hidden = {} if model["kind"] == "sgc" else {"hidden": 16}
    return base | {
        "model": hidden | model,
        "train": {"epochs": 3, "optimizer": TRAIN["optimizer"]} | sampled | train,
        "infer": INFER,
    }


def inputs(data: gnnflow.Dataset) -> tuple[tuple[Any, ...], dict[str, Any]]:
    csr = data.csr()
    return (data.join("features"), csr.indptr, csr.indices), {
        "edge_types": csr.edge_types,
        "edge_features": csr.edge_features,
    }


class ModelTest(FolderCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        write_dump()

    def assert_close(self, found: np.ndarray, expected: np.ndarray) -> None:
        self.assertEqual(found.shape, expected.shape)
        self.assertLess(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()), 1e-5)

    def check(self, run: gnnflow.Run, data: gnnflow.Dataset) -> None:
        """Compares the forward pass with the files of a run."""
        arrays, edges = inputs(data)
        logits, predictions = run.model(*arrays, **edges), run.predictions
        np.testing.assert_array_equal(predictions["node_id"].to_numpy(), data.join("ids"))
        self.assert_close(softmax(logits), lists(predictions["scores"]))
        classes = predictions["prediction"].to_numpy()
        np.testing.assert_array_equal(logits.argmax(1), classes)
        self.assertGreater(len(set(classes)), 1)
        self.assert_close(run.model.embed(*arrays, **edges), lists(run.embeddings["embedding"]))
        if importlib.util.find_spec("torch"):
            self.check_module(run.model, arrays, edges, logits)

    def check_module(
        self, model: gnnflow.Model, arrays: tuple[Any, ...], edges: dict[str, Any], logits: np.ndarray
    ) -> None:
        import torch

        module = model.torch()
        self.assertEqual(module.state_dict().keys(), model.params.keys())
        results = module(*arrays, **edges)
        self.assert_close(results.detach().numpy(), logits)
        torch.nn.functional.cross_entropy(results, torch.zeros(len(logits), dtype=torch.long)).backward()
        for name, parameter in module.named_parameters():
            self.assertNotIn("running", name)
            self.assertTrue(parameter.grad is not None and bool(parameter.grad.isfinite().all()), name)

    def test_results_equal_the_files_of_the_run(self) -> None:
        for base, cases in ((PLANTED, PLANTED_CASES), (TYPED, TYPED_CASES)):
            for name, (model, train) in cases.items():
                with self.subTest(name):
                    found = run(pipeline(base, model, train), run_dir=Path("runs") / name)
                    self.check(found, gnnflow.dataset(base["partition"]["out"]))

    def test_parts_of_few_edges_give_equal_results(self) -> None:
        found = run(pipeline(TYPED, {"kind": "gine"}, {}), run_dir="runs/parts")
        arrays, edges = inputs(gnnflow.dataset("typed"))
        expected, whole = found.model(*arrays, **edges), graph_module.PART_EDGES
        self.addCleanup(setattr, graph_module, "PART_EDGES", whole)
        for edges_per_part in (1, 40):
            graph_module.PART_EDGES = edges_per_part
            self.assert_close(found.model(*arrays, **edges), expected)
            data = Graph(NumpyOps(), *arrays[1:])
            parts = list(data.parts())
            self.assertEqual(np.concatenate([part.src for part in parts]).tolist(), data.indices.tolist())
            self.assertTrue(all(part.nodes == 1 or len(part.src) <= edges_per_part for part in parts))

    def test_learned_rows_are_the_features(self) -> None:
        table = pyarrow.parquet.read_table("nodes.parquet")
        pyarrow.parquet.write_table(table.drop_columns("features"), "featureless.parquet")
        graph = {"nodes": "featureless.parquet", "edges": "edges.parquet", "duplicates": "keep"}
        base = {"graph": graph, "partition": {"method": "random", "parts": 2, "out": "featureless"}}
        found = run(pipeline(base, {"kind": "sage", "embedding": {"dim": 6}}, {}), run_dir="runs/rows")
        data = gnnflow.dataset("featureless")
        self.assertIsNone(data.join("features"))
        np.testing.assert_array_equal(found.node_embeddings["node_id"].to_numpy(), data.join("ids"))
        csr = data.csr()
        logits = found.model(lists(found.node_embeddings["embedding"]), csr.indptr, csr.indices)
        self.assert_close(softmax(logits), lists(found.predictions["scores"]))

    def test_regression_returns_values(self) -> None:
        table = pyarrow.parquet.read_table("nodes.parquet")
        values = pyarrow.array(np.linspace(-1, 1, len(table)), pyarrow.float32())
        pyarrow.parquet.write_table(table.append_column("value", values), "values.parquet")
        base = {
            "graph": {
                "nodes": "values.parquet",
                "edges": "edges.parquet",
                "duplicates": "keep",
                "columns": {"label": "value"},
            },
            "partition": {"method": "random", "parts": 2, "out": "values"},
        }
        configuration = pipeline(base, {"kind": "gcn"}, {"task": "node-regression"})
        found = run(configuration | {"infer": {"predictions": True}}, run_dir="runs/values")
        arrays, _ = inputs(gnnflow.dataset("values"))
        self.assert_close(found.model(*arrays)[:, 0], found.predictions["prediction"].to_numpy())


class SoftmaxTest(unittest.TestCase):
    def test_large_logits_do_not_overflow(self) -> None:
        libraries: list[Any] = [NumpyOps()]
        if importlib.util.find_spec("torch"):
            from gnnflow.module import TorchOps

            libraries.append(TorchOps("cpu"))
        for ops in libraries:
            (edges,) = Graph(ops, [0, 2, 4, 4], [1, 2, 0, 2]).parts()
            found = layers.softmax(ops, ops.rows([[-1000.0], [-1001.0], [1000.0], [1000.0]]), edges)
            np.testing.assert_allclose(np.asarray(found).ravel(), [0.7310586, 0.2689414, 0.5, 0.5], rtol=1e-6)


class RefusedTest(FolderCase):
    """A wrong result is never returned: what does not fit is refused."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        write_dump()
        run(pipeline(TYPED, {"kind": "rgcn"}, {}), run_dir="rgcn")
        run(pipeline(TYPED, {"kind": "gine"}, {}), run_dir="gine")

    def changed(self, old: str, new: str) -> gnnflow.Model:
        """Loads the model after a change of `pipeline.toml`."""
        shutil.copytree("rgcn", "changed", dirs_exist_ok=True)
        text = Path("rgcn/pipeline.toml").read_text()
        self.assertIn(old, text)
        Path("changed/pipeline.toml").write_text(text.replace(old, new))
        return gnnflow.load("changed")

    def test_unknown_settings_are_named(self) -> None:
        for old, new, named in (
            ('kind = "rgcn"', 'kind = "mine"', "model.kind.*`mine`"),
            ("[model]", "[model]\nspectral = true", "model.spectral"),
            ('norm = "none"', 'norm = "group"', "model.norm.*`group`"),
            ('jumping_knowledge = "none"', 'jumping_knowledge = "lstm"', "model.jumping_knowledge.*`lstm`"),
            ('task = "node-classification"', 'task = "link-prediction"', "train.task.*`link-prediction`"),
        ):
            with self.subTest(new), self.assertRaisesRegex(gnnflow.Error, named):
                self.changed(old, new)
        with self.assertRaisesRegex(gnnflow.Error, "model.activation.*`swish`"):
            model = self.changed("[model]", '[model]\nactivation = "swish"')
            model(np.zeros((1, model.in_dim)), [0, 0], [], edge_types=[])

    def test_model_of_another_run_is_refused(self) -> None:
        model = self.changed('kind = "rgcn"', 'kind = "sage"')
        with self.assertRaisesRegex(gnnflow.Error, "no parameter 'neighbor.weight'.*same run"):
            model(np.zeros((1, model.in_dim)), [0, 0], [])
        with self.assertRaisesRegex(gnnflow.Error, "2 layers.*`model.layers` is 1.*same run"):
            self.changed("layers = 2", "layers = 1")

    def test_inputs_that_do_not_fit_are_refused(self) -> None:
        rgcn, gine = gnnflow.load("rgcn"), gnnflow.load("gine")
        rows = np.zeros((2, rgcn.in_dim))
        for model, features, indptr, indices, more, message in (
            (
                rgcn,
                rows[:, 1:],
                [0, 1, 1],
                [1],
                {"edge_types": [0]},
                r"`features` has the shape \(2, 7\); the model reads 8",
            ),
            (rgcn, rows, [0, 1], [1], {"edge_types": [0]}, "`indptr` must have 3 numbers from 0 to 1"),
            (rgcn, rows, [0, 2, 1], [1], {"edge_types": [0]}, "`indptr` must have"),
            (rgcn, rows, [0, 1, 1], [2], {"edge_types": [0]}, "`indices` must be at least 0 and less than 2"),
            (rgcn, rows, [0, 1, 1], [1], {"edge_types": [0, 0]}, "`edge_types` has 2 rows"),
            (rgcn, rows, [0, 1, 1], [1], {"edge_types": [3]}, "`edge_types` must be at least 0 and less than 3"),
            (rgcn, rows, [0, 1, 1], [1], {}, "reads `edge_types`"),
            (gine, rows, [0, 1, 1], [1], {}, "reads `edge_features`"),
            (gine, rows, [0, 1, 1], [1], {"edge_features": [[1.0]]}, "reads 2 columns"),
        ):
            with self.subTest(message), self.assertRaisesRegex(gnnflow.Error, message):
                model(features, indptr, indices, **more)

    def test_damaged_model_is_refused(self) -> None:
        content = Path("rgcn/model.safetensors").read_bytes()
        flipped = bytearray(content)
        flipped[-3] ^= 4
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        del header["__metadata__"]["gnnflow.crc32"]
        without_checksum = json.dumps(header).encode()
        truncated = len(without_checksum).to_bytes(8, "little") + without_checksum + content[start:-4]
        shutil.copytree("rgcn", "damaged")
        for name, damaged, message in (
            ("changed byte", bytes(flipped), "checksum"),
            ("truncated", truncated, "beyond the end"),
            ("no header", b"short", "damaged"),
            ("empty", b"", "damaged"),
        ):
            Path("damaged/model.safetensors").write_bytes(damaged)
            with (
                self.subTest(name),
                self.assertRaisesRegex(gnnflow.Error, f"model.safetensors: damaged.*{message}|{message}"),
            ):
                gnnflow.load("damaged")
        Path("damaged/model.safetensors").unlink()
        with self.assertRaisesRegex(gnnflow.Error, "No such file"):
            gnnflow.load("damaged")


if __name__ == "__main__":
    unittest.main()
