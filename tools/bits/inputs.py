"""Writes the input graphs of the cases from a fixed seed, equal on all machines."""
import pathlib
import random
import struct
import zipfile

import parquet

NODES, EDGES = 500, 4000


def pick(rng: random.Random, count: int) -> int:
    return int(rng.random() * count)


def typed_dump(folder: pathlib.Path) -> None:
    """Writes a graph with all kinds of columns, and ids as integers and as strings."""
    rng = random.Random(1)
    folder.mkdir()
    label = [pick(rng, 3) for _ in range(NODES)]
    nodes: dict[str, parquet.Column] = {
        "node_id": [1000 + 7 * v for v in range(NODES)],
        "name": [f"node {v}" for v in range(NODES)],
        "label": label,
        "binary": [value % 2 for value in label],
        "value": [value + rng.gauss(0, 0.3) for value in label],
        "split": [["train", "train", "val", "test", "none"][pick(rng, 5)] for _ in range(NODES)],
        "kind": [["user", "item"][v % 2] for v in range(NODES)],
        "seen": [50 + pick(rng, 50) for _ in range(NODES)],
        "part": [pick(rng, 4) for _ in range(NODES)],
    }
    for i in range(8):
        nodes[f"f{i}"] = [rng.gauss(float(value == i), 1.0) for value in label]
    parquet.write(folder / "nodes.parquet", nodes)
    parquet.write(folder / "edges.parquet", edges(rng, EDGES, label))
    # Edges from users to items, for recommendation.
    users = edges(rng, EDGES, label)
    even = [[v // 2 * 2 + odd for v in end(users, key)] for odd, key in enumerate(("src", "dst"))]
    parquet.write(folder / "purchases.parquet", users | names(even[0], even[1]))
    # Candidate destinations for the edges of every node.
    pairs = [(v, pick(rng, NODES)) for v in range(NODES) for _ in range(10)]
    columns = {"src": [1000 + 7 * v for v, _ in pairs], "candidate": [1000 + 7 * u for _, u in pairs]}
    parquet.write(folder / "candidates.parquet", columns)
    # Edges with some unknown ends.
    unknown = edges(rng, 300, label)
    parquet.write(folder / "unknown.parquet", unknown | {"dst": [value + 7 * NODES - 700 for value in end_ids(unknown)]})


def end(columns: dict[str, parquet.Column], key: str) -> list[int]:
    return [(int(value) - 1000) // 7 for value in columns[key]]


def end_ids(columns: dict[str, parquet.Column]) -> list[int]:
    return [int(value) for value in columns["dst"]]


def names(src: list[int], dst: list[int]) -> dict[str, parquet.Column]:
    """Returns the ends of edges as integers and as strings."""
    return {
        "src": [1000 + 7 * v for v in src],
        "dst": [1000 + 7 * v for v in dst],
        "src_name": [f"node {v}" for v in src],
        "dst_name": [f"node {v}" for v in dst],
    }


def edges(rng: random.Random, count: int, label: list[int]) -> dict[str, parquet.Column]:
    """Returns random edges, half of them within a class, with some duplicates."""
    src = [pick(rng, NODES) for _ in range(count)]
    dst = [pick(rng, NODES) for _ in range(count)]
    for e in range(0, count, 2):
        while label[dst[e]] != label[src[e]]:
            dst[e] = pick(rng, NODES)
    for e in range(20):
        src[-1 - e], dst[-1 - e] = src[e], dst[e]
    rating = [(label[u] - label[v]) % 3 for u, v in zip(src, dst)]
    return names(src, dst) | {
        "kind": [["cites", "writes", "knows"][min(pick(rng, 5), 2)] for _ in range(count)],
        "weight": [pick(rng, 4) / 2 for _ in range(count)],
        "at": [pick(rng, 100) for _ in range(count)],
        "e0": [rng.gauss(0, 1) for _ in range(count)],
        "e1": [rng.gauss(value, 1) for value in rating],
        "rating": rating,
        "split": [["train", "train", "train", "val", "test"][pick(rng, 5)] for _ in range(count)],
    }


def changes(folder: pathlib.Path) -> None:
    """Writes added and removed edges, and added nodes, for `update` of the graph in `typed`."""
    rng = random.Random(2)
    label = [pick(rng, 3) for _ in range(NODES)]
    for number in (1, 2):
        batch = folder / f"batch-{number}"
        batch.mkdir(parents=True)
        parquet.write(batch / "edges.parquet", edges(rng, 60, label))
        parquet.write(batch / "remove.parquet", edges(rng, 40, label))
        ids = range(NODES + 10 * number, NODES + 10 * number + 5)
        columns: dict[str, parquet.Column] = {
            "node_id": [1000 + 7 * v for v in ids],
            "label": [v % 3 for v in ids],
            "split": ["train" for _ in ids],
        }
        columns |= {f"f{i}": [rng.gauss(0, 1) for _ in ids] for i in range(8)}
        parquet.write(batch / "nodes.parquet", columns)


def npy(kind: str, shape: tuple[int, ...], values: list[float] | list[int]) -> bytes:
    """Returns an array in NumPy format. `kind` is "i4", "i8", "f4" or "f8"."""
    head = repr({"descr": f"<{kind}", "fortran_order": False, "shape": shape})
    head += " " * (-(len(head) + 11) % 64) + "\n"
    data = struct.pack(f"<{len(values)}{ {'i4': 'i', 'i8': 'q', 'f4': 'f', 'f8': 'd'}[kind]}", *values)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data


def npz(path: pathlib.Path, arrays: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data)


def word(text: str) -> bytes:
    """Returns a NumPy array without dimensions that contains a byte string."""
    head = repr({"descr": f"|S{len(text)}", "fortran_order": False, "shape": ()})
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + text.encode()


def matrices(folder: pathlib.Path) -> None:
    """Writes a SciPy matrix, and features, several labels per node and a split as NumPy arrays, for `import`."""
    rng = random.Random(3)
    folder.mkdir()
    count, degree = 400, 8
    columns = [sorted(pick(rng, count) for _ in range(degree)) for _ in range(count)]
    flat = [column for row in columns for column in row]
    npz(
        folder / "graph.npz",
        {
            "indices": npy("i4", (len(flat),), flat),
            "indptr": npy("i4", (count + 1,), [degree * row for row in range(count + 1)]),
            "format": word("csr"),
            "shape": npy("i8", (2,), [count, count]),
            "data": npy("f8", (len(flat),), [1.0 + pick(rng, 3) for _ in flat]),
        },
    )
    labels = [[pick(rng, 2) for _ in range(4)] for _ in range(count)]
    rows = [rng.gauss(labels[v][i % 4], 1) for v in range(count) for i in range(8)]
    (folder / "features.npy").write_bytes(npy("f4", (count, 8), rows))
    (folder / "labels.npy").write_bytes(npy("i4", (count, 4), [bit for row in labels for bit in row]))
    (folder / "split.npy").write_bytes(npy("i4", (count,), [pick(rng, 4) for _ in range(count)]))


def texts(folder: pathlib.Path) -> None:
    """Writes an edge list, CSV tables with strings for ids, a METIS graph and an OGB download, for `import`."""
    rng = random.Random(4)
    folder.mkdir()
    lines = [f"{pick(rng, 200) * 3} {pick(rng, 200) * 3}" for _ in range(900)]
    (folder / "friends.txt").write_text("# who knows whom\n" + "\n".join(lines) + "\n")
    people = [f'"p {v}"' for v in range(100)]
    rows = [f"{people[pick(rng, 100)]},{people[pick(rng, 100)]},{pick(rng, 90) / 4},{pick(rng, 99)}" for _ in range(600)]
    (folder / "payments.csv").write_text("from,to,amount,at\n" + "\n".join(rows) + "\n")
    rows = [f"{name},{20 + v % 60},{1.5 + v % 40 / 100:.2f},{['oslo', 'rome', 'bonn'][v % 3]}" for v, name in enumerate(people)]
    (folder / "people.csv").write_text("id,age,height,city\n" + "\n".join(rows) + "\n")
    ring = [f"{(v - 1) % 50 + 1} {(v + 1) % 50 + 1}" for v in range(50)]
    (folder / "mesh.graph").write_text("50 50\n" + "\n".join(ring) + "\n")
    ogb = folder / "ogbn_tiny"
    for part in ("raw", "split/time", "mapping"):
        (ogb / part).mkdir(parents=True)
    numbers = range(60)
    (ogb / "raw/edge.csv").write_text("".join(f"{pick(rng, 60)},{v}\n" for v in numbers for _ in range(4)))
    (ogb / "raw/num-node-list.csv").write_text("60\n")
    (ogb / "raw/num-edge-list.csv").write_text("240\n")
    (ogb / "raw/node-feat.csv").write_text("".join(f"{rng.gauss(0, 1):.4f},{v / 60:.4f}\n" for v in numbers))
    (ogb / "raw/node-label.csv").write_text("".join(f"{v % 3}\n" for v in numbers))
    for part, name in enumerate(("train", "valid", "test")):
        (ogb / f"split/time/{name}.csv").write_text("".join(f"{v}\n" for v in numbers if v % 3 == part))
    rows = "".join(f"{v},{900 - v}\n" for v in numbers)
    (ogb / "mapping/nodeidx2paperid.csv").write_text("node idx,paper id\n" + rows)


def write(folder: pathlib.Path) -> None:
    """Writes all inputs into an empty folder."""
    typed_dump(folder / "typed")
    changes(folder / "changes")
    matrices(folder / "matrices")
    texts(folder / "texts")
