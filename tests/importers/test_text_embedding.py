"""Text as vectors: hashes are what docs/FORMAT.md says, by a Python that shares no code; functions are the user's."""

from __future__ import annotations

import sqlite3
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from table_features import x_of

import diskgnn
from diskgnn import TableColumns
from diskgnn._native import hash_texts
from diskgnn.errors import ConfigError, InputError
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.importers.tables.text_embedding import hashes

_BITS = (1 << 64) - 1


def reference(text: str, width: int) -> list[int]:
    """The page's words, one after the other."""
    counts = [0] * width
    for word in words(text):
        parts = {(first, length) for length in (3, 4, 5) for first in range(len(word) - length + 1)}
        for first, length in sorted(parts - {(0, len(word))} | {(0, len(word))}):
            state = 0
            for character in word[first : first + length]:
                state = (state ^ ord(character)) * 0x9E3779B97F4A7C15 & _BITS
            drawn = splitmix64(state)
            counts[(drawn >> 32) * width >> 32] += 1 if drawn & 1 else -1
    total = sum(map(abs, counts))
    return [round_half_even(127 * float(np.sqrt(abs(count) / total))) * (1 if count > 0 else -1) if count else 0
            for count in counts]  # fmt: skip


def words(text: str) -> list[str]:
    found, word = [], ""
    for character in unicodedata.normalize("NFC", text).lower() + " ":
        if is_of_word(ord(character)):
            word += character
        else:
            found += [f"<{word}>"] if word else []
            word = ""
    return found


def is_of_word(code: int) -> bool:
    if code < 0x80:
        return chr(code).isalnum()
    if code < 0xC0:
        return chr(code) in "\u00aa\u00b5\u00ba"
    excepted = [(0xD7, 0xD7), (0xF7, 0xF7), (0x2000, 0x2BFF), (0x2E00, 0x2E7F), (0x3000, 0x303F), (0xFE10, 0xFE1F),
                (0xFE30, 0xFE6F), (0xFF00, 0xFF0F), (0xFFF0, 0xFFFF)]  # fmt: skip
    return not any(first <= code <= last for first, last in excepted)


