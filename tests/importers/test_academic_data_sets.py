"""MAG240M, IGB and IGBH in the layouts of their downloads, against the graphs that they were written from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diskgnn.errors import DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert

PAPERS, AUTHORS, INSTITUTIONS = 60, 25, 5


def same(one: Path, other: Path) -> None:
    assert Graph.open(one).manifest.files == Graph.open(other).manifest.files


def ends(seed: int, num_sources: int, num_nodes: int, count: int = 100) -> Any:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, num_sources, count), rng.integers(0, num_nodes, count)])


@pytest.fixture
def mag240m(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    root, rng = tmp_path / "mag240m_kddcup2021", np.random.default_rng(1)
    x = rng.standard_normal((PAPERS, 12)).astype(np.float16)
    y = np.where(np.arange(PAPERS) < 40, rng.integers(0, 5, PAPERS), np.nan)  # nothing of the test papers is public
    years = rng.integers(1990, 2020, PAPERS)
    arrays = {"paper/node_feat": x, "paper/node_label": y, "paper/node_year": years}
    edges = {
        "author___affiliated_with___institution": ends(2, AUTHORS, INSTITUTIONS),
        "author___writes___paper": ends(3, AUTHORS, PAPERS),
        "paper___cites___paper": ends(4, PAPERS, PAPERS),
    }
    for name, array in {**arrays, **{f"{triplet}/edge_index": pairs for triplet, pairs in edges.items()}}.items():
        path = root / "processed" / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    torch.save({"paper": PAPERS, "author": AUTHORS, "institution": INSTITUTIONS, "num_classes": 5}, root / "meta.pt")
    splits = {"train": np.arange(30), "valid": np.arange(30, 40)}
    hidden = {"test-whole": np.arange(40, PAPERS), "test-dev": np.arange(40, 50), "test-challenge": np.arange(50, 60)}
    torch.save({**splits, **hidden}, root / "split_dict.pt")
    paper = {"features": x, "labels": np.nan_to_num(y, nan=-1).astype(int), "times": years, "num_classes": 5, **splits}
    others = {"author": {"num_nodes": AUTHORS}, "institution": {"num_nodes": INSTITUTIONS}}
    triplets = {triplet.replace("___", ":"): {"edges": pairs} for triplet, pairs in edges.items()}
    return root, {"nodes": {"paper": paper, **others}, "edges": triplets}


def test_mag240m(tmp_path: Path, mag240m: tuple[Path, dict[str, Any]]) -> None:
    root, schema = mag240m
    for edges in schema["edges"].values():
        edges["reverse"] = True
    cites = schema["edges"]["paper:cites:paper"]
    cites["symmetric"] = cites.pop("reverse")
    convert(tmp_path / "plain", schema=schema)
    for number, source in enumerate((root, tmp_path)):
        convert(tmp_path / str(number), source=source, reverse=True)
        same(tmp_path / str(number), tmp_path / "plain")


def test_mag240m_of_papers_alone(tmp_path: Path, mag240m: tuple[Path, dict[str, Any]]) -> None:
    root, schema = mag240m
    cites = {"node:to:node": {**schema["edges"]["paper:cites:paper"], "symmetric": True}}
    convert(tmp_path / "plain", schema={"nodes": {"node": schema["nodes"]["paper"]}, "edges": cites})
    convert(tmp_path / "out", source=root, options={"homogenise": "true"}, reference_features=True)
    found, expected = Graph.open(tmp_path / "out").manifest, Graph.open(tmp_path / "plain").manifest
    assert found.files == expected.files
    assert found.external["features-node.npy"].path == str(root / "processed" / "paper" / "node_feat.npy")


def test_what_is_not_read_of_mag240m_is_listed(tmp_path: Path, mag240m: tuple[Path, dict[str, Any]]) -> None:
    root, _ = mag240m
    np.save(root / "processed" / "author", np.zeros(3))
    with pytest.warns(
        DataWarning, match="split_dict.pt: test-whole.* of paper .its nodes have no labels in public.*aut"
    ):
        report = convert(tmp_path / "out", source=root, options={"homogenise": True})
    left_out = {item.name: item.expected for item in report.contents.left_out}
    assert left_out["author___writes___paper/edge_index.npy"]
    assert not left_out["author.npy"]
    assert {item.use for item in report.contents.read} == {"features", "labels", "times", "edges", "train", "valid"}


def test_what_is_not_read_of_igb_is_listed(tmp_path: Path) -> None:
    write_igb(tmp_path / "small", False, np.zeros(PAPERS, np.float32))
    paper = tmp_path / "small" / "processed" / "paper"
    for name in ("paper_id_index_mapping.npy", "years.npy"):
        np.save(paper / name, np.arange(PAPERS))
    with pytest.warns(DataWarning, match="left out of the graph: years.npy of paper"):
        report = convert(tmp_path / "out", source=tmp_path / "small")
    listed = {item.name for item in (*report.contents.read, *report.contents.left_out)}
    assert listed == {file.name for file in paper.iterdir()} | {"edge_index.npy"}


def test_mag240m_as_ogb_reads_it(mag240m: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    lsc = pytest.importorskip("ogb.lsc", reason="ogb is not installed")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # its split_dict.pt holds NumPy's arrays
    root, schema = mag240m
    (root / "RELEASE_v1.txt").touch()
    data = lsc.MAG240MDataset(str(root.parent))
    assert (data.num_papers, data.num_authors, data.num_classes) == (PAPERS, AUTHORS, 5)
    np.testing.assert_array_equal(data.paper_feat, schema["nodes"]["paper"]["features"])
    np.testing.assert_array_equal(data.get_idx_split("train"), schema["nodes"]["paper"]["train"])
    np.testing.assert_array_equal(data.edge_index("author", "paper"), schema["edges"]["author:writes:paper"]["edges"])


def write_igb(folder: Path, raw: bool, labels: Any) -> Any:
    processed = folder / "processed"
    for name in ("paper", "paper__cites__paper"):
        (processed / name).mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(5).standard_normal((PAPERS, 1024), np.float32)
    for name, array in {"node_feat": x, "node_label_19": labels, "node_label_2K": labels}.items():
        path = processed / "paper" / f"{name}.npy"
        if raw:
            array.astype(np.float32).tofile(path)
        else:
            np.save(path, array)
    np.save(processed / "paper__cites__paper" / "edge_index.npy", ends(6, PAPERS, PAPERS).T)
    return x


@pytest.mark.parametrize("size", ["tiny", "large"])
@pytest.mark.parametrize("classes", [19, 2983])
def test_igb(tmp_path: Path, size: str, classes: int) -> None:
    """.npy files, and headerless files of the same name."""
    labels = np.random.default_rng(7).integers(0, 19, PAPERS).astype(np.float32)
    x = write_igb(tmp_path / size, size == "large", labels)
    options: dict[str, Any] = {"classes": classes}
    if size == "large":
        with pytest.raises(InputError, match=r"expected 100000000 rows, found 60; .*num_papers=60"):
            convert(tmp_path / "out", source=tmp_path / size, options=options)
        options["num_papers"] = PAPERS
    convert(tmp_path / "out", source=tmp_path / size, options=options, memory="1MiB")
    graph = Graph.open(tmp_path / "out")
    splits = {split: graph.splits[split] for split in ("train", "valid", "test")}
    assert [len(ids) for ids in splits.values()] == [36, 12, 12]
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(PAPERS))
    convert(tmp_path / "plain", edges=ends(6, PAPERS, PAPERS), features=x, labels=labels.astype(int),
            num_classes=classes, **splits)  # fmt: skip
    same(tmp_path / "out", tmp_path / "plain")
    convert(tmp_path / "again", source=tmp_path / size, options={**options, "seed": 1})
    assert not np.array_equal(Graph.open(tmp_path / "again").splits["train"], splits["train"])


def test_igb_with_two_edges_and_unlabelled_papers(tmp_path: Path) -> None:
    labels = np.where(np.arange(PAPERS) < 50, 1.0, np.nan).astype(np.float32)
    write_igb(tmp_path / "medium", False, labels)
    pairs = np.array([[0, 1], [2, 3]])
    np.save(tmp_path / "medium" / "processed" / "paper__cites__paper" / "edge_index.npy", pairs)
    convert(tmp_path / "out", source=tmp_path / "medium")
    graph = Graph.open(tmp_path / "out")
    assert {int(u): int(v) for v in range(PAPERS) for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]} == {
        0: 1, 2: 3}  # fmt: skip
    assert sum(len(ids) for ids in graph.splits.values()) == 50


@pytest.mark.parametrize("raw", [False, True])
def test_igbh(tmp_path: Path, raw: bool) -> None:
    source = tmp_path / "small"
    labels = np.arange(PAPERS) % 19
    papers = write_igb(source, raw, labels)
    counts = {"author": AUTHORS, "fos": 7, "institute": INSTITUTIONS}
    x = {name: np.full((count, 1024), len(name), np.float32) for name, count in counts.items()}
    for name, array in x.items():
        path = source / "processed" / name / "node_feat.npy"
        path.parent.mkdir()
        array.tofile(path) if raw and name == "author" else np.save(path, array)
    edges = {"paper__written_by__author": ends(8, PAPERS, AUTHORS), "paper__topic__fos": ends(9, PAPERS, 7),
             "author__affiliated_to__institute": ends(10, AUTHORS, INSTITUTIONS)}  # fmt: skip
    for name, pairs in edges.items():
        (source / "processed" / name).mkdir()
        np.save(source / "processed" / name / "edge_index.npy", pairs.T)
    convert(tmp_path / "out", source=source, reverse=True)
    convert(tmp_path / "one", source=source, options={"typed": False})
    splits = Graph.open(tmp_path / "one").splits
    nodes = {"paper": {"features": papers, "labels": labels, "num_classes": 19, **splits},
             **{name: {"features": array} for name, array in x.items()}}  # fmt: skip
    edges["paper__cites__paper"] = ends(6, PAPERS, PAPERS)
    described = {
        name.replace("__", ":"): {"edges": pairs, "symmetric" if "cites" in name else "reverse": True}
        for name, pairs in sorted(edges.items())
    }
    convert(tmp_path / "plain", schema={"nodes": nodes, "edges": described})
    same(tmp_path / "out", tmp_path / "plain")
    path = source / "processed" / "paper" / "node_feat.npy"
    path.write_bytes(np.ones(1000, np.float32).tobytes())
    with pytest.raises(InputError, match=r"expected rows of 4096 bytes .*found 4000 bytes, which is no multiple"):
        convert(tmp_path / "cut", source=source)
