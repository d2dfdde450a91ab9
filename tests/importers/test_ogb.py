"""Folders of OGB, in the layouts of its downloads, against the graph that they were written from and OGB's reader."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from user_data import NUM_NODES, small_data

from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.specs.schema import ONE_EDGE_TYPE

SPLITS = ("train", "valid", "test")


def write_text(path: Path, rows: Any, header: str = "") -> None:
    """As pandas leaves it: no header unless given, no index, gzip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write(f"{header}\n" if header else "")
        for row in np.asarray(rows).reshape(len(rows), -1).tolist():
            file.write(",".join(map(str, row)) + "\n")


@pytest.fixture
def data() -> dict[str, Any]:
    data = small_data()
    data["labels"] = np.where(data["labels"] < 0, 0, data["labels"])  # OGB's text labels every node
    return data


def write_one_type(folder: Path, data: dict[str, Any]) -> None:
    raw = folder / "raw"
    write_text(raw / "edge.csv.gz", data["edges"].T)
    write_text(raw / "num-node-list.csv.gz", [NUM_NODES])
    write_text(raw / "num-edge-list.csv.gz", [data["edges"].shape[1]])
    write_text(raw / "node-feat.csv.gz", data["features"])
    write_text(raw / "node-label.csv.gz", data["labels"])
    for split in SPLITS:
        write_text(folder / "split" / "time" / f"{split}.csv.gz", data[split])


def same(one: Path, other: Path) -> None:
    assert Graph.open(one).manifest.files == Graph.open(other).manifest.files


@pytest.mark.parametrize("name", ["arxiv", "ogbn_products"])
def test_text_of_one_type(tmp_path: Path, data: dict[str, Any], name: str) -> None:
    write_one_type(tmp_path / name, data)
    convert(tmp_path / "plain", **data, reverse=name == "ogbn_products")
    convert(tmp_path / "out", source=tmp_path / name, memory="1MiB")
    same(tmp_path / "out", tmp_path / "plain")
    convert(tmp_path / "int8", source=tmp_path / name, quantise="int8", drop_duplicates=True)
    assert Graph.open(tmp_path / "int8").features.dtype == np.int8


def test_as_ogb_reads_it(tmp_path: Path, data: dict[str, Any]) -> None:
    reader = pytest.importorskip("ogb.io.read_graph_raw", reason="ogb is not installed")
    folder = tmp_path / "ogbn_proteins"
    write_one_type(folder, data)
    rng = np.random.default_rng(5)
    write_text(folder / "raw" / "edge-feat.csv.gz", rng.random((300, 3), np.float32))
    write_text(folder / "raw" / "node-label.csv.gz", rng.integers(0, 2, (NUM_NODES, 5)))
    (graph,) = reader.read_csv_graph_raw(str(folder / "raw"), add_inverse_edge=True)
    nodes = {"features": graph["node_feat"], "task": "multilabel", **{split: data[split] for split in SPLITS},
             "labels": np.loadtxt(folder / "raw" / "node-label.csv.gz", np.int64, delimiter=",")}  # fmt: skip
    edges = {"edges": graph["edge_index"], "features": graph["edge_feat"]}
    convert(tmp_path / "plain", schema={"nodes": {"node": nodes}, "edges": {"node:to:node": edges}})
    convert(tmp_path / "out", source=folder)
    one, other = Graph.open(tmp_path / "out"), Graph.open(tmp_path / "plain")
    assert np.array_equal(one.indices, other.indices)
    assert np.array_equal(one.labels, other.labels)
    found, expected = one.edges[ONE_EDGE_TYPE].features, other.edges[ONE_EDGE_TYPE].features
    assert np.array_equal(np.sort(found, axis=0), np.sort(expected, axis=0))


FOLDERS = ["ogbn_products", "ogbn_products_pyg", "ogbn-products", "products", "ogbn_proteins_dgl", "ogbl_ddi",
           "ogbl_ppa_pyg", "ppassoc", "ogbl_collab"]  # fmt: skip