def splitmix64(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _BITS
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _BITS
    return state ^ state >> 31


def round_half_even(number: float) -> int:
    return int(np.rint(number))


def hashed(texts: list[str], width: int) -> list[list[int]]:
    found: list[list[int]] = hashes(pa.array(texts, pa.string()), width).tolist()
    return found


@given(st.lists(st.text(max_size=40), max_size=5), st.sampled_from([1, 2, 7, 64, 300]))
def test_hashes_are_what_the_page_says(texts, width):
    texts = [text for text in texts if text.lower() == "".join(map(str.lower, text))]  # letters become one letter
    texts = [text for text in texts if len(text.lower()) == len(text)]
    assert hashed(texts, width) == [reference(text, width) for text in texts]


@pytest.mark.parametrize(
    "text",
    [
        "", " .,;", "a", "ab", "The quick, brown fox. THE QUICK", "x" * 300, "naïve Café — ½ ×÷ ªµº",
        "日本語のテキスト、です。",
        "a\u0308pfel äpfel", "😀 emoji😀", "tab\tnew\nline", "under_score-dash'apostrophe", "word " * 50, "<a> >b<",
    ],
)  # fmt: skip
def test_texts_of_all_kinds(text):
    for width in (5, 256):
        assert hashed([text], width) == [reference(text, width)]


def test_slices_nulls_and_no_texts():
    texts = pa.array(["one", None, "two words", "ünö"])
    found = hashes(texts[2:].fill_null(""), 16)
    assert found.tolist() == [reference("two words", 16), reference("ünö", 16)]
    assert hashes(pa.array([], pa.string()), 16).shape == (0, 16)
    assert not hashes(pa.array([""]), 16).any()


def test_vectors_have_length_one_and_alike_texts_are_close():
    texts = ["wireless mouse with usb receiver", "Wireless mouses, with USB receivers!", "leather boots for winter"]
    one, alike, other = hashes(pa.array(texts), 1024).astype(float) / 127
    np.testing.assert_allclose([np.linalg.norm(each) for each in (one, alike, other)], 1, atol=0.05)
    assert one @ alike > 0.6
    assert abs(one @ other) < 0.2


def test_bytes_that_are_no_utf8_do_no_harm():
    broken = [b"\xff\xfe", b"ab\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf x", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]
    codes = np.empty((len(broken), 8), np.int8)
    offsets = np.cumsum([0, *map(len, broken)]).astype(np.int64)
    hash_texts(offsets, np.frombuffer(b"".join(broken), np.uint8), codes)
    assert codes[1].tolist() == reference("ab", 8)
    assert codes[4].tolist() == reference("x", 8)


REVIEWS = {
    "text": ["Great mouse", None, "", "boots — warm"], "stars": [5.0, 1.0, 3.0, 4.0], "item": [0, 1, 1, 0],
}  # fmt: skip


def folder(tmp_path: Path) -> Path:
    tmp_path.mkdir(exist_ok=True)
    pq.write_table(pa.table(REVIEWS), tmp_path / "reviews.parquet")
    pq.write_table(pa.table({"id": [0, 1], "price": [1.0, 2.0]}), tmp_path / "items.parquet")
    (tmp_path / "relational.yaml").write_text(
        "tables:\n  reviews: {file: reviews.parquet, fkeys: {item: items}}\n  items: {file: items.parquet, pkey: id}\n"
    )
    return tmp_path


def expected(width: int, column: list[str | None] = REVIEWS["text"]) -> np.ndarray:  # type: ignore[assignment]
    stars = np.array(REVIEWS["stars"])
    texts = np.array([reference(text or "", width) for text in column], np.float32) / np.float32(127)
    return np.concatenate([texts, ((stars - stars.mean()) / stars.std())[:, None]], axis=1).astype(np.float32)


def features(graph: Path, node_type: str = "reviews") -> np.ndarray:
    return x_of(Graph.open(graph).nodes[node_type])


def test_a_relational_folder(tmp_path):
    source = folder(tmp_path / "shop")
    done = run("convert", tmp_path / "graph", "--from", "relational", source, "--embed-text", "reviews.text=hash:12")
    assert "hash:12" in done.stdout
    np.testing.assert_allclose(features(tmp_path / "graph"), expected(12), rtol=1e-6)
    yaml = source / "relational.yaml"
    yaml.write_text(yaml.read_text().replace("item: items}", "item: items}, columns: {text: 'hash:12'}"))
    diskgnn.convert(tmp_path / "other", source=source, format="relational")
    assert features(tmp_path / "other").tobytes() == features(tmp_path / "graph").tobytes()
    inspected = run("inspect", tmp_path / "graph").stdout
    assert "hash:12" in inspected


def test_a_database(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.executescript("CREATE TABLE items (id INTEGER PRIMARY KEY, price REAL);"
                                 "CREATE TABLE reviews (text TEXT, stars REAL, item INTEGER REFERENCES items (id));"
                                 "INSERT INTO items VALUES (0, 1), (1, 2)")  # fmt: skip
        rows = zip(REVIEWS["text"], REVIEWS["stars"], REVIEWS["item"], strict=True)
        connection.executemany("INSERT INTO reviews VALUES (?, ?, ?)", rows)
    connection.close()
    columns = TableColumns(encode={"text": "hash:12"})
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "shop.db", columns=columns)
    np.testing.assert_allclose(features(tmp_path / "graph"), expected(12), rtol=1e-6)


def test_a_table_of_nodes(tmp_path):
    pq.write_table(pa.table({name: REVIEWS[name] for name in ("text", "stars")}), tmp_path / "nodes.parquet")
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    run("convert", tmp_path / "graph", "--nodes", tmp_path / "nodes.parquet", "--edges", tmp_path / "edges.npy",
        "--encode", "text=hash:12")  # fmt: skip
    np.testing.assert_allclose(features(tmp_path / "graph", "node"), expected(12), rtol=1e-6)


@pytest.fixture
def embedders(tmp_path, monkeypatch):
    """A module of the user's."""
    (tmp_path / "embedders.py").write_text(
        "import time\nimport numpy as np\ncalls = []\n"
        "def lengths(texts):\n    calls.append(len(texts))\n    return [[len(text), 1] for text in texts]\n"
        "def alone(texts):\n    number = len(calls)\n    calls.append(texts[0])\n    time.sleep(0.01)\n"
        "    assert len(calls) == number + 1\n    return np.ones((len(texts), 4096))\n"
        "def versioned(texts):\n    return np.ones((len(texts), 3))\nversioned.version = '2'\n"
        "def wrong(texts):\n    return np.ones(len(texts))\n"
        "def infinite(texts):\n    return np.full((len(texts), 2), np.inf)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("embedders", None)


@pytest.mark.usefixtures("embedders")
def test_a_function_of_the_users(tmp_path):
    source = folder(tmp_path / "shop")
    columns = TableColumns(encode={"reviews.text": "embedders:lengths"})
    diskgnn.convert(tmp_path / "graph", source=source, columns=columns)
    assert features(tmp_path / "graph")[:, :2].tolist() == [[11, 1], [0, 1], [0, 1], [12, 1]]
    columns = TableColumns(encode={"reviews.text": "embedders:versioned"})
    diskgnn.convert(tmp_path / "graph", source=source, columns=columns, overwrite=True)
    (column, *_) = Graph.open(tmp_path / "graph").config.known_columns["reviews"]
    assert (column.embedder, column.width) == ("embedders:versioned@2", 3)


@pytest.mark.usefixtures("embedders")
def test_a_function_is_called_in_order_and_never_twice_at_once(tmp_path):
    texts = [f"text {number:04}" for number in range(600)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "nodes.parquet")
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    columns = TableColumns(encode={"text": "embedders:alone"})
    diskgnn.convert(tmp_path / "graph", edges=tmp_path / "edges.npy", nodes=tmp_path / "nodes.parquet", columns=columns)
    calls = sys.modules["embedders"].calls
    assert len(calls) > 3
    assert calls[1:] == sorted(calls[1:])  # the first one asks how many numbers there are


@pytest.mark.usefixtures("embedders")
@pytest.mark.parametrize(
    ("encoding", "error", "told"),
    [
        ("hash:0", ConfigError, "expected hash:D with 1 to 4096 numbers, such as hash:256, found hash:0"),
        ("hash:5000", ConfigError, "found hash:5000"), ("hash:", ConfigError, "found hash:"),
        ("text", ConfigError, "expected number, raw, time, boolean, category, vector, hash:256, module:function, none"),
        ("hsh:32", ConfigError, "expected hash:D, such as hash:256, or module:function, found 'hsh:32'"),
        ("nowhere:f", ConfigError, "nowhere:f cannot be imported here"),
        ("embedders:wrong", InputError, r"expected \[4, D\] numbers of embedders:wrong, found \[4\]"),
        ("embedders:infinite", InputError, "returned numbers that are not finite"),
    ],
)  # fmt: skip
def test_what_is_no_embedder(tmp_path, encoding, error, told):
    with pytest.raises(error, match=told):
        diskgnn.convert(
            tmp_path / "graph",
            source=folder(tmp_path / "shop"),
            columns=TableColumns(encode={"reviews.text": encoding}),
        )
    assert not (tmp_path / "graph").exists()


def test_columns_that_cannot_be_text(tmp_path):
    source = folder(tmp_path / "shop")
    with pytest.raises(InputError, match=r"reviews\.stars: expected text, found double"):
        diskgnn.convert(tmp_path / "graph", source=source, columns=TableColumns(encode={"stars": "hash:8"}))
    with pytest.raises(ConfigError, match=r"encode: expected COLUMN or TABLE\.COLUMN of the tables that are no keys"):
        diskgnn.convert(tmp_path / "graph", source=source, columns=TableColumns(encode={"item": "hash:8"}))


def test_rows_that_come_later_are_embedded_alike(tmp_path):
    source = folder(tmp_path / "shop")
    columns = TableColumns(encode={"reviews.text": "hash:12"})
    diskgnn.convert(tmp_path / "graph", source=source, columns=columns)
    pq.write_table(pa.table(REVIEWS | {"text": ["boots", "Great mouse", "x", None]}), source / "reviews.parquet")
    diskgnn.convert(tmp_path / "later", source=source, encoding_of=tmp_path / "graph")
    np.testing.assert_allclose(
        features(tmp_path / "later"), expected(12, ["boots", "Great mouse", "x", None]), rtol=1e-6
    )
    with pytest.raises(ConfigError, match=r"text: expected hash:12, as in .*, found hash:8"):
        diskgnn.convert(tmp_path / "other", source=source, encoding_of=tmp_path / "graph",
                        columns=TableColumns(encode={"reviews.text": "hash:8"}))  # fmt: skip


def test_a_killed_run_goes_on_with_no_other_version_of_a_function(tmp_path, monkeypatch):
    rows = 20_000
    pq.write_table(pa.table({"text": ["x"] * rows}), tmp_path / "nodes.parquet")
    np.save(tmp_path / "edges.npy", np.array([[0], [1]]))
    (tmp_path / "versions.py").write_text(
        "import time\nimport numpy as np\ncalls = []\n"
        "def embed(texts):\n    calls.append(len(texts))\n"
        "    if embed.version == '1' and sum(calls) > 15_000:\n        raise KeyboardInterrupt\n"
        "    return np.full((len(texts), 64), float(embed.version))\nembed.version = '1'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {"edges": tmp_path / "edges.npy", "nodes": tmp_path / "nodes.parquet",
             "columns": TableColumns(encode={"text": "versions:embed"})}  # fmt: skip
    with faults.pretending("unit.bytes", 1), pytest.raises(KeyboardInterrupt):
        diskgnn.convert(tmp_path / "graph", **given)
    sys.modules["versions"].embed.version = "2"
    diskgnn.convert(tmp_path / "graph", **given)
    sys.modules.pop("versions")
    assert (features(tmp_path / "graph", "node") == 2).all()


def test_a_tensor_is_taken_and_what_is_no_number_is_not(tmp_path, monkeypatch):
    (tmp_path / "tensors.py").write_text(
        "import torch\n"
        "def graded(texts):\n    return torch.ones(len(texts), 3, dtype=torch.bfloat16, requires_grad=True)\n"
        "def imaginary(texts):\n    return [[1j]] * len(texts)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = folder(tmp_path / "shop")
    diskgnn.convert(tmp_path / "graph", source=source, columns=TableColumns(encode={"reviews.text": "tensors:graded"}))
    assert features(tmp_path / "graph")[:, :3].tolist() == [[1, 1, 1]] * 4
    with pytest.raises(InputError, match=r"reviews\.text: expected numbers of tensors:imaginary, found list .*complex"):
        diskgnn.convert(
            tmp_path / "other", source=source, columns=TableColumns(encode={"reviews.text": "tensors:imaginary"})
        )
    sys.modules.pop("tensors")


def test_text_that_is_no_utf8_is_refused():
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 3], np.int32)), pa.py_buffer(b"a\xffb")]
    )
    with pytest.raises(InputError, match=r"notes\.text: expected text in UTF-8, found other bytes"):
        hashes(broken, 8, "notes.text")
