"""What is wrong with tables is told by the names that are in them, with what mends it."""

from __future__ import annotations

import csv
import re
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv

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


def test_a_time_of_day_is_no_moment(tmp_path: Path) -> None:
    """As `races.time` of RelBench's rel-f1, which pandas.to_datetime takes for moments of the day on which it runs."""
    files = written(tmp_path, edges="src,dst,start\n0,1,14:05:00.5\n", nodes="x,born\n1.5,2020-01-01\n2.5,2020-01-01\n")
    columns = TableColumns(time="start", types={"start": "string"})
    told = refused(tmp_path, edges=files["edges"], nodes=files["nodes"], columns=columns)
    assert told.endswith("found '14:05:00.5'; a time of day is no moment without its date: put both into one column, "
                         "or leave this one out")  # fmt: skip


def test_dates_that_nobody_names_as_times(tmp_path: Path) -> None:
    """Text of many values is left out; what looks like dates is not called text or ids."""
    days = [f"{1 + day % 28:02d}/{1 + day // 28:02d}/2020" for day in range(40)]
    files = written(tmp_path, nodes="x,born\n" + "".join(f"{i}.5,{day}\n" for i, day in enumerate(days)))
    with pytest.warns(DataWarning, match=r"more than 32 values, most of them dates such as '13/01/2020'"):
        convert(tmp_path / "graph", edges=np.array([[0, 1, 2], [1, 2, 0]]), nodes=files["nodes"])


@pytest.mark.parametrize("count", [20, 40])
def test_text_of_dates_that_nobody_names_as_times(tmp_path: Path, count: int) -> None:
    days = [f"2020-{1 + day // 28:02d}-{1 + day % 28:02d}" for day in range(count)]
    files = written(tmp_path, nodes="x,born\n" + "".join(f"{i}.5,{day}\n" for i, day in enumerate(days)))
    what = "taken as a category of 20 words; most are" if count == 20 else "more than 32 values, most of them"
    with pytest.warns(DataWarning, match=rf"{what} dates or times such as '2020-01-01': they may say when rows appear"):
        convert(tmp_path / "graph", edges=np.array([[0, 1, 2], [1, 2, 0]]), nodes=files["nodes"],
                columns=TableColumns(types={"born": "string"}))  # fmt: skip


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
    assert "found an empty file" in refused(tmp_path, source=tmp_path / "empty.db", format="sqlite")
    with sqlite3.connect(tmp_path / "empty.db") as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    assert refused(tmp_path, source=tmp_path / "empty.db", format="sqlite").endswith("found no tables")


