"""Stores of types equal the tables that a dataset was prepared from. Only the last tests need PyTorch Geometric."""

from __future__ import annotations

import importlib.util
import unittest
from collections import Counter
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

import gnnflow
from gnnflow import pyg

from .common import NODES, PLANTED, TYPED, FolderCase, run, write_dump

SPLITS = ["train", "val", "test"]
PARTITION = {"method": "random", "parts": 3}
#: Of each node type: the first id, and the number of nodes.
COUNTS = {"author": (0, 60), "paper": (1000, 90), "venue": (2000, 7)}
#: The types of edges, each between two types of nodes. Citations have several types of sources.
ENDS = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("venue", "cites", "paper"),
    ("paper", "in", "venue"),
]


def write_table(file: str, columns: dict[str, Any]) -> None:
    arrays = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(arrays), file)


def write_one_table() -> None:
    """Writes a table of nodes and one of edges, with every column. Only papers have labels and splits."""
    random = np.random.default_rng(3)
    ids = np.concatenate([np.arange(first, first + count) for first, count in COUNTS.values()])
    types = np.repeat(list(COUNTS), [count for _, count in COUNTS.values()])
    is_paper = types == "paper"
    order, count = random.permutation(len(ids)), len(ids)
    labels, splits = random.integers(3, size=count), random.choice(SPLITS, count)
    columns = {
        "node_id": ids,
        "features": random.normal(size=(count, 4)).astype(np.float32),
        "label": np.where(is_paper, labels, None),
        "split": np.where(is_paper, splits, None),
        "ntype": types,
        "year": random.integers(1990, 2020, size=count),
    }
    write_table("nodes.parquet", {name: column[order] for name, column in columns.items()})
    edges: dict[str, list[Any]] = {name: [] for name in ("src", "dst", "etype", "label", "split")}
    for source, name, target in ENDS:
        for _ in range(200):
            edges["src"].append(int(random.choice(ids[types == source])))
            edges["dst"].append(int(random.choice(ids[types == target])))
            edges["etype"].append(name)
            edges["label"].append(int(random.integers(2)) if name == "writes" else None)
            edges["split"].append(str(random.choice(SPLITS)) if name == "writes" else None)
    rows = len(edges["src"])
    numbers = {
        "weight": random.random(rows, np.float32),
        "at": random.integers(10**6, size=rows),
        "pair": random.normal(size=(rows, 2)).astype(np.float32),
    }
    write_table("edges.parquet", edges | numbers)


ONE_TABLE = {
    "nodes": "nodes.parquet",
    "edges": "edges.parquet",
    "duplicates": "keep",
    "columns": {
        "node_type": "ntype",
        "node_time": "year",
        "edge_type": "etype",
        "weight": "weight",
        "time": "at",
        "edge_features": ["pair"],
        "edge_split": "split",
        "edge_label": "label",
    },
}


def values(store: dict[str, np.ndarray], names: list[str], ids: list[np.ndarray]) -> Counter[tuple]:
    """Counts the rows of columns. ``ids`` are the first ones."""
    columns = [*ids, *(store[name] for name in names if name in store)]
    return Counter(zip(*(map(tuple, column.tolist()) if column.ndim > 1 else column.tolist() for column in columns)))


def split_of(store: dict[str, np.ndarray], prefix: str = "") -> list[str | None]:
    masks = [store[f"{prefix}{split}_mask"] for split in SPLITS]
    return [next((split for split, row in zip(SPLITS, rows) if row), None) for rows in zip(*masks)]


