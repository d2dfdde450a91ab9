"""Random tables of given kinds: rows and statistics are those that torch_frame and RelBench make of the data frames."""

from __future__ import annotations

import math
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diskgnn
from diskgnn.errors import DataWarning
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import TableColumns
from diskgnn.importers.source_formats.relational_source import RelationalSource

torch_frame = pytest.importorskip("torch_frame", reason="compared with torch_frame: pip install pytorch-frame")
pd = pytest.importorskip("pandas")
from torch_frame.config import TextEmbedderConfig  # noqa: E402
from torch_frame.data import Dataset  # noqa: E402
from torch_frame.data.stats import StatType  # noqa: E402

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
NUMBERS = st.one_of(
    st.floats(-1e100, 1e100), st.integers(-50, 50).map(float), st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
)
WORDS = st.one_of(st.sampled_from(["a", "b", " b", "", "B", "ä"]), st.text(max_size=3))
LISTED = st.one_of(st.none(), st.lists(st.one_of(WORDS, st.none()), max_size=5))
MOMENTS = st.one_of(
    st.none(), st.integers(-9 * 10**15, 9 * 10**15)
)  # microseconds within what pandas has nanoseconds of
COLUMNS: dict[str, tuple[str, st.SearchStrategy[Any], Any]] = {
    "whole": ("numerical", st.integers(-(2**60), 2**60), np.int64),
    "small": ("numerical", st.integers(-100, 100), np.int16),
    "number": ("numerical", NUMBERS, np.float64),
    "truth": ("categorical", st.booleans(), np.bool_),
    "maybe": ("categorical", st.one_of(st.booleans(), st.none()), object),
    "word": ("categorical", st.one_of(WORDS, st.none()), object),
    "code": ("categorical", st.integers(-3, 3), np.int64),
    "level": ("categorical", st.sampled_from([0.0, -0.0, 1.5, 1e300, math.nan]), np.float64),
    "moment": ("timestamp", MOMENTS, "datetime64[us]"),
    "nanosecond": ("timestamp", MOMENTS, "datetime64[ns]"),
    "day": ("timestamp", MOMENTS, "datetime64[s]"),
    "tags": ("multicategorical", LISTED, object),
    "face": ("embedding", st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), object),
    "text": ("text_embedded", WORDS, object),
}


def embed(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[len(text), sum(map(ord, text)), -1.5] for text in texts], dtype=torch.float32)


sys.modules["embedder_like_torch_frame"] = SimpleNamespace(embed=embed)  # type: ignore[assignment]


def series(values: list[Any], dtype: Any) -> Any:
    if isinstance(dtype, str):
        found = np.array(["NaT" if each is None else each for each in values], "datetime64[us]")
        return pd.Series(found.astype(dtype))
    return pd.Series(values, dtype=dtype)


@st.composite
def databases(draw: Any) -> dict[str, Any]:
    """Tables with keys of each other and of themselves; some keys are null or of no row. The first has rows."""
    names = draw(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,4}", fullmatch=True), min_size=1, max_size=3, unique=True))
    sizes = [draw(st.integers(1, 9)), *(draw(st.integers(0, 9)) for _ in names[1:])]
    tables, step = {}, draw(st.sampled_from([1, 3]))  # primary keys are numbers of rows, or others
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        frame, kinds, fkeys = {}, {}, {}
        for column in draw(st.lists(NAMES, max_size=12, unique=True)):
            if column in ("id", "at") or column.startswith("to_"):
                continue
            kinds[column], values, dtype = COLUMNS[draw(st.sampled_from([*COLUMNS]))]
            drawn = draw(st.lists(values, min_size=size, max_size=size))
            if kinds[column] == "multicategorical" and not any(tag is not None for each in drawn for tag in each or []):
                drawn = [None] * size  # torch_frame raises of lists without any value
            frame[column] = series(drawn, dtype)
        frame["id"] = pd.Series([step * row for row in range(size)], dtype=np.int64)
        if draw(st.booleans()):
            moments = draw(st.lists(st.integers(0, 10**9), min_size=size, max_size=size))
            frame["at"] = series([10**6 * each for each in moments], "datetime64[ns]")
            if draw(st.booleans()):
                kinds["at"] = "timestamp"
        others = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) + (names[:1] if number == 0 else [])
        for other in dict.fromkeys(others):
            most = sizes[names.index(other)]
            keys = st.one_of(st.none(), st.integers(0, most).map(step.__mul__))  # the last is of no row
            frame[f"to_{other}"] = pd.Series(draw(st.lists(keys, min_size=size, max_size=size)), dtype="Int64")
            fkeys[f"to_{other}"] = other
        if draw(st.booleans()):
            kinds |= {"id": "numerical", **dict.fromkeys(fkeys, "numerical")}  # of keys nothing is kept
        tables[name] = SimpleNamespace(
            df=pd.DataFrame(frame), pkey_col="id", fkey_col_to_pkey_table=fkeys,
            time_col="at" if "at" in frame else None, kinds=kinds,
        )  # fmt: skip
    return tables


def materialized(table: Any) -> Any:
    """As RelBench's `make_pkey_fkey_graph` does it, with a column of ones where no others are left."""
    frame, keys = table.df, {table.pkey_col, *table.fkey_col_to_pkey_table}
    stypes = {column: torch_frame.stype(kind) for column, kind in table.kinds.items() if column not in keys}
    if not stypes:
        frame, stypes = pd.DataFrame({"__const__": np.ones(len(frame))}), {"__const__": torch_frame.numerical}
    return Dataset(frame, stypes, col_to_text_embedder_cfg=TextEmbedderConfig(embed)).materialize()