@pytest.mark.parametrize("name", [*FOLDERS, "ogbn_arxiv_pyg", "ogbl_citation2", "citation-v2"])
def test_reverse_edges_are_added_where_ogb_does_so(tmp_path: Path, data: dict[str, Any], name: str) -> None:
    """ogb.nodeproppred.PygNodePropPredDataset reads the folder NAME_pyg where it is there, its DGL kin NAME_dgl."""
    write_one_type(tmp_path / name, data)
    report = convert(tmp_path / "out", source=tmp_path / name)
    assert report.details["num_edges"] == 300 * (2 if name in FOLDERS else 1)


def test_reverse_edges_are_added_for_the_data_sets_of_ogbs_list(tmp_path: Path, data: dict[str, Any]) -> None:
    pytest.importorskip("ogb", reason="ogb is not installed")
    import ogb
    import pandas

    for part in ("nodeproppred", "linkproppred"):
        master = pandas.read_csv(Path(ogb.__file__).parent / part / "master.csv", index_col=0, keep_default_na=False)
        for name in master:
            write_one_type(tmp_path / name.replace("-", "_"), data)
            report = convert(tmp_path / "out", source=tmp_path / name.replace("-", "_"), overwrite=True)
            adds = master[name]["add_inverse_edge"] == "True"
            assert report.details["num_edges"] == 300 * (1 + adds), name


def test_a_folder_of_another_name_is_asked_about(tmp_path: Path, data: dict[str, Any]) -> None:
    write_one_type(tmp_path / "mine", data)
    with pytest.warns(DataWarning, match="name of the folder mine is that of no data set of OGB.*add_reverse=true"):
        convert(tmp_path / "out", source=tmp_path / "mine")
    report = convert(tmp_path / "both", source=tmp_path / "mine", options={"add_reverse": True})
    assert report.details["num_edges"] == 600


def test_files_that_are_not_read_are_listed(tmp_path: Path, data: dict[str, Any]) -> None:
    folder = tmp_path / "ogbn_proteins"
    write_one_type(folder, data)
    write_text(folder / "raw" / "node_species.csv.gz", np.arange(NUM_NODES))
    (folder / "mapping").mkdir()
    with pytest.warns(DataWarning, match="left out of the graph: raw/node_species.csv.gz"):
        report = convert(tmp_path / "out", source=folder)
    files = {path.relative_to(folder).as_posix() for path in (folder / "raw").iterdir()}
    listed = {item.name for item in (*report.contents.read, *report.contents.left_out)}
    assert files < listed
    assert "mapping" in listed


