"""Files that are not what their names say, written by other programs: each is taken, or refused with a sentence."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import run
from torch_geometric.data import Data

from diskgnn import DataWarning, InputError, LinkTarget, NodeTarget, convert
from diskgnn.graph.graph import Graph
from diskgnn.importers.containers import text_numbers

NODES = 10


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Path]:
    random = np.random.default_rng(0)
    arrays = {
        "edges": random.integers(0, NODES, (2, 30)), "features": np.ones((NODES, 3), np.float32),
        "labels": np.zeros(NODES, np.int64), "train": np.arange(5),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return {name: tmp_path / f"{name}.npy" for name in arrays}


def npy(descr: str, shape: str, *, fortran: bool = False) -> bytes:
    """A .npy file with that header, as NumPy's format describes it, and some zeros."""
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header = header.ljust((len(header) + 11 + 63) // 64 * 64 - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(400)


@pytest.mark.parametrize("argument", ["edges", "features", "labels", "train"])
@pytest.mark.parametrize("shape", ["(10, -6)", "(-10, 6)", "(True, 6)", "(2, True)", f"(10, {2**64})"])
@pytest.mark.parametrize("fortran", [False, True])
def test_shapes_that_no_array_has(
    tmp_path: Path, given: dict[str, Path], argument: str, shape: str, fortran: bool
) -> None:
    given[argument].write_bytes(npy("<i8", shape, fortran=fortran))
    with pytest.raises(InputError, match=rf"{argument}.npy is not a complete .npy file.*the shape is \(.*save it with"):
        convert(tmp_path / "graph", **given)


@pytest.mark.parametrize("argument", ["edges", "features", "labels", "train", "nodes"])
def test_pipes_are_refused_without_waiting(tmp_path: Path, given: dict[str, Path], argument: str) -> None:
    given[argument] = tmp_path / "pipe"
    os.mkfifo(given[argument])
    writer = os.open(given[argument], os.O_RDWR | os.O_NONBLOCK)  # so that whoever opens it does not wait in this test
    os.write(writer, b"src,dst\n0,1\n")
    with pytest.raises(InputError, match=f"{argument}: expected .* found a pipe or a device, .* write what comes out"):
        convert(tmp_path / "graph", **given)
    os.close(writer)


@pytest.mark.parametrize("shape", ["(10, 6", "(10, 2**70)", "10 6)", "(10, \\"])
def test_headers_that_are_not_python(tmp_path: Path, given: dict[str, Path], shape: str) -> None:
    given["features"].write_bytes(npy("<f4", shape))
    with pytest.raises(InputError, match=r"features.npy is not a complete .npy file.*save it with np.save"):
        convert(tmp_path / "graph", **given)


def scipy_archive(path: Path, **changed: Any) -> Path:
    """As scipy.sparse.save_npz writes a matrix in coo; a value of bytes is a whole member."""
    members = {
        "row": np.arange(5), "col": np.arange(5), "format": np.array(b"coo"), "shape": np.array([5, 5]),
        "data": np.ones(5),
    }  # fmt: skip
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in (members | changed).items():
            content = io.BytesIO()
            np.save(content, value, allow_pickle=True)
            archive.writestr(f"{name}.npy", value if isinstance(value, bytes) else content.getvalue())
    return path


OBJECTS = np.array([{"a": 1}] * 5, object)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"row": OBJECTS}, "expected node ids, whole numbers; found object"),
        ({"data": OBJECTS}, "expected numbers, found dtype object"),
        ({"format": OBJECTS}, "format: expected a word, found object"),
        ({"format": np.array(3)}, "format: expected a word, found int64"),
        ({"format": np.empty(0, "S3")}, "format: expected a word"),
        ({"shape": OBJECTS}, "shape: expected two whole numbers, found object"),
        ({"shape": np.array([5.5, 5.5])}, "shape: expected two whole numbers, found float64"),
        ({"shape": np.array(5)}, "shape: expected two whole numbers"),
        ({"shape": np.empty(0, int)}, "shape: expected two whole numbers"),
        ({"data": npy("<f8", "(-5,)")}, r"is not a complete .npz archive \(its header says that the shape is \(-5,\)"),
    ],
)
def test_archives_of_scipy(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "graph", source=scipy_archive(tmp_path / "m.npz", **changed), format="scipy",
                options={"weights": True})  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_is_there_twice(tmp_path: Path, given: dict[str, Path], kind: str) -> None:
    """It is refused where it is read, and nowhere else."""
    table = pa.Table.from_arrays([pa.array(each) for each in ([0, 1, 2], [1, 2, 0], [7, 7, 7], [7, 7, 7])],
                                 names=["src", "dst", "other", "other"])  # fmt: skip
    write_table(table, tmp_path / f"others.{kind}")
    convert(tmp_path / "graph", edges=tmp_path / f"others.{kind}", features=given["features"])
    assert Graph.open(tmp_path / "graph").num_edges == 3
    write_table(table.rename_columns(["src", "dst", "src", "other"]), tmp_path / f"twice.{kind}")
    with pytest.raises(InputError, match=r"expected one column 'src' in .*twice.*, found 2 of that name; rename"):
        convert(tmp_path / "refused", edges=tmp_path / f"twice.{kind}", features=given["features"])