def as_text(value: Any) -> str:
    found: str = pa.scalar(value + 0.0 if isinstance(value, float) else value).cast(pa.string()).as_py()
    return found


def assert_same_statistics(found: dict[Any, Any], expected: dict[Any, Any], scale: float) -> None:
    assert found.keys() == expected.keys()
    for kind, value in expected.items():
        if kind in (StatType.COUNT, StatType.MULTI_COUNT):  # torch_frame has values of equal counts in any order
            assert found[kind][1] == value[1]
            typed = [{(type(each), each): count for each, count in zip(*counted, strict=True)}
                     for counted in (found[kind], value)]  # fmt: skip
            assert typed[0] == typed[1]
        elif kind in (StatType.MEAN, StatType.STD, StatType.QUANTILES):
            np.testing.assert_allclose(found[kind], value, rtol=1e-9, atol=1e-9 * scale, err_msg=str(kind))
        elif isinstance(value, torch.Tensor):
            assert torch.equal(found[kind], value), kind
        else:
            assert found[kind] == value, kind


def values_of(codes: list[int], values: list[Any]) -> list[str | None]:
    return [None if code < 0 else as_text(values[code]) for code in codes]


def assert_same_rows(found: Any, expected: Any, stats: dict[str, Any], expected_stats: dict[str, Any]) -> None:
    assert found.num_rows == expected.num_rows
    assert found.col_names_dict == expected.col_names_dict
    for stype, wanted in expected.feat_dict.items():
        values = found.feat_dict[stype]
        assert type(values) is type(wanted)
        if stype in (torch_frame.categorical, torch_frame.multicategorical):
            count = StatType.COUNT if stype is torch_frame.categorical else StatType.MULTI_COUNT
            for number, column in enumerate(found.col_names_dict[stype]):
                known, known_there = stats[column][count], expected_stats[column][count]
                for row in range(found.num_rows):
                    codes, codes_there = (torch.atleast_1d(each[row, number]).tolist() for each in (values, wanted))
                    assert len(codes) == len(codes_there)
                    assert {*values_of(codes, known[0])} == {*values_of(codes_there, known_there[0])}
                    if len({*known[1]}) == len(known[1]):
                        assert sorted(codes) == sorted(codes_there)
        elif stype is torch_frame.embedding:
            assert torch.equal(values.values, wanted.values)
            assert torch.equal(values.offset, wanted.offset)
        else:
            torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)


def convert(out: Path, tables: dict[str, Any], **options: Any) -> Graph:
    kinds = {name: {column: torch_frame.stype(kind) for column, kind in table.kinds.items()}
             for name, table in tables.items()}  # fmt: skip
    encode = {f"{name}.{column}": "embedder_like_torch_frame:embed" for name, table in tables.items()
              for column, kind in table.kinds.items() if kind == "text_embedded"}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        diskgnn.convert(
            out, source=RelationalSource.of(SimpleNamespace(table_dict=tables), kinds=kinds),
            options={"keep_columns": True, "statistics": "all", **options}, columns=TableColumns(encode=encode),
            overwrite=True, progress=False,
        )  # fmt: skip
    return Graph.open(out)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tables=databases())
def test_tables_are_those_of_torch_frame(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, Any]) -> None:
    """Codes, calendars, embeddings and float32 numbers bit for bit, statistics to 1e-9, lists as sets."""
    folder = tmp_path_factory.mktemp("like")
    graph = convert(folder / "graph", tables)
    assert {*graph.nodes} == {name for name, table in tables.items() if len(table.df)}
    for name, nodes in graph.nodes.items():
        expected, table = materialized(tables[name]), tables[name]
        features = np.empty(nodes.num_nodes) if nodes.config.is_constant else nodes.features
        stats = nodes.col_stats()
        assert stats.keys() == expected.col_stats.keys()
        for column, of_column in expected.col_stats.items():
            numbers = table.df.get(column, pd.Series([1.0]))
            finite = numbers[np.isfinite(numbers)] if pd.api.types.is_numeric_dtype(numbers) else numbers[:0]
            scale = float(finite.abs().max()) if len(finite) and finite.dtype != bool else 0.0
            assert_same_statistics(stats[column], of_column, scale)
        assert_same_rows(nodes.tensor_frame(features), expected.tensor_frame, stats, expected.col_stats)
        for column, other in table.fkey_col_to_pkey_table.items():
            if other in graph.nodes:
                assert_same_edges(graph, name, column, other, tables)
    shutil.rmtree(folder)


def assert_same_edges(graph: Graph, table: str, column: str, other: str, tables: dict[str, Any]) -> None:
    ids = tables[other].df["id"].tolist()
    expected = [(row, ids.index(key)) for row, key in enumerate(tables[table].df[column].fillna(-1)) if key in ids]
    edges = graph.edges[table, f"f2p_{column}", other]
    ends = np.repeat(np.arange(graph.nodes[other].num_nodes), np.diff(edges.indptr))
    assert sorted(zip(edges.indices.tolist(), ends.tolist(), strict=True)) == sorted(expected)
