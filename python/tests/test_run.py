"""Runs of the program from Python, and their folders."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet

import gnnflow
from gnnflow import binary, toml

from .common import PLANTED, TRAIN, TYPED, FolderCase, run, write_dump

PIPELINE = PLANTED | {
    "name": "first",
    "model": {"kind": "sage", "hidden": 8},
    "train": TRAIN,
    "infer": {"predictions": True},
}


class RunTest(FolderCase):
    def test_run_returns_its_folder(self) -> None:
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages):
            found = gnnflow.run(PIPELINE, sets={"train.epochs": 2, "model.hidden": 4}, processes=2)
        self.assertEqual(found.folder, Path("runs/first").absolute())
        self.assertIn("epoch", messages.getvalue())
        self.assertEqual((found.summary["epochs"], found.summary["processes"]), (2, 2))
        self.assertEqual(found.pipeline["model"]["hidden"], 4)
        metrics = found.metrics
        columns = metrics.column_names if hasattr(metrics, "column_names") else list(metrics.columns)
        self.assertTrue({"epoch", "loss", "val.accuracy"} <= set(columns))
        self.assertEqual(list(np.asarray(metrics["epoch"])), [1, 2])
        self.assertEqual(found.predictions.num_rows, 500)
        with self.assertRaisesRegex(gnnflow.Error, "embeddings.parquet.*infer.embeddings = true"):
            _ = found.embeddings
        self.assertEqual([path.name for path in Path(".").glob(".gnnflow-*")], [])
        more = run(PIPELINE, sets=["train.epochs=3", "model.hidden=4"], run_dir=found.folder, resume=True)
        self.assertEqual(more.summary["epochs"], 3)
        self.assertEqual(len(more.metrics["epoch"]), 3)

    def test_results_of_some_nodes_are_those_of_the_run(self) -> None:
        trained = run(PIPELINE, sets={"train.epochs": 1, "partition.out": "some"}, run_dir="trained")
        by_id = dict(zip(*(trained.predictions.column(name).to_pylist() for name in ["node_id", "prediction"])))
        listed = pyarrow.table({"node_id": [7, 3]})
        pyarrow.parquet.write_table(listed, "listed.parquet")
        for nodes in [[7, 3], np.array([3, 7]), "listed.parquet"]:
            with contextlib.redirect_stderr(io.StringIO()):
                found = trained.infer("results", nodes=nodes, sets={"infer.embeddings": True}, processes=2)
            columns = [found.predictions.column(name).to_pylist() for name in ["node_id", "prediction"]]
            self.assertEqual(dict(zip(*columns)), {id: by_id[id] for id in [3, 7]})
            self.assertEqual(found.embeddings.num_rows, 2)
        with contextlib.redirect_stderr(io.StringIO()):
            tested = trained.infer("results", split="test", dataset="some")
            parts = trained.infer("parts", sets={"infer.parts": True}, processes=2)
            sampled = trained.infer("sampled", fanouts=[2, 2])
        self.assertIn("--fanouts 2,2", sampled.summary["notes"][-1])
        self.assertTrue(Path("parts/predictions.parquet").is_dir())
        self.assertEqual(parts.predictions, trained.predictions)
        self.assertEqual(tested.summary["test"], trained.summary["test"])
        wrong_ids = "^`nodes` must have ids of nodes, all integers or all strings, .*Parquet file$"
        for wrong, words in [
            ({"nodes": [4, 999]}, r"^`nodes\[1\]`: 999 is not the id of a node\b"),
            ({"nodes": ["a"]}, "^`nodes` needs integers, like the ids of the dataset$"),
            ({"nodes": []}, "^`nodes` has no ids$"),
            ({"nodes": [1, "a"]}, wrong_ids),
            ({"nodes": [0.5]}, wrong_ids),
            ({"nodes": [None]}, wrong_ids),
            ({"nodes": 4}, wrong_ids),
            ({"nodes": [4], "split": "val"}, "^`nodes` and `split` both choose nodes; leave one of them out$"),
            ({"split": "all"}, r"^invalid value 'all' for '--split <SPLIT>' \[possible values: train, val, test\]$"),
            ({"dataset": "none"}, "none"),
            ({"unseen": "mean"}, "no learned rows"),
        ]:
            with self.subTest(wrong), contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaisesRegex(gnnflow.Error, words):
                    trained.infer("results", **wrong)

    def test_tables_are_scored_like_those_of_the_run(self) -> None:
        raw = write_dump()["features"]
        graph = {"graph": TYPED["graph"] | {"normalize_features": "standard"}, "partition": TYPED["partition"] | {"out": "scaled"}}
        trained = run(graph | {"model": {"kind": "rgcn", "hidden": 8}, "train": {"epochs": 1}}, run_dir="scaled-run")
        ids, order = np.unique(pyarrow.parquet.read_table("nodes.parquet").column("node_id"), return_index=True)
        dataset = gnnflow.dataset("scaled")
        places = order[np.searchsorted(ids, dataset.join("ids"))]
        np.testing.assert_array_equal(trained.model.scale(raw[places]), dataset.join("features"))
        self.assertEqual(trained.model.columns, ["features"] * 8)
        self.assertEqual(trained.model.classes, ["0", "1", "2"])
        # Nodes with other features, in other tables.
        table = pyarrow.parquet.read_table("nodes.parquet")
        later = (raw * 3 + 1).tolist()
        pyarrow.parquet.write_table(table.set_column(table.schema.get_field_index("features"), "features", [later]), "later.parquet")
        later_graph = graph | {"graph": graph["graph"] | {"nodes": "later.parquet"}, "partition": {"parts": 2, "out": "later"}}
        with contextlib.redirect_stderr(io.StringIO()):
            trained.infer("later-results", pipeline=later_graph)
        scaled = gnnflow.dataset("later")
        places = order[np.searchsorted(ids, scaled.join("ids"))]
        np.testing.assert_array_equal(trained.model.scale((raw * 3 + 1)[places]), scaled.join("features"))

    def test_refresh_computes_what_has_changed(self) -> None:
        trained = run(PIPELINE, sets={"train.epochs": 1, "partition.out": "changing"}, run_dir="base")
        with contextlib.redirect_stderr(io.StringIO()):
            first = trained.refresh("fresh", layers="rows")
            with self.assertRaisesRegex(gnnflow.Error, "changes.parquet.*earlier results"):
                _ = first.changes
            pyarrow.parquet.write_table(pyarrow.table({"src": [1], "dst": [2]}), "new.parquet")
            binary.execute(["update", Path("changing"), "--edges", Path("new.parquet")])
            fresh = trained.refresh("fresh", layers="rows")
            whole = trained.infer("whole")
        self.assertIn(2, fresh.changes.column("node_id").to_pylist())
        self.assertTrue(fresh.predictions.equals(whole.predictions))
        # A removed node has neither a prediction nor an embedding.
        pyarrow.parquet.write_table(pyarrow.table({"node_id": [2]}), "gone.parquet")
        with contextlib.redirect_stderr(io.StringIO()):
            binary.execute(["update", Path("changing"), "--remove-nodes", Path("gone.parquet")])
            fresh = trained.refresh("fresh", layers="rows", sets={"infer.embeddings": True})
        rows = {row["node_id"]: row for row in fresh.changes.to_pylist()}
        self.assertIsNotNone(rows[2]["old_prediction"])
        self.assertEqual((rows[2]["prediction"], rows[2]["embedding"]), (None, None))
        self.assertEqual({len(row["embedding"]) for node, row in rows.items() if node != 2}, {8})

    def test_sweep_and_compare_have_a_row_per_run(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            found = gnnflow.sweep(PIPELINE, {"model.hidden": [4, 8], "train.fanouts": [[5, 5]]}, out="all", sets={"train.epochs": 1})
        names = ["all/hidden=4,fanouts=5-5", "all/hidden=8,fanouts=5-5"]
        self.assertEqual(sorted(found["run"].to_numpy().tolist()), names)
        self.assertEqual(sorted(found["model.hidden"].to_numpy().tolist()), [4, 8])
        compared = gnnflow.compare(names, html="page.html")
        self.assertTrue(Path("page.html").is_file())
        accuracies = [gnnflow.Run(name).summary["test"]["accuracy"] for name in names]
        self.assertEqual(compared["test.accuracy"].to_numpy().tolist(), accuracies)
        for vary in [{"model.hidden": []}, {"model.hidden": "4,8"}, {"model.hidden": 4}]:
            with self.assertRaisesRegex(gnnflow.Error, "model.hidden"):
                gnnflow.sweep(PIPELINE, vary)
        with self.assertRaisesRegex(gnnflow.Error, "as a list"):
            gnnflow.compare("all")
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(gnnflow.Error, "not a run folder"):
            gnnflow.compare(["nowhere"])

    @unittest.skipUnless(importlib.util.find_spec("mlflow"), "mlflow is not installed")
    def test_run_is_logged_to_mlflow(self) -> None:
        import mlflow

        trained = run(PIPELINE, sets={"train.epochs": 2}, run_dir="logged")
        mlflow.set_tracking_uri(f"sqlite:///{Path('mlflow.db').absolute()}")
        number = trained.log_to_mlflow(experiment="planted")
        client = mlflow.MlflowClient()
        found = client.get_run(number).data
        self.assertEqual((found.params["model.hidden"], found.params["train.epochs"]), ("8", "2"))
        accuracies = [metric.value for metric in client.get_metric_history(number, "val.accuracy")]
        self.assertEqual(accuracies, list(trained.metrics["val.accuracy"]))
        self.assertIn("model.safetensors", [file.path for file in client.list_artifacts(number)])

    def test_pipeline_may_be_a_file(self) -> None:
        Path("second.toml").write_text(toml.dumps(PIPELINE | {"name": None}))
        found = run("second.toml", sets=["train.epochs=1"])
        self.assertEqual(found.folder, Path("runs/second").absolute())

    def test_failure_has_message_and_exit_code(self) -> None:
        with self.assertRaisesRegex(gnnflow.Error, 'did you mean "epochs"') as caught:
            run(PIPELINE, sets={"train.epoch": 2})
        self.assertEqual(caught.exception.exit_code, 2)
        self.assertFalse(str(caught.exception).startswith("error"))
        with self.assertRaisesRegex(gnnflow.Error, '^`pipeline`: train.epoch: unknown key; did you mean "epochs"'):
            run(PIPELINE | {"train": {"epoch": 2}})
        with self.assertRaises(gnnflow.Error) as caught:
            run(PIPELINE | {"graph": {"nodes": "none.parquet", "edges": "none.parquet"}})
        self.assertIn("none.parquet", str(caught.exception))
        self.assertEqual(caught.exception.exit_code, 3)

    def test_large_output_does_not_block(self) -> None:
        program = Path("program")
        program.write_text(
            f"#!{sys.executable}\nimport sys\nprint('x' * 1_000_000)\nprint('späte Meldung', file=sys.stderr)\n"
        )
        program.chmod(0o755)
        messages = io.StringIO()
        with (
            mock.patch.dict(os.environ, {binary.VARIABLE: str(program.absolute())}),
            contextlib.redirect_stderr(messages),
        ):
            self.assertEqual(len(binary.execute([])), 1_000_001)
        self.assertEqual(messages.getvalue(), "späte Meldung\n")

    def test_missing_program_is_named(self) -> None:
        with mock.patch.dict(os.environ, {binary.VARIABLE: "missing/gnnflow"}):
            with self.assertRaisesRegex(gnnflow.Error, "GNNFLOW_BINARY names `missing/gnnflow`"):
                gnnflow.run(PIPELINE)
        with mock.patch.dict(os.environ, {"PATH": ""}), mock.patch("sysconfig.get_path", return_value="none"):
            os.environ.pop(binary.VARIABLE, None)
            with self.assertRaisesRegex(gnnflow.Error, "neither in none nor on the PATH.*GNNFLOW_BINARY"):
                gnnflow.run(PIPELINE)

    def test_missing_folder_and_files_are_named(self) -> None:
        with self.assertRaisesRegex(gnnflow.Error, "no such run folder"):
            gnnflow.Run("nowhere")
        Path("empty").mkdir()
        with self.assertRaisesRegex(gnnflow.Error, "summary.json: the file is missing"):
            _ = gnnflow.Run("empty").summary

    def test_one_text_of_sets_is_refused(self) -> None:
        with self.assertRaisesRegex(gnnflow.Error, r"\['train.epochs=5'\]"):
            gnnflow.run(PIPELINE, sets="train.epochs=5")


class TomlTest(unittest.TestCase):
    def test_written_values_are_read_back(self) -> None:
        table = {
            "text": 'quotes " \\ \n \t \x7f \x01 ä 😀',
            "a key": {"b.c": [1, -2, 1.5, 1e-9, True, False], "": []},
            "nested": {"list": [{"a": [[1], []]}, {}], "large": 2**62},
        }
        self.assertEqual(tomllib.loads(toml.dumps(table)), table)
        self.assertEqual(
            tomllib.loads(toml.dumps({"x": float("inf"), "y": -float("inf")})), {"x": np.inf, "y": -np.inf}
        )
        self.assertEqual(
            toml.dumps({"n": np.int64(3), "f": np.float32(0.5), "d": np.float64(0.5)}),
            "n = 3\nf = 0.5\nd = 0.5\n",
        )
        self.assertEqual(
            toml.dumps({"p": Path("a/b"), "none": None, "t": (1,)}),
            'p = "a/b"\nt = [1]\n',
        )

    def test_other_values_are_refused_with_their_key(self) -> None:
        with self.assertRaisesRegex(gnnflow.Error, "train.epochs: a set"):
            toml.dumps({"train": {"epochs": {1}}})
        self.assertEqual(toml.dumps({"fanouts": np.array([10, 5])}), "fanouts = [10, 5]\n")


if __name__ == "__main__":
    unittest.main()