@pytest.mark.parametrize("compressed", [False, True])
def test_papers100m(tmp_path: Path, data: dict[str, Any], compressed: bool) -> None:
    folder = tmp_path / "papers100M-bin"
    (folder / "raw").mkdir(parents=True)
    save = np.savez_compressed if compressed else np.savez
    labels = np.where(data["labels"] == 3, np.nan, data["labels"]).astype(np.float32)[:, None]
    splits = {split: data[split][~np.isnan(labels[data[split], 0])] for split in SPLITS}
    years = np.arange(NUM_NODES) % 20 + 2000
    save(folder / "raw" / "data.npz", edge_index=data["edges"], node_feat=data["features"], node_year=years[:, None],
         num_nodes_list=np.array([NUM_NODES]), num_edges_list=np.array([300]), edge_weight=np.arange(300.0)[:, None],
         node_kind=np.zeros(NUM_NODES))  # fmt: skip
    save(folder / "raw" / "node-label.npz", node_label=labels)
    for split in SPLITS:
        write_text(folder / "split" / "time" / f"{split}.csv.gz", splits[split])
    with pytest.warns(DataWarning, match="raw/data.npz: node_kind of node:to:node"):
        convert(tmp_path / "out", source=folder, format="ogb", memory="1MiB", reverse=True)
    nodes = {"features": data["features"], "labels": np.nan_to_num(labels[:, 0], nan=-1).astype(int), "times": years}
    edges = {"node:to:node": {"edges": data["edges"], "symmetric": True, "weights": np.arange(300.0)}}
    convert(tmp_path / "plain", schema={"nodes": {"node": nodes | splits}, "edges": edges})
    same(tmp_path / "out", tmp_path / "plain")
    content = (folder / "raw" / "data.npz").read_bytes()
    (folder / "raw" / "data.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"not a complete \.npz archive"):
        convert(tmp_path / "cut", source=folder)
    broken = bytearray(content)
    broken[content.index(b"node_feat.npy") + 200] ^= 255
    (folder / "raw" / "data.npz").write_bytes(broken)
    with pytest.raises(InputError, match=r"Bad CRC-32 for file 'node_feat"):
        convert(tmp_path / "cut", source=folder)
    assert not (tmp_path / "cut").exists()


def write_typed(folder: Path) -> dict[str, Any]:
    """The layout of ogbn-mag; the same as a schema."""
    rng = np.random.default_rng(7)
    raw, counts = folder / "raw", {"author": 20, "paper": 30}
    write_text(raw / "num-node-dict.csv.gz", [list(counts.values())], header=",".join(counts))
    ends = {("author", "writes", "paper"): (20, 30), ("paper", "cites", "paper"): (30, 30)}
    write_text(raw / "triplet-type-list.csv.gz", [list(triplet) for triplet in ends])
    edges = {}
    for triplet, (num_sources, num_nodes) in ends.items():
        pairs = np.stack([rng.integers(0, num_sources, 60), rng.integers(0, num_nodes, 60)])
        relation = raw / "relations" / "___".join(triplet)
        write_text(relation / "edge.csv.gz", pairs.T)
        write_text(relation / "num-edge-list.csv.gz", [60])
        write_text(relation / "edge_reltype.csv.gz", np.zeros(60, int))
        edges[":".join(triplet)] = {"edges": pairs}
    x, y = rng.standard_normal((30, 4), np.float32), rng.integers(0, 3, 30)
    years, order = rng.integers(2010, 2020, 30), rng.permutation(30)
    write_text(raw / "node-feat" / "paper" / "node-feat.csv.gz", x)
    write_text(raw / "node-feat" / "paper" / "node_year.csv.gz", years)
    write_text(raw / "nodetype-has-label.csv.gz", [["False", "True"]], header=",".join(counts))
    write_text(raw / "node-label" / "paper" / "node-label.csv.gz", y)
    splits = {"train": order[:10], "valid": order[10:15], "test": order[15:]}
    write_text(folder / "split" / "time" / "nodetype-has-split.csv.gz", [["False", "True"]], header=",".join(counts))
    for split, ids in splits.items():
        write_text(folder / "split" / "time" / "paper" / f"{split}.csv.gz", ids)
    paper = {"features": x, "labels": y, "times": years, **splits}
    return {"nodes": {"author": {"num_nodes": 20}, "paper": paper}, "edges": edges}


def test_text_of_several_types(tmp_path: Path) -> None:
    schema = write_typed(tmp_path / "mag")
    convert(tmp_path / "plain", schema=schema)
    report = convert(tmp_path / "out", source=tmp_path / "mag")
    assert all(item.expected for item in report.contents.left_out)
    assert {item.name for item in (*report.contents.read, *report.contents.left_out)} >= {
        path.relative_to(tmp_path / "mag").as_posix() for path in (tmp_path / "mag" / "raw").rglob("*.gz")
    }
    same(tmp_path / "out", tmp_path / "plain")
    schema["edges"]["author:writes:paper"]["reverse"] = True
    schema["edges"]["paper:cites:paper"]["symmetric"] = True
    schema["nodes"]["paper"]["quantise"] = "float16"
    convert(tmp_path / "both", schema=schema)
    convert(tmp_path / "reverse", source=tmp_path / "mag", reverse=True, quantise="float16")
    same(tmp_path / "reverse", tmp_path / "both")
    convert(tmp_path / "option", source=tmp_path / "mag", options={"add_reverse": True}, quantise="float16")
    same(tmp_path / "option", tmp_path / "both")
    with pytest.raises(ConfigError, match=r"train: expected a source of one node type .* found node types author"):
        convert(tmp_path / "no", source=tmp_path / "mag", train=[1])


@pytest.mark.parametrize("keys", ["edge", "source_node"])
def test_link_prediction(tmp_path: Path, data: dict[str, Any], keys: str) -> None:
    folder = tmp_path / "ogbl_citation2"
    write_one_type(folder, data)
    for file in [*(folder / "split" / "time").iterdir(), folder / "raw" / "node-label.csv.gz"]:
        file.unlink()
    rng = np.random.default_rng(9)
    write_text(folder / "raw" / "edge_weight.csv.gz", rng.integers(1, 9, 300))
    write_text(folder / "raw" / "edge_year.csv.gz", rng.integers(1990, 2000, 300))
    pairs = {split: rng.integers(0, NUM_NODES, (40, 2)) for split in SPLITS}
    for split, edges in pairs.items():  # OGB saves NumPy's arrays by torch.save
        content = {"edge": edges, "edge_neg": torch.zeros(5, 2), "year": np.zeros(40)}
        if keys == "source_node":
            content = {"source_node": edges[:, 0], "target_node": edges[:, 1], "target_node_neg": np.zeros((40, 7))}
        torch.save(content, folder / "split" / "time" / f"{split}.pt")
    with pytest.warns(DataWarning, match="negative pairs that OGB gives"):
        report = convert(tmp_path / "out", source=folder)
    left_out = {item.name: item.expected for item in report.contents.left_out}
    assert left_out["split of time: test: edge_neg" if keys == "edge" else "split of time: test: target_node_neg"]
    assert keys != "edge" or not left_out["split of time: test: year"]
    graph = Graph.open(tmp_path / "out")
    edges = graph.edges[ONE_EDGE_TYPE]
    for split in SPLITS:
        np.testing.assert_array_equal(edges.splits[split], pairs[split])
    assert edges.weights is not None
    assert edges.times is not None
    with pytest.warns(DataWarning, match="negative pairs"):
        convert(tmp_path / "bare", source=folder, options={"edge_data": False}, drop_duplicates=True)
    assert Graph.open(tmp_path / "bare").edges[ONE_EDGE_TYPE].weights is None


def write_triples(folder: Path, triples: np.ndarray, types: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    """A split of a knowledge graph: half to train on, as OGB has the same in the graph. [n, 3] of each split."""
    parts = dict(zip(SPLITS, np.split(triples, [len(triples) // 2, len(triples) * 3 // 4]), strict=True))
    folder.mkdir(parents=True)
    for split, part in parts.items():
        content: dict[str, Any] = dict(zip(("head", "relation", "tail"), part.T.copy(), strict=True))
        if types is not None:
            content["head_type"], content["tail_type"] = zip(*(types[relation] for relation in part[:, 1]), strict=True)
        if split != "train":
            content["head_neg"] = content["tail_neg"] = torch.zeros(len(part), 4, dtype=torch.int64)
        torch.save(content, folder / f"{split}.pt")
    return parts


def check_triples(out: Path, parts: dict[str, Any], edge_types: list[tuple[str, str, str]]) -> None:
    graph = Graph.open(out)
    assert set(graph.edges) == set(edge_types)
    for relation, edge_type in enumerate(edge_types):
        edges = graph.edges[edge_type]
        indptr, sources = edges.topology()
        found = np.stack([sources, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))], 1)
        of_relation = {split: part[part[:, 1] == relation][:, [0, 2]] for split, part in parts.items()}
        np.testing.assert_array_equal(
            found[np.lexsort(found.T)], of_relation["train"][np.lexsort(of_relation["train"].T)]
        )
        for split, expected in of_relation.items():
            if len(expected):
                np.testing.assert_array_equal(edges.splits[split], expected)
            assert (split in edges.splits) == bool(len(expected))


def test_triples_of_one_list_as_in_wikikg2(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    triples = np.stack([rng.integers(0, 30, 200), rng.integers(0, 4, 200), rng.integers(0, 30, 200)], 1)
    triples[:, 1][triples[:, 1] == 2] = 1  # a relation that nothing has
    raw = tmp_path / "ogbl_wikikg2" / "raw"
    parts = write_triples(raw.parent / "split" / "time", triples)
    write_text(raw / "edge.csv.gz", parts["train"][:, [0, 2]])
    write_text(raw / "edge_reltype.csv.gz", parts["train"][:, 1])
    write_text(raw / "num-node-list.csv.gz", [30])
    write_text(raw / "num-edge-list.csv.gz", [100])
    with pytest.warns(DataWarning, match="negative pairs"):
        convert(tmp_path / "out", source=raw.parent)
    check_triples(tmp_path / "out", parts, [("entity", f"relation_{number}", "entity") for number in range(4)])
    with pytest.warns(DataWarning, match="negative pairs"):
        report = convert(tmp_path / "both", source=raw.parent, options={"add_reverse": True})
    assert sum(count for fact, count in report.details.items() if fact.startswith("num_edges")) == 200
    write_text(raw / "edge_reltype.csv.gz", np.zeros(100, int))
    with (
        pytest.raises(InputError, match=r"train\.pt: expected relations that edges have, found 1"),
        pytest.warns(DataWarning),
    ):
        convert(tmp_path / "no", source=raw.parent)
    write_text(raw / "edge_reltype.csv.gz", [-1, *np.zeros(99, int)])
    with pytest.raises(InputError, match=r"expected relations that count from 0, found -1"), pytest.warns(DataWarning):
        convert(tmp_path / "no", source=raw.parent)
    write_text(raw / "edge_reltype.csv.gz", np.zeros(100, int))
    for found in (99, 101):
        write_text(raw / "edge.csv.gz", np.zeros((found, 2), int))
        with pytest.raises(InputError, match=f"expected 100 rows, found {found}"), pytest.warns(DataWarning):
            convert(tmp_path / "no", source=raw.parent)
    write_text(raw / "num-edge-list.csv.gz", [10**9])  # they are sorted in memory: 24 bytes each
    with pytest.raises(ConfigError, match=r"memory: expected at least 24\d{9} bytes .* to read the source"):
        convert(tmp_path / "no", source=raw.parent, memory="4GiB")
    assert not (tmp_path / "no").exists()


def test_triples_of_several_types_as_in_biokg(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    sizes, ends = {"drug": 12, "protein": 20}, [("drug", "protein"), ("protein", "protein"), ("drug", "drug")]
    relation = rng.integers(0, 3, 240)
    head, tail = (np.array([rng.integers(0, sizes[ends[each][side]]) for each in relation]) for side in (0, 1))
    raw = tmp_path / "ogbl_biokg" / "raw"
    parts = write_triples(raw.parent / "split" / "random", np.stack([head, relation, tail], 1), ends)
    edge_types = [(one, f"{one}-{other}", other) for one, other in ends]
    write_text(raw / "num-node-dict.csv.gz", [list(sizes.values())], header=",".join(sizes))
    write_text(raw / "triplet-type-list.csv.gz", [list(edge_type) for edge_type in edge_types])
    for number, edge_type in enumerate(edge_types):
        own = parts["train"][parts["train"][:, 1] == number]
        folder = raw / "relations" / "___".join(edge_type)
        write_text(folder / "edge.csv.gz", own[:, [0, 2]])
        write_text(folder / "edge_reltype.csv.gz", own[:, 1])
        write_text(folder / "num-edge-list.csv.gz", [len(own)])
    with pytest.warns(DataWarning, match="negative pairs"):
        convert(tmp_path / "out", source=raw.parent)
    check_triples(tmp_path / "out", parts, edge_types)


def test_what_is_no_folder_of_ogb(tmp_path: Path, data: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"expected a folder with one of raw/edge\.csv\.gz"):
        convert(tmp_path / "out", source=tmp_path, format="ogb")
    write_one_type(tmp_path / "arxiv", data)
    write_text(tmp_path / "arxiv" / "raw" / "num-edge-list.csv.gz", [301])
    with pytest.raises(InputError, match="expected 301 rows, found 300"):
        convert(tmp_path / "out", source=tmp_path / "arxiv")
    write_text(tmp_path / "arxiv" / "raw" / "num-edge-list.csv.gz", [300])
    (tmp_path / "arxiv" / "split" / "random").mkdir()
    with pytest.raises(InputError, match="expected one split, found random, time"):
        convert(tmp_path / "out", source=tmp_path / "arxiv")
    convert(tmp_path / "out", source=tmp_path / "arxiv", options={"split": "time"})
    write_text(tmp_path / "arxiv" / "raw" / "edge.csv.gz", [["1", "x"]] * 300)
    with pytest.raises(InputError, match=r"edges .*expected rows of 2 int64 numbers .*'x'"):
        convert(tmp_path / "other", source=tmp_path / "arxiv", options={"split": "time"})
    assert not (tmp_path / "other").exists()