@pytest.mark.parametrize(
    ("there", "asked"),
    [("581", "0581"), ("0581", "581"), ("581", " 581"), ("581 ", "581"), ("581", "581.0"), ("abc", "ABC"),
     ("P581", "p581"), ("0", "00"),
     ("a0eebc99-9c0b-4ef8", "{A0EEBC99-9C0B-4EF8}")],
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


RING = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["31/12/2020", "01/02/2020", "3/4/2020", "n/k"], r"dates such as '31/12/2020': convert .*'%d/%m/%Y'\. If "),
        (["1,5", "2,25", "3", "x"], r"numbers such as '1,5': write them like 1\.5"),
        (["12 %", "$7.50", "1.234,5", "1 000 €"], r"numbers such as '\$7\.50': write them like 1\.5"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_text_that_people_read_as_numbers_or_dates(tmp_path: Path, values: list[str], told: str, kind: str) -> None:
    path = tmp_path / f"nodes.{kind}"
    table = pa.table({"x": [0.5, 1.5, 2.5, 3.5], "price": values})
    pq.write_table(table, path) if kind == "parquet" else arrow_csv.write_csv(table, path)
    with pytest.warns(DataWarning, match=rf"nodes\.price: taken as a category of 4 words; most are {told}"):
        convert(tmp_path / "graph", edges=RING, nodes=path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(tmp_path / "said", edges=RING, nodes=path, columns=TableColumns(encode={"price": "category"}))
    with pytest.warns(DataWarning, match=told):
        convert(tmp_path / "named", edges=RING, nodes=path, columns=TableColumns(features=["x", "price"]))
    assert Graph.open(tmp_path / "named").features.shape == (4, 5)


def test_numbers_with_a_few_words_among_them(tmp_path: Path) -> None:
    ages = [str(20 + number % 9) if number % 20 else "unknown" for number in range(100)]
    files = written(tmp_path, nodes="x,age\n" + "".join(f"{n}.5,{age}\n" for n, age in enumerate(ages)))
    with pytest.warns(DataWarning, match=r"most are numbers such as '20', but for others such as 'unknown': correct"):
        convert(tmp_path / "graph", edges=RING, nodes=files["nodes"])


@pytest.mark.parametrize("values", ["SML", ["A1", "B2"], ["1-5", "6-9"], ["1", "2", "3+"], ["2019/20", "2020/21"]])
def test_words_are_categories_without_a_word(tmp_path: Path, values: Any) -> None:
    rows = "".join(f"{number}.5,{values[number % len(values)]}\n" for number in range(8))
    files = written(tmp_path, nodes=f"x,size\n{rows}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(tmp_path / "graph", edges=RING, nodes=files["nodes"])


@pytest.mark.parametrize("is_late", [False, True])
def test_text_in_latin_1(tmp_path: Path, is_late: bool) -> None:
    """A file that is read in blocks may be of ASCII up to some place beyond those that decide about types."""
    rows = [f"{number},town{number % 9}" for number in range(400_000 if is_late else 4)]
    text = "\n".join(["x,town", *rows, "7,Köln", "8,Münster", ""])
    (tmp_path / "nodes.csv").write_bytes(text.encode("latin-1"))
    told = refused(tmp_path, edges=RING, nodes=tmp_path / "nodes.csv")
    assert f"expected UTF-8 in {tmp_path / 'nodes.csv'}, found byte 0xf6 in line {len(rows) + 2}, after '7,K'" in told
    assert "iconv -f WINDOWS-1252 -t UTF-8" in told
    convert(tmp_path / "without", edges=RING, nodes=tmp_path / "nodes.csv", exclude="town")
    columns = [line.partition(",") for line in text.splitlines()]
    turned = "".join(f"{town},{x}\n" for x, _, town in columns)  # the first column, by which rows are counted
    (tmp_path / "turned.csv").write_bytes(turned.encode("latin-1"))
    convert(tmp_path / "turned", edges=RING, nodes=tmp_path / "turned.csv", exclude="town")
    (tmp_path / "nodes.csv").write_text(text, encoding="utf-8")
    convert(tmp_path / "graph", edges=RING, nodes=tmp_path / "nodes.csv")
    assert Graph.open(tmp_path / "graph").num_nodes == len(rows) + 2


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ('x,y\n1,"a\nb"\n\n2,3,4\n', "expected 2 columns in each row of {}, found 3 in line 5: '2,3,4'; a value"),
        ("x,y\n1,2\n\n3\n4,5\n", "expected 2 columns in each row of {}, found 1 in line 4: '3'; add what is missing"),
        ('x,y\n1,2\n"3,4\n5,6\n', "expected 2 columns in each row of {}, found 1 in line 3: .* is a quote opened and"),
        ("x/y\n1,5/2\n", "expected 1 column in each row of {}, found 2 in line 2: .* delimiter=;"),
    ],
)
def test_a_row_of_another_length(tmp_path: Path, nodes: str, told: str) -> None:
    files = written(tmp_path, nodes=nodes)
    with pytest.raises(DiskGNNError, match=told.format(re.escape(str(files["nodes"])))):
        convert(tmp_path / "graph", edges=RING, nodes=files["nodes"])


def test_a_value_of_another_type_than_those_before(tmp_path: Path) -> None:
    rows = "\n".join(map(str, range(900_000)))
    files = written(tmp_path, nodes=f"x\n{rows}\nmany\n")
    told = refused(tmp_path, edges=RING, nodes=files["nodes"])
    assert f"expected values of type int64 in column 'x' of {files['nodes']}" in told
    assert "found 'many' in line 900002" in told
    assert told.endswith("(`columns`, types=x:string)")


@pytest.mark.parametrize(
    ("nodes", "types", "told"),
    [
        ("\nid,x\n1,2\n3,foo\n", {"x": "int64"}, "of type int64 in column 'x' of .*, found 'foo' in line 4"),
        ("id,x\r1,2\r3,foo\r", {"x": "int64"}, "of type int64 in column '#1' of .*, found 'foo' in row 3"),
    ],
)
def test_a_value_that_is_not_of_its_type(tmp_path: Path, nodes: str, types: dict[str, str], told: str) -> None:
    files = written(tmp_path, nodes=nodes)
    with pytest.raises(DiskGNNError, match=told):
        convert(tmp_path / "graph", edges=RING, nodes=files["nodes"], columns=TableColumns(types=types))


def test_a_time_of_another_form_than_those_before(tmp_path: Path) -> None:
    files = written(tmp_path, nodes="x,at\n" + "1,2020-01-01T00:00:00Z\n" * 200_000 + "1,foo\n")
    told = refused(tmp_path, edges=RING, nodes=files["nodes"], columns=TableColumns(time="at"))
    assert "in column 'at' of" in told
    assert "found 'foo' in line 200002" in told


def test_values_of_several_lines_at_the_ends_of_blocks(tmp_path: Path) -> None:
    """Files are read in blocks, which end between rows."""
    texts = [f"first, {number}\nsecond,{'y' * (number % 61)}" for number in range(120_000)]
    rows = "".join(f'{number},"{text}",{number % 7}\n' for number, text in enumerate(texts))
    files = written(tmp_path, nodes=f"id,text,x\n{rows}")
    with pytest.warns(DataWarning, match="left out of the graph: text of node"):
        convert(tmp_path / "graph", edges=RING, nodes=files["nodes"], columns=TableColumns(encode={"x": "raw"}))
    features = Graph.open(tmp_path / "graph").features
    np.testing.assert_array_equal(features[:, 0], np.arange(120_000) % 7)


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_quote_that_nothing_closes(tmp_path: Path, end: str) -> None:
    rows = "\n".join(f"{number},{chr(34) if number == 2 else ''}word" for number in range(9))
    files = written(tmp_path, nodes=f"x,y\n{rows}{end}")
    with pytest.warns(DataWarning, match=r"nodes\.csv.*'word\\n3,word.* never closed\?"):
        convert(tmp_path / "graph", edges=RING[:, :1], nodes=files["nodes"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_quote_that_the_last_line_closes(tmp_path: Path, end: str) -> None:
    files = written(tmp_path, nodes=f'x,y\n1,a\n2,"b\n"{end}')
    convert(tmp_path / "graph", edges=RING[:, :1], nodes=files["nodes"])


@pytest.mark.parametrize(
    ("nodes", "swallowed"),
    [
        ('key,x,note\na,1,"one\nb,2,"two"\nc,3,z\n', "note"),  # closed by the quote that opens another value
        ('key,x,note\na,1,"one\nb,2,two\nc,3,"\nd,4,z\n', "note"),  # by one that stands alone
        ('key,note,x\na,"one,1\nb,"two",2\nc,z,3\n', "note"),  # in the middle: the first row has x of the second
        ('key;note;name\na;"one;A\r\nb;"two";B\r\nc;z;C\r\n', "note"),  # nothing but text
        ('key,name,note\na,A,"one\nb,B,two\nc,C,three"\nd,D,z\n', "note"),
        ('key,at,note\na,2024-01-01,"one\nb,2024-01-02,6"\nc,2024-01-03,z\n', "note"),
        ('key,x,note\na,1,"one\nb,2,two\nc,NA,2\nd,4,"\ne,5,z\n', "note"),  # a row that it holds lacks a number
        ('src,dst,x\n1,2,"3\n2,3,4"\n3,1,5\n', "x"),  # the file's last column is looked at, whatever it holds
    ],
)
def test_a_quote_that_a_later_one_closes(tmp_path: Path, nodes: str, swallowed: str) -> None:
    files = written(tmp_path, nodes=nodes)
    with pytest.warns(DataWarning, match=rf"the row at line 2 of .*nodes\.csv has other rows in its '{swallowed}'"):
        convert(tmp_path / "graph", edges=RING[:, :1], nodes=files["nodes"])


@pytest.mark.parametrize(
    "texts",
    [
        ["dear all,\nthe price, in euros, is 5,\nyours, Bob", "two\n\nparagraphs", "x, y\nz, w"],
        ["a list:\n1, 2, 3\n4, 5, 6", "a 6\" pipe,\nand a 4\" one", "1,2\n3,4\n5,6"],
        ['"quoted, by people\nwho cite", one says', "Main Street 12\nSpringfield, IL", "\n", "a,b\n"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.filterwarnings("error:.*quote opened")
@pytest.mark.filterwarnings("ignore:.*left out of the graph")
def test_lines_that_people_write(tmp_path: Path, texts: list[str], place: int) -> None:
    path, num_rows = tmp_path / "nodes.csv", 40
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, row in enumerate([["id", "x", "when"], *([n, n / 2, "2024-01-31"] for n in range(num_rows))]):
            row.insert(place, "note" if number == 0 else texts[number % len(texts)])
            writer.writerow(row)
    convert(tmp_path / "graph", edges=RING[:, :1], nodes=path)
    assert Graph.open(tmp_path / "graph").num_nodes == num_rows


def test_columns_of_text_of_one_name(tmp_path: Path) -> None:
    files = written(tmp_path, nodes='x,note,note\n1,"a\nb",c\n2,d,e\n')
    told = refused(tmp_path, edges=RING[:, :1], nodes=files["nodes"])
    assert "expected one column 'note'" in told


def test_ids_that_are_wrong_are_told_with_their_lines(tmp_path: Path) -> None:
    """Rows may span lines, and empty lines are no rows."""
    nodes = 'id,note\nann,"two\nlines"\n\nbob,x\n'
    folder = tmp_path / "parts"
    folder.mkdir()
    written(folder, a=nodes, b="id,note\nann,y\n")
    files = written(
        tmp_path, nodes=nodes, empty=nodes + ",y\n", edges="src,dst\nann,bob\nann,\n", other="src,dst\nann,eve\n"
    )
    told = refused(tmp_path, edges=files["edges"], nodes=files["nodes"])
    assert f"found null in edge 1 (counted from 0), line 3 of {files['edges']}; fill it in" in told
    told = refused(tmp_path, edges=files["other"], nodes=files["nodes"])
    assert f"found 'eve' in edge 0 (counted from 0), line 2 of {files['other']}, which no node has" in told
    told = refused(tmp_path, edges=files["other"], nodes=files["empty"])
    assert f"found null in row 2 (counted from 0), line 6 of {files['empty']}; fill it in" in told
    told = refused(tmp_path, edges=files["other"], nodes=folder)
    assert f"in row 0, line 2 of {folder / 'a.csv'} and in row 2, line 2 of {folder / 'b.csv'} (rows" in told


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (
            "id, x, label\n1, 2, 0\n",
            r"without spaces around them, found ' label' in .*nodes\.csv; .* sed 's/ \*, \*/,/g'",
        ),
        ("id,label \n1,0\n", "found 'label ' in"),
        ("x,label\n1,0,\n2,1,\n", r"found 3 in line 2: '1,0,'; where rows end in a delimiter, .*: add ',' to it"),
        ("x,label", r"expected rows below the names of columns in .*nodes\.csv, found none"),
        ("id,x\n1.0,2\n", r"found double: numbers with a point; .*types=id:string"),
    ],
)
def test_what_people_write_beside_values(tmp_path: Path, nodes: str, told: str) -> None:
    files = written(tmp_path, nodes=nodes, edges="src,dst\n1,1\n")
    assert re.search(told, refused(tmp_path, edges=files["edges"], nodes=files["nodes"]))


def test_a_name_with_a_space_that_was_meant(tmp_path: Path) -> None:
    files = written(tmp_path, nodes="x, label,split\n1,0,train\n2,1,\n")
    convert(tmp_path / "graph", edges=RING[:, :1], nodes=files["nodes"], columns=TableColumns(label=" label"))
    assert Graph.open(tmp_path / "graph").labels.tolist() == [0, 1]


@pytest.mark.parametrize("nodes", ["0.5,1.5\n2.5,3.5\n", "7,0.25,train\n8,0.5,valid\n", "9,3\n1,2\n"])
def test_a_first_line_that_is_a_row(tmp_path: Path, nodes: str) -> None:
    files = written(tmp_path, nodes=nodes)
    first = nodes.partition("\n")[0]
    with pytest.warns(DataWarning, match=rf"took the first line of .*nodes\.csv as the names of columns: '{first}'"):
        convert(tmp_path / "graph", edges=RING[:, :0], nodes=files["nodes"])


@pytest.mark.parametrize("names", ["0,1,2", "1,2,3", "2010,2015,2020", "id,0,1", "nan,inf,x", "x1,x2,x3"])
@pytest.mark.filterwarnings("error:.*took the first line")
def test_names_that_count(tmp_path: Path, names: str) -> None:
    files = written(tmp_path, nodes=f"{names}\n4,1,2\n3,4,4\n")
    convert(tmp_path / "graph", edges=RING[:, :0], nodes=files["nodes"])


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_files_that_are_not_compressed_as_their_names_say(tmp_path: Path, suffix: str) -> None:
    plain, packed = tmp_path / f"nodes.csv{suffix}", tmp_path / "nodes.csv"
    plain.write_text(NODES)
    told = refused(tmp_path, edges=RING, nodes=plain)
    assert told.endswith(f"found plain text in {plain}: rename it to nodes.csv")
    with pa.CompressedOutputStream(str(packed), pa.Codec.detect(plain.name).name) as file:
        file.write(NODES.encode() * 100)
    whole = packed.read_bytes()
    told = refused(tmp_path, edges=RING, nodes=packed)
    assert f"expected a CSV file at {packed}, found a" in told
    assert suffix in told
    plain.write_bytes(whole[:-6])
    assert "was the download complete? Fetch it again" in refused(tmp_path, edges=RING, nodes=plain)
    pq.write_table(pa.table({"x": [1.5]}), packed)
    assert "found a Parquet file" in refused(tmp_path, edges=RING, nodes=packed)
