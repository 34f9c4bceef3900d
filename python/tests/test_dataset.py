"""Views of a prepared dataset equal the tables that it was prepared from."""

from __future__ import annotations

import importlib.util
import json
import shutil
import unittest
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet

import gnnflow
from gnnflow.datasets import COLUMNS

from .common import CLASSES, EDGES, NODES, PLANTED, TYPED, FolderCase, run, write_dump


class DatasetTest(FolderCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.dump = write_dump()
        run({"name": "typed"} | TYPED, run_dir="run")
        cls.data = gnnflow.dataset("typed")
        # The row of the dump for each global id.
        rows = {int(node): row for row, node in enumerate(cls.dump["node_id"])}
        cls.rows = np.array([rows[node] for node in cls.data.join("ids").tolist()])

    def test_nodes_equal_the_dump(self) -> None:
        data, dump, rows = self.data, self.dump, self.rows
        self.assertEqual((data.nodes, len(data.parts)), (NODES, 2))
        self.assertEqual(
            [(part.first, part.last) for part in data.parts], [(0, data.parts[0].last), (data.parts[0].last, NODES)]
        )
        self.assertEqual(sorted(rows), list(range(NODES)))
        np.testing.assert_array_equal(data.join("features"), dump["features"][rows])
        np.testing.assert_array_equal(data.join("labels"), dump["label"][rows])
        np.testing.assert_array_equal(
            np.array(["none", "train", "val", "test"])[data.join("split")], dump["split"][rows]
        )
        for name in ("node_types", "times", "edge_times", "edge_split", "edge_labels"):
            self.assertIsNone(data.join(name), name)

    def test_edges_equal_the_dump(self) -> None:
        csr, dump, ids = self.data.csr(), self.dump, self.data.join("ids")
        names = self.data.manifest["edge_columns"]["edge_type"]["names"]
        types = csr.edge_types if not names else np.array(names)[csr.edge_types].astype(int)
        found = (ids[csr.indices], np.repeat(ids, np.diff(csr.indptr)), types, csr.edge_features, csr.edge_weights)
        expected = (dump["src"], dump["dst"], dump["kind"], dump["pair"], dump["weight"])

        def edges(columns: tuple[np.ndarray, ...]) -> Counter[tuple]:
            return Counter(
                zip(*(map(tuple, column.tolist()) if column.ndim > 1 else column.tolist() for column in columns))
            )

        self.assertEqual(edges(found).total(), EDGES)
        self.assertEqual(edges(found), edges(expected))

    def test_arrays_are_read_only_views_of_the_files(self) -> None:
        part = self.data.parts[0]
        for name in (
            "ids",
            "labels",
            "split",
            "features",
            "indptr",
            "indices",
            "edge_types",
            "edge_weights",
            "edge_features",
        ):
            first, second = getattr(part, name), getattr(part, name)
            self.assertTrue(np.shares_memory(first, second), name)
            self.assertFalse(first.flags.writeable, name)
            self.assertGreater(len(first), 0, name)

    def test_features_of_other_types_are_widened(self) -> None:
        table = pyarrow.parquet.read_table("nodes.parquet")
        table = table.append_column("score", pyarrow.array(np.linspace(-2, 2, NODES)))
        pyarrow.parquet.write_table(table, "scored.parquet")
        values = np.concatenate([self.dump["features"], np.linspace(-2, 2, NODES, dtype=np.float32)[:, None]], 1)
        for dtype, tolerance in (("f16", 1e-3), ("bf16", 1e-2), (["bf16", "f32"], 1e-2), (["f32", "f16"], 1e-3)):
            with self.subTest(dtype):
                graph = {"nodes": "scored.parquet", "edges": "edges.parquet", "feature_dtype": dtype}
                graph["columns"] = {"features": ["features", "score"]}
                shutil.rmtree("narrow", ignore_errors=True)
                run(
                    {"graph": graph, "partition": {"method": "random", "parts": 2, "out": "narrow"}},
                    run_dir="narrow-run",
                )
                data = gnnflow.dataset("narrow")
                rows = {int(node): row for row, node in enumerate(self.dump["node_id"])}
                expected = values[[rows[node] for node in data.join("ids").tolist()]]
                found = data.join("features")
                self.assertEqual(found.dtype, np.float16 if dtype == "f16" else np.float32)
                np.testing.assert_allclose(found, expected, rtol=tolerance)
                if dtype[0] == "f32":
                    np.testing.assert_array_equal(found[:, :-1], expected[:, :-1])

    def test_text_ids_and_flags(self) -> None:
        dump = self.dump
        names = np.array([f"n{node}" for node in dump["node_id"]])
        flags = np.eye(CLASSES, dtype=int)[dump["label"]].tolist()
        features = dump["features"].tolist()
        nodes = {"node_id": names, "features": features, "label": flags, "split": dump["split"]}
        ends = {end: np.array([f"n{node}" for node in dump[end]]) for end in ("src", "dst")}
        pyarrow.parquet.write_table(pyarrow.table(nodes), "text-nodes.parquet")
        pyarrow.parquet.write_table(pyarrow.table(ends), "text-edges.parquet")
        graph = {"nodes": "text-nodes.parquet", "edges": "text-edges.parquet"}
        run({"graph": graph, "partition": {"method": "random", "parts": 2, "out": "text"}}, run_dir="text-run")
        data = gnnflow.dataset("text")
        order = [names.tolist().index(name) for name in data.join("ids")]
        np.testing.assert_array_equal(data.join("labels"), np.array(flags)[order])
        self.assertEqual(data.arrow("ids").to_pylist(), data.join("ids").tolist())
        self.assertIsNone(data.arrow("edge_types"))

    @unittest.skipUnless(importlib.util.find_spec("torch_geometric"), "PyTorch Geometric is not installed")
    def test_pyg_has_the_same_graph(self) -> None:
        data, csr = self.data.pyg(), self.data.csr()
        self.assertTrue(data.validate())
        self.assertEqual(data.num_nodes, NODES)
        np.testing.assert_array_equal(data.x.numpy(), self.data.join("features"))
        np.testing.assert_array_equal(data.y.numpy(), self.data.join("labels"))
        np.testing.assert_array_equal(data.edge_index[0].numpy(), csr.indices)
        np.testing.assert_array_equal(np.bincount(data.edge_index[1], minlength=NODES), np.diff(csr.indptr))
        np.testing.assert_array_equal(data.edge_attr.numpy(), csr.edge_features)
        np.testing.assert_array_equal(data.val_mask.numpy(), self.data.join("split") == 2)

    @unittest.skipIf(importlib.util.find_spec("torch_geometric"), "PyTorch Geometric is installed")
    def test_pyg_names_the_missing_package(self) -> None:
        for method in (self.data.pyg, self.data.hetero):
            with self.assertRaisesRegex(gnnflow.Error, "torch_geometric"):
                method()

    def test_arrays_of_pyarrow_are_views_of_the_same_columns(self) -> None:
        data, part = self.data, self.data.parts[1]
        for name in COLUMNS:
            joined, chunks = data.join(name), data.arrow(name)
            if joined is None:
                self.assertIsNone(chunks, name)
                continue
            self.assertEqual(chunks.num_chunks, 2, name)
            self.assertEqual(chunks.to_pylist(), joined.tolist(), name)
            values = part.arrow(name)
            values = values.values if pyarrow.types.is_fixed_size_list(values.type) else values
            self.assertTrue(np.shares_memory(values.to_numpy(), getattr(part, name)), name)

    def test_unknown_columns_are_refused_with_the_known_ones(self) -> None:
        for read in (self.data.join, self.data.arrow, self.data.parts[0].arrow):
            for name in ("foo", "indptr", "folder"):
                with self.assertRaisesRegex(gnnflow.Error, f"no column `{name}`; name one of ids, .*edge_features$"):
                    read(name)

    def test_damaged_and_foreign_folders_are_refused(self) -> None:
        shutil.copytree("typed", "damaged")
        manifest = json.loads(Path("typed/manifest.json").read_text())
        for content, message in (
            (json.dumps(manifest | {"schema": 2}), "version 2, and this package reads 1; prepare the dataset again"),
            (json.dumps(manifest | {"format": "other"}), "lacks"),
            ("{", "damaged"),
        ):
            Path("damaged/manifest.json").write_text(content)
            with self.subTest(message), self.assertRaisesRegex(gnnflow.Error, f"manifest.json: .*{message}"):
                gnnflow.dataset("damaged")
        with self.assertRaisesRegex(gnnflow.Error, "No such file"):
            gnnflow.dataset("missing")
        Path("damaged/manifest.json").write_text(json.dumps(manifest))
        file = Path("damaged/part-00001/features.arrow")
        file.write_bytes(file.read_bytes()[:-1])
        with self.assertRaisesRegex(gnnflow.Error, "features.arrow: damaged: it has .* bytes"):
            gnnflow.dataset("damaged").join("features")


class OnePartitionTest(FolderCase):
    def test_one_partition_is_not_copied(self) -> None:
        run(PLANTED | {"partition": {"parts": 1, "out": "one"}}, run_dir="run")
        data = gnnflow.dataset("one")
        self.assertTrue(np.shares_memory(data.join("features"), data.parts[0].features))
        self.assertTrue(np.shares_memory(data.csr().indices, data.parts[0].indices))
        self.assertEqual(data.csr().edge_types, None)


if __name__ == "__main__":
    unittest.main()