def write_table(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    lines = [table.column_names, *([str(value) for value in row] for row in rows)]
    path.write_text("".join(",".join(line) + "\n" for line in lines))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("names", ["src,dst", "src,dst,näme"])
def test_text_in_wide_encodings_is_named_with_what_converts_it(
    tmp_path: Path, given: dict[str, Path], encoding: str, names: str
) -> None:
    text = names + "".join(f"\n{row},{row + 1}" + ",1" * (names.count(",") - 1) for row in range(5)) + "\n"
    (tmp_path / "edges.csv").write_bytes(text.encode(encoding))
    wide = encoding.upper()
    with pytest.raises(InputError, match=rf"found .*edges.csv in {wide}; .*iconv -f {wide} -t UTF-8 OLD > NEW"):
        convert(tmp_path / "graph", edges=tmp_path / "edges.csv", features=given["features"])
    (tmp_path / "edges.txt").write_bytes("0\t1\n1\t2\n".encode(encoding))
    with pytest.raises(InputError, match=rf"found a text file in {wide}; convert it to UTF-8"):
        convert(tmp_path / "graph", source=tmp_path / "edges.txt", format="snap")


def test_marks_of_utf8_are_no_part_of_a_name(tmp_path: Path, given: dict[str, Path]) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,2\n", encoding="utf-8-sig")
    convert(tmp_path / "graph", edges=tmp_path / "edges.csv", features=given["features"])
    assert Graph.open(tmp_path / "graph").num_edges == 2


def test_names_of_columns_that_are_no_utf8(tmp_path: Path, given: dict[str, Path]) -> None:
    (tmp_path / "edges.csv").write_bytes("src,dst,größe\n0,1,2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"names of columns in UTF-8.*byte 0xf6 at 10; .*iconv -f WINDOWS-1252"):
        convert(tmp_path / "graph", edges=tmp_path / "edges.csv", features=given["features"])


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_names_of_files_that_are_no_utf8(tmp_path: Path, given: dict[str, Path], kind: str) -> None:
    """The file is read nevertheless, and what commands print is escaped."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/edges\xff." + kind.encode()))
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, [[0, 1, 2], [1, 2, 0]])
    else:
        write_table(pa.table({"src": [0, 1, 2], "dst": [1, 2, 0]}), tmp_path / f"plain.{kind}")
        (tmp_path / f"plain.{kind}").rename(path)
    graph = Path(os.fsdecode(os.fsencode(tmp_path) + b"/graph\xff"))
    convert(graph, edges=path, features=given["features"])
    assert Graph.open(graph).num_edges == 3
    told = run("inspect", graph).stdout
    assert r"graph\udcff: a graph" in told
    run("inspect", graph, "--json")
    assert "is not there" in run("inspect", f"{graph}2", exit_code=4).stderr


def test_what_unpacks_to_terabytes_is_refused(tmp_path: Path, given: dict[str, Path]) -> None:
    """Members of 4 MiB follow each other, and gzip unpacks one after the other. What is merely large is read."""
    row = b"0,1," + b"x" * 1019 + b"\n"  # a column that nobody needs, so that few rows are many bytes
    start, member = gzip.compress(b"src,dst,note\n"), gzip.compress(row * 4096, 9)
    path = tmp_path / "edges.csv.gz"
    path.write_bytes(start + member * 300)  # 1.2 GB from 1.3 MB
    with pytest.raises(InputError, match=r"edges.csv.gz unpacks to more than [0-9,]+ bytes, .*unpack it and give"):
        convert(tmp_path / "graph", edges=path, features=given["features"])
    path.write_bytes(start + member)
    convert(tmp_path / "graph", edges=path, features=given["features"])
    assert Graph.open(tmp_path / "graph").num_edges == 4096
    (tmp_path / "few.csv.bz2").write_bytes(bz2.compress(b"src,dst\n0,1\n"))
    convert(tmp_path / "few", edges=tmp_path / "few.csv.bz2", features=given["features"])
    assert Graph.open(tmp_path / "few").num_edges == 1


@pytest.mark.parametrize("read", [text_numbers.table, text_numbers.lines])
def test_a_small_file_that_unpacks_to_terabytes_is_not_unpacked_whole(tmp_path: Path, read: Any) -> None:
    """Nothing that stands behind the most that it may unpack to is looked at, so it takes no memory: not even where the
    file is damaged."""
    path = tmp_path / "triplet-type-list.csv.gz"
    path.write_bytes(gzip.compress(b"\n" * (4 << 20), 9) * 260 + b"no member of gzip" * 9)
    with pytest.raises(InputError, match=r"list.csv.gz unpacks to more than [0-9,]+ bytes, .*unpack it and give"):
        read("edge types", path)


def pyg_data() -> Data:
    return Data(x=torch.ones(NODES, 3), edge_index=torch.arange(NODES).repeat(2, 1), y=torch.zeros(NODES).long())


@pytest.mark.parametrize(
    ("saved", "found"),
    [
        ((1, 2), r"\(int, int\)"),
        (("a", "b"), r"\(str, str\)"),
        ((torch.ones(3), torch.ones(3)), r"\(Tensor, Tensor\)"),
        ((), r"\(\)"),
        ((pyg_data(),) * 4, r"\(Data, Data, Data, Data\)"),
    ],
)
def test_tuples_that_are_no_graph_of_pyg(tmp_path: Path, saved: Any, found: str) -> None:
    torch.save(saved, tmp_path / "data.pt")
    with pytest.raises(InputError, match=rf"or the \(data, slices\) of an InMemoryDataset, found {found}; save the"):
        convert(tmp_path / "graph", source=tmp_path / "data.pt", format="pyg")
    with pytest.raises(InputError, match=rf"expected Data, HeteroData or \(FeatureStore, GraphStore\), found {found}"):
        convert(tmp_path / "graph", source=saved, format="pyg")


@pytest.mark.parametrize(
    "saved",
    [(pyg_data(), None), (pyg_data().to_dict(), None, Data), (pyg_data(), {"x": torch.tensor([0, NODES])}, Data)],
)
def test_what_data_sets_of_pyg_save_is_read(tmp_path: Path, saved: Any) -> None:
    torch.save(saved, tmp_path / "data.pt")
    convert(tmp_path / "graph", source=tmp_path / "data.pt", format="pyg")
    assert Graph.open(tmp_path / "graph").num_nodes == NODES


def test_seeds_that_are_given_twice_are_told() -> None:
    with pytest.warns(DataWarning) as told:
        NodeTarget("node", {"train": [1, 1, 2], "valid": [2, 3]})
    found = [str(each.message) for each in told]
    assert any("seeds['train']: 1 of 3 node ids occur before; each node is one seed" in each for each in found)
    assert any("seeds: 1 of the nodes of train are in valid, too" in each for each in found)


def test_seeds_that_are_given_twice_at_one_time_are_told() -> None:
    """Compared with pairs of Python, as many as chance makes alike."""
    rng = np.random.default_rng(3)
    nodes = {split: rng.integers(0, 30, count) for split, count in (("train", 400), ("valid", 90), ("test", 1))}
    times = {split: rng.integers(-9, 9, len(each)) for split, each in nodes.items()}
    asked = {split: list(zip(nodes[split].tolist(), times[split].tolist(), strict=True)) for split in nodes}
    repeated = {split: len(pairs) - len(set(pairs)) for split, pairs in asked.items()}
    shared = len(set(asked["train"]) & set(asked["valid"]))
    assert min(repeated["train"], repeated["valid"], shared) > 0
    with pytest.warns(DataWarning) as told:
        NodeTarget("node", nodes, times)
    found = " ".join(str(each.message) for each in told)
    assert f"seeds['train']: {repeated['train']} of 400 pairs of a node and a time occur before; each is" in found
    assert f"seeds['valid']: {repeated['valid']} of 90 pairs of a node and a time occur before" in found
    assert f"seeds: {shared} of the pairs of a node and a time of train are in valid, too" in found
    assert "seeds['test']" not in found


@pytest.mark.parametrize("with_times", [False, True])
def test_pairs_that_are_given_twice_are_told(with_times: bool) -> None:
    """Compared with tuples of Python, as many as chance makes alike."""
    rng = np.random.default_rng(4)
    counts = {"train": 500, "valid": 200, "test": 1}
    pairs = {split: rng.integers(0, 12, (count, 2)) for split, count in counts.items()}
    times = {split: rng.integers(-2, 2, count) for split, count in counts.items()} if with_times else None
    columns = {split: np.c_[pairs[split], times[split]] if times else pairs[split] for split in counts}
    asked = {split: [*map(tuple, each.tolist())] for split, each in columns.items()}
    repeated = {split: len(each) - len(set(each)) for split, each in asked.items()}
    shared = len(set(asked["train"]) & set(asked["valid"]))
    assert min(repeated["train"], repeated["valid"], shared) > 0
    with pytest.warns(DataWarning) as told:
        LinkTarget("user:rates:film", seeds=pairs, times=times)
    found = " ".join(str(each.message) for each in told)
    what = "pairs at a time" if with_times else "pairs"
    assert f"seeds['train']: {repeated['train']} of 500 {what} occur before; each is a seed of its own" in found
    assert f"seeds['valid']: {repeated['valid']} of 200 {what} occur before" in found
    assert f"seeds: {shared} of the {what} of train are in valid, too: what is measured on valid is too good" in found
    assert "seeds['test']" not in found


def test_the_ends_of_pairs_may_be_those_of_others() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        LinkTarget("user:rates:film", seeds={"train": [[1, 1], [1, 2], [2, 1]], "valid": [[2, 2]]})
        LinkTarget("user:rates:film", seeds={"train": [[1, 1], [1, 1]]}, times={"train": [1, 2]})


def test_a_node_may_be_a_seed_at_several_times() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        NodeTarget("node", {"train": [1, 1, 2], "valid": [2, 1]}, {"train": [4, 5, 6], "valid": [7, 6]})