class OneTableTest(FolderCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        write_one_table()
        run({"name": "one", "graph": ONE_TABLE, "partition": PARTITION | {"out": "one"}}, run_dir="run")
        cls.data = gnnflow.dataset("one")
        cls.nodes, cls.edges = pyg.by_type(cls.data)

    def test_nodes_of_each_type_equal_the_table(self) -> None:
        table = {row["node_id"]: row for row in pyarrow.parquet.read_table("nodes.parquet").to_pylist()}
        self.assertEqual(list(self.nodes), sorted(COUNTS))
        for name, store in self.nodes.items():
            rows = [table[node] for node in store["node_id"].tolist()]
            self.assertEqual(len(rows), COUNTS[name][1])
            self.assertEqual({row["ntype"] for row in rows}, {name})
            self.assertEqual(store["x"].tolist(), [row["features"] for row in rows])
            self.assertEqual(store["time"].tolist(), [row["year"] for row in rows])
            np.testing.assert_array_equal(self.data.join("ids")[store["global_id"]], store["node_id"])
            others = {"global_id", "node_id", "x", "time"}
            if name == "paper":
                others |= {"y", "train_mask", "val_mask", "test_mask"}
                self.assertEqual(store["y"].tolist(), [row["label"] for row in rows])
                self.assertEqual(split_of(store), [row["split"] for row in rows])
            self.assertEqual(set(store), others)

    def test_edges_of_each_type_equal_the_table(self) -> None:
        table = pyarrow.parquet.read_table("edges.parquet").to_pylist()
        kinds = {row["node_id"]: row["ntype"] for row in pyarrow.parquet.read_table("nodes.parquet").to_pylist()}
        self.assertEqual(sorted(self.edges), sorted(ENDS))
        for (source, name, target), store in self.edges.items():
            src, dst = store["edge_index"]
            ends = self.nodes[source]["node_id"][src], self.nodes[target]["node_id"][dst]
            found = values(store, ["edge_weight", "edge_time", "edge_attr"], list(ends))
            key = (source, name, target)
            wanted = [row for row in table if (kinds[row["src"]], row["etype"], kinds[row["dst"]]) == key]
            numbers = ((row["src"], row["dst"], row["weight"], row["at"], tuple(row["pair"])) for row in wanted)
            self.assertEqual(found, Counter(numbers))
            others = {"edge_index", "edge_weight", "edge_time", "edge_attr"}
            if name == "writes":
                others |= {"edge_label"} | {f"edge_{split}_mask" for split in SPLITS}
                targets = zip(*(end.tolist() for end in ends), store["edge_label"].tolist(), split_of(store, "edge_"))
                rows = ((row["src"], row["dst"], row["label"], row["split"]) for row in wanted)
                self.assertEqual(Counter(targets), Counter(rows))
            self.assertEqual(set(store), others)

    def test_columns_of_the_whole_graph_are_complete(self) -> None:
        nodes, edges = pyg.columns(self.data)
        np.testing.assert_array_equal(nodes["node_type"], self.data.join("node_types"))
        np.testing.assert_array_equal(nodes["time"], self.data.join("times"))
        np.testing.assert_array_equal(edges["edge_time"], self.data.join("edge_times"))
        np.testing.assert_array_equal(edges["edge_label"], self.data.join("edge_labels"))
        np.testing.assert_array_equal(edges["edge_test_mask"], self.data.join("edge_split") == 3)

    @unittest.skipUnless(importlib.util.find_spec("torch_geometric"), "PyTorch Geometric is not installed")
    def test_hetero_data_has_these_stores(self) -> None:
        found = self.data.hetero()
        self.assertTrue(found.validate())
        self.assertEqual(found.metadata(), (list(self.nodes), list(self.edges)))
        for key, store in (self.nodes | self.edges).items():
            self.assertEqual(set(found[key].keys()) - {"num_nodes"}, set(store))
            for name, column in store.items():
                np.testing.assert_array_equal(found[key][name].numpy(), column)
        self.assertEqual(found["venue"].num_nodes, 7)
        self.assertEqual(found.num_edges, self.data.manifest["edges"])

    @unittest.skipUnless(importlib.util.find_spec("torch_geometric"), "PyTorch Geometric is not installed")
    def test_hetero_data_is_the_graph_of_data(self) -> None:
        import torch
        from torch_geometric.nn import HeteroConv, SAGEConv

        whole, found = self.data.pyg(), self.data.hetero()
        torch.manual_seed(0)
        layer = SAGEConv(4, 5, aggr="sum")
        mixed = HeteroConv({key: layer for key in found.edge_types}, "sum")(found.x_dict, found.edge_index_dict)
        number = self.data.manifest["node_types"]["names"].index("venue")
        wanted = layer(whole.x, whole.edge_index)[whole.node_type == number]
        # Venues have edges of one type, so their rows are sums over one layer.
        torch.testing.assert_close(mixed["venue"], wanted)
        self.assertTrue(torch.equal(found["paper"].y, whole.y[found["paper"].global_id]))


class TableOfEachTypeTest(FolderCase):
    def test_types_have_their_own_columns(self) -> None:
        random = np.random.default_rng(4)
        table = {
            "item": {"node_id": np.arange(50), "x": random.normal(size=(50, 3)).astype(np.float32)},
            "tag": {"node_id": np.arange(100, 110)},
            "user": {
                "node_id": np.arange(200, 240),
                "age": random.normal(size=40).astype(np.float32),
                "x": random.normal(size=(40, 2)).astype(np.float32),
                "label": random.normal(size=40).astype(np.float32),
                "split": random.choice(SPLITS, 40),
            },
        }
        links = {
            "buys": {"src": np.repeat(table["user"]["node_id"], 2), "dst": random.integers(50, size=80)},
            "tagged": {"src": np.arange(50), "dst": random.integers(100, 110, size=50)},
        }
        links["buys"]["price"] = random.normal(size=80).astype(np.float32)
        for name, columns in (table | links).items():
            write_table(f"{name}.parquet", columns)
        graph = {
            "nodes": {name: f"{name}.parquet" for name in table},
            "edges": {name: f"{name}.parquet" for name in links},
            "columns": {"features": ["x", "age"], "edge_features": ["price"]},
            "reverse_edges": True,
            "duplicates": "keep",
        }
        run({"name": "own", "graph": graph, "partition": PARTITION | {"out": "own"}}, run_dir="run")
        nodes, edges = pyg.by_type(gnnflow.dataset("own"))

        self.assertEqual(set(nodes["tag"]), {"global_id", "node_id"})
        self.assertEqual(set(nodes["item"]), {"global_id", "node_id", "x"})
        item, user = nodes["item"], nodes["user"]
        np.testing.assert_array_equal(item["x"], table["item"]["x"][item["node_id"]])
        rows = user["node_id"] - 200
        np.testing.assert_array_equal(user["x"], np.column_stack([table["user"]["x"], table["user"]["age"]])[rows])
        np.testing.assert_array_equal(user["y"], table["user"]["label"][rows])
        self.assertEqual(split_of(user), table["user"]["split"][rows].tolist())

        forward, reverse = ("user", "buys", "item"), ("item", "rev_buys", "user")
        self.assertEqual(list(edges), [forward, ("item", "tagged", "tag"), reverse, ("tag", "rev_tagged", "item")])
        for (source, name, target), store in edges.items():
            src, dst = store["edge_index"]
            found = [nodes[source]["node_id"][src], nodes[target]["node_id"][dst]]
            wanted = links[name.removeprefix("rev_")]
            order = ["src", "dst"] if name in links else ["dst", "src"]
            self.assertEqual("edge_attr" in store, "buys" in name)
            prices = [wanted["price"][:, None]] if "buys" in name else []
            expected = values({}, [], [*(wanted[end] for end in order), *prices])
            self.assertEqual(values(store, ["edge_attr"], found), expected)


class OtherTypesTest(FolderCase):
    def test_graph_without_types_has_one_store(self) -> None:
        run(PLANTED, run_dir="run")
        data = gnnflow.dataset("planted")
        nodes, edges = pyg.by_type(data)
        whole, links = pyg.columns(data)
        self.assertEqual((list(nodes), list(edges)), (["node"], [("node", "to", "node")]))
        for store, columns in ((nodes["node"], whole), (edges["node", "to", "node"], links)):
            for name, column in columns.items():
                np.testing.assert_array_equal(store[name], column)

    def test_numbers_of_types_are_their_names(self) -> None:
        dump = write_dump()
        run({"name": "typed"} | TYPED, run_dir="run")
        nodes, edges = pyg.by_type(gnnflow.dataset("typed"))
        self.assertEqual((list(nodes), len(nodes["node"]["x"])), (["node"], NODES))
        self.assertEqual(list(edges), [("node", name, "node") for name in "012"])
        for (_, name, _), store in edges.items():
            self.assertEqual(store["edge_index"].shape[1], np.count_nonzero(dump["kind"] == int(name)))


if __name__ == "__main__":
    unittest.main()
