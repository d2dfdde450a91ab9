"""What is wrong with tables is told by the names that are in them, with what mends it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diskgnn.errors import DataWarning, DiskGNNError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.importers.seed_tables import read_target
from diskgnn.importers.tables.table import TableColumns

EDGES = "src,dst\np1,p2\np2,p0\n"
NODES = "id,x,label,split\np0,1.5,yes,train\np1,2.5,no,test\np2,0.5,yes,valid\n"


def written(folder: Path, **files: str) -> dict[str, Path]:
    paths = {name: folder / f"{name}.csv" for name in files}
    for name, text in files.items():
        paths[name].write_text(text)
    return paths


def refused(folder: Path, **arguments: Any) -> str:
    with pytest.raises(DiskGNNError) as caught:
        convert(folder / "graph", **arguments)
    assert not (folder / "graph").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("31/12/2020", "with the format '%d/%m/%Y'"),
        ("12.31.2020", "with the format '%m.%d.%Y'"),
        ("01/02/2020 10:00", "with the format '%d/%m/%Y' or '%m/%d/%Y', whichever is meant"),
        ("Dec 31, 2020", "for example by pandas.to_datetime"),
    ],
)
def test_a_date_of_another_form(tmp_path: Path, text: str, remedy: str) -> None:
    files = written(tmp_path, edges=f'src,dst,day\n0,1,"{text}"\n', nodes="x,born\n1.5,2020-01-01\n2.5,2020-01-01\n")
    told = refused(tmp_path, edges=files["edges"], nodes=files["nodes"], columns=TableColumns(time="day"))
    assert "column 'day': expected dates or times in ISO 8601 (2024-01-31, " in told
    assert f"or whole numbers; found '{text}'; convert the column first" in told
    assert told.endswith(remedy)


def test_dates_that_nobody_names_as_times(tmp_path: Path) -> None:
    """Text of many values is left out; what looks like dates is not called text or ids."""
    days = [f"{1 + day % 28:02d}/{1 + day // 28:02d}/2020" for day in range(40)]
    files = written(tmp_path, nodes="x,born\n" + "".join(f"{i}.5,{day}\n" for i, day in enumerate(days)))
    with pytest.warns(DataWarning, match=r"more than 32 values such as '01/01/2020'; write dates as 2020-12-31"):
        convert(tmp_path / "graph", edges=np.array([[0, 1, 2], [1, 2, 0]]), nodes=files["nodes"])


def test_a_split_of_rows_without_a_label(tmp_path: Path) -> None:
    nodes = "key,x,topic,part\n" + "".join(f"p{i},{i}.5,{'' if i in (1, 3) else 'ab'[i % 2]},train\n" for i in range(5))
    files = written(tmp_path, edges=EDGES, nodes=nodes)
    columns = TableColumns(id="key", label="topic", split="part")
    told = refused(tmp_path, edges=files["edges"], nodes=files["nodes"], columns=columns)
    assert told == (
        f"column 'part' of {files['nodes']}: 2 of 5 nodes of train have no label in column 'topic' of "
        f"{files['nodes']}, the first of them id 'p1'; empty the split of these rows, or give them a label"
    )
    typed = {"nodes": {"page": {"table": files["nodes"], "columns": columns}},
             "edges": {"page:to:page": {"edges": files["edges"]}}}  # fmt: skip
    assert refused(tmp_path, schema=typed) == told


def test_a_split_of_its_own_names_ids(tmp_path: Path) -> None:
    nodes = "id,x,label\np0,1.5,yes\np1,2.5,\np2,0.5,yes\n"
    files = written(tmp_path, edges=EDGES, nodes=nodes, train="id\np2\np1\n")
    told = refused(tmp_path, edges=files["edges"], nodes=files["nodes"], train=files["train"])
    assert told.startswith("train: 1 of 2 nodes have no label in column 'label' of ")
    assert "the first of them id 'p1'; leave out the nodes without a label" in told


def test_edges_without_a_row(tmp_path: Path) -> None:
    files = written(tmp_path, header="src,dst\n", nothing="", blank="\n\n")
    parquet, array = tmp_path / "edges.parquet", tmp_path / "edges.npy"
    pq.write_table(pa.table({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())}), parquet)
    np.save(array, np.zeros((2, 0), np.int64))
    for source in (files["header"], parquet, array):
        assert refused(tmp_path, edges=source) == f"edges: {source} has no edges; is it the file that was meant?"
    assert refused(tmp_path, edges=np.zeros((2, 0), np.int64)).startswith("edges: what is given has no edges")
    for source in (files["nothing"], files["blank"]):
        assert refused(tmp_path, edges=source).endswith(f"with a line for each row, found {source} empty")
    typed = {"nodes": {"page": {}}, "edges": {"page:to:page": {"edges": files["header"]}}}
    told = refused(tmp_path, schema=typed)
    assert str(files["header"]) in told
    assert "found no edges, and nothing else says which nodes there are" in told


def test_nodes_without_a_row(tmp_path: Path) -> None:
    files = written(
        tmp_path, edges=EDGES, nodes="id,x\n", ids="id\n", plain="x\n", of_pages=NODES, numbered="src,dst\n"
    )
    told = refused(tmp_path, edges=files["edges"], nodes=files["nodes"])
    assert told.startswith(f"nodes ({files['nodes']}): expected an id for each node, found none")
    told = refused(tmp_path, edges=files["edges"], ids=files["ids"], features=np.ones((3, 2), np.float32))
    assert told.startswith(f"ids ({files['ids']}): expected an id for each node, found none")
    typed = {"nodes": {"page": {"table": files["of_pages"]}, "word": {"table": files["plain"]}},
             "edges": {"page:to:page": {"edges": files["edges"]}}}  # fmt: skip
    assert f"{files['plain']}" in refused(tmp_path, schema=typed)
    with sqlite3.connect(tmp_path / "empty.db"):
        pass
    assert refused(tmp_path, source=tmp_path / "empty.db", format="sqlite").endswith("found no tables")


@pytest.mark.parametrize(
    ("there", "asked"),
    [("581", "0581"), ("0581", "581"), ("581", " 581"), ("581 ", "581"), ("581", "581.0"), ("abc", "ABC"),
     ("P581", "p581"), ("0", "00")],
)  # fmt: skip
def test_an_id_that_is_written_another_way(tmp_path: Path, there: str, asked: str) -> None:
    """Edges, splits and seeds are asked for ids as text."""
    ids = [there, "other", "third"]
    pq.write_table(pa.table({"id": ids, "x": [0.5, 1.5, 2.5]}), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": ["other"], "dst": [asked]}), tmp_path / "edges.parquet")
    pq.write_table(pa.table({"src": ["other"], "dst": [there]}), tmp_path / "right.parquet")
    hint = f"; there is {there!r}, which may be meant: write ids alike everywhere"
    told = refused(tmp_path, edges=tmp_path / "edges.parquet", nodes=tmp_path / "nodes.parquet")
    assert f"found {asked!r} in edge 0" in told
    assert told.endswith(hint)
    mentioned = {"nodes": {"page": {"test": np.array([asked]), "labels": tmp_path / "labels.parquet"}},
                 "edges": {"page:to:page": {"edges": tmp_path / "right.parquet"}}}  # fmt: skip
    pq.write_table(pa.table({"id": [there], "label": [0]}), tmp_path / "labels.parquet")
    assert refused(tmp_path, schema=mentioned).endswith(hint)

    convert(tmp_path / "right", edges=tmp_path / "right.parquet", nodes=tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"id": [asked], "split": ["test"]}), tmp_path / "seeds.parquet")
    with pytest.raises(InputError) as caught:
        read_target(tmp_path / "right", tmp_path / "seeds.parquet")
    assert str(caught.value).endswith(f"found {asked!r}, which none has{hint}")


def test_an_id_that_none_is_like(tmp_path: Path) -> None:
    files = written(tmp_path, edges="src,dst\np1,p7\n", nodes=NODES)
    told = refused(tmp_path, edges=files["edges"], nodes=files["nodes"])
    assert "which may be meant" not in told
    assert told.endswith(f"the nodes are those of nodes ({files['nodes']}): add it there, or leave it out here")


def test_ids_that_are_text_on_one_side(tmp_path: Path) -> None:
    files = written(
        tmp_path, numbers="src,dst\n581,7\n", nodes="id,x\n0581,1.5\n7x,2.5\n", counted="id,x\n0,1.5\n1,2.5\n"
    )
    told = refused(tmp_path, edges=files["numbers"], nodes=files["nodes"])
    assert "expected ids of type string, as the nodes have them, found int64 such as 581; there is '0581'" in told
    assert "types=NAME:string" in told
    texts = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"src": ["0"], "dst": ["1"]}), texts)
    told = refused(tmp_path, edges=texts, nodes=files["counted"])
    assert "while the ids of the nodes are the numbers 0, 1, 2, ..." in told

    right = TableColumns(types={"src": "string", "dst": "string", "id": "string"})
    convert(tmp_path / "right", edges=texts, nodes=files["counted"], columns=right)
    pq.write_table(pa.table({"id": [1], "split": ["test"]}), tmp_path / "seeds.parquet")
    with pytest.raises(InputError, match="found int64 such as 1; there is '1', which may be meant"):
        read_target(tmp_path / "right", tmp_path / "seeds.parquet")


def test_keys_that_are_padded_differently_lose_their_edges_with_a_hint(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE users (id TEXT PRIMARY KEY, age INTEGER)")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, user TEXT REFERENCES users)")
        connection.executemany("INSERT INTO users VALUES (?, 1)", [("581",), ("7",)])
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(0, "0581"), (1, "7")])
    connection.close()
    told = r"left out 1 of 2 edges .*to ids that no node has, such as '0581'; there is '581', which may be meant"
    with pytest.warns(DataWarning, match=told):
        convert(tmp_path / "graph", source=tmp_path / "shop.db")


def test_splits_in_tables_name_rows_where_nodes_have_no_ids(tmp_path: Path) -> None:
    files = written(tmp_path, train="id\n2\n0\n", words="id\na\n", labels="id,label\n0,1\n")
    given: dict[str, Any] = {"edges": [[0, 1, 2], [1, 2, 0]], "features": np.ones((3, 2), np.float32)}
    convert(tmp_path / "right", **given, labels=[0, 1, 1], train=files["train"])
    assert Graph.open(tmp_path / "right").splits["train"].tolist() == [2, 0]
    told = refused(tmp_path, **given, labels=[0, 1, 1], train=files["words"])
    assert told.startswith("train: expected numbers of rows in column 'id' of ")
    told = refused(tmp_path, **given, labels=files["labels"], train=[0])
    assert f"labels: expected an array with a label for each node, found the table {files['labels']}" in told
