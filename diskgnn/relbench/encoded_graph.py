"""A graph directory of a database, whose rows torch_frame encodes, as PyG has a graph."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import torch_frame
from torch_frame.data.stats import StatType
from torch_geometric.data import HeteroData

from diskgnn.batches.tensor_frames import STYPES, stype_of
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.formats.graph_config import ALL_ROWS
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import kept_tables
from diskgnn.importers.containers.rows import EdgeStream, RowSource
from diskgnn.importers.convert import convert
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_formats.table_keys import key_word, type_word
from diskgnn.progress.reporter import Reporter
from diskgnn.pyg.disk_frames import DiskFrame, mapped_times
from diskgnn.pyg.prepared_cache import Cache
from diskgnn.relbench.frame_encoding import FrameEncoding
from diskgnn.relbench.stored_tables import StoredTable, tables_of_database, tables_of_folder
from diskgnn.specs.schema import LONGEST_NAME, EdgeType, TableColumn
from diskgnn.stores.locations import local
from diskgnn.version import VERSION
from diskgnn.work.cache_folder import Use

_PROBED = 16  # rows of each column of text that tell embedders apart
_NO_TIME = -(2**63) // 10**9  # what a missing time becomes in RelBench: earlier than all others
Kinds = Mapping[str, Mapping[str, torch_frame.stype]]
Statistics = dict[str, dict[str, dict[StatType, Any]]]  # by table and column
ColumnOf = tuple[str, str]  # (table, column)


def encoded_graph(
    db: Any, kinds: Kinds, embedder: Any, until: Any, removed: Collection[ColumnOf], cache: Cache
) -> tuple[HeteroData, Statistics]:
    """Returns (data, statistics by table and column) of a Database or a folder; see `make_pkey_fkey_graph`.

    Raises:
        ConfigError, InputError: see there.
    """
    if isinstance(db, str | os.PathLike):
        folder = local(db, "db")
        if not folder.is_dir():
            raise ConfigError(
                f"db: expected a Database, a folder of Parquet tables or a graph directory, found {folder}"
            )
        tables = tables_of_folder(folder, None if until is None else pd.Timestamp(until))
    elif until is not None:
        raise ConfigError("until: expected a folder of tables, whose later rows are to be left out, found a Database")
    else:
        tables = tables_of_database(db)
    _require_tables(removed, [each.name for each in tables])
    kinds = {each.name: _without_keys(each, kinds) for each in tables}
    graph, held = _make_graph(tables, kinds, embedder, cache)
    return _data(graph, kinds, removed, held)


def graph_of_tables(
    graph: Graph, kinds: Kinds | None, removed: Collection[ColumnOf], statistics: str
) -> tuple[HeteroData, Statistics]:
    """Returns (data, statistics by table and column) of a graph directory; see `make_pkey_fkey_graph`.

    Raises:
        ConfigError: its tables did not keep their columns, or lack some, or have other ones, or other stypes, than
            `kinds` says; or other `statistics`, or nobody said which.
    """
    _require_statistics(graph, statistics)
    _require_tables(removed, graph.nodes)
    if kinds is not None:
        _require_kinds(graph, kinds)
    return _data(graph, kinds or {}, removed, graph)


def _require_statistics(graph: Graph, asked: str) -> None:
    until = graph.config.statistics_until
    if until is None and kept_tables(graph):
        raise ConfigError(
            f"statistics: expected a graph that says of which rows they are, found none said in {graph.manifest.path}, "
            "as an earlier diskgnn wrote it; convert it again"
        )
    if until == ALL_ROWS and asked != "all":
        raise ConfigError(
            f"statistics: expected those of the rows up to val_timestamp, found those of all rows in "
            f"{graph.manifest.path}; convert it with val_timestamp and without statistics=all, or pass statistics='all'"
        )
    if isinstance(until, int) and asked == "all":
        moment = np.datetime64(until, "s") if graph.config.time_unit == "s" else until
        raise ConfigError(
            f"statistics: expected those of all rows, as RelBench has them, found those of rows up to {moment} in "
            f"{graph.manifest.path}; make it with `diskgnn convert --set statistics=all`, or pass "
            "statistics='validation' for those that it has"
        )


def _require_kinds(graph: Graph, kinds: Kinds) -> None:
    for name, table in kept_tables(graph):
        stypes = {each.name: stype_of(each) for each in table}
        given = {column: kind.parent.value for column, kind in kinds.get(name, {}).items()}
        for column, stype in stypes.items():
            if given.get(column) != stype:
                raise ConfigError(
                    f"col_to_stype_dict: expected {column!r} of {name} to be {stype}, as in {graph.manifest.path}, "
                    f"found {given.get(column)}; `diskgnn convert --set kinds=stypes.json` says stypes there"
                )
        keys = {each.name for each in graph.config.contents.read
                if each.of == name and (each.use == "ids" or each.use.startswith("edges to "))}  # fmt: skip
        if lacking := [column for column in given if column not in stypes and column not in keys]:
            raise ConfigError(
                f"col_to_stype_dict: expected columns that {name} has in {graph.manifest.path}, "
                f"{', '.join(stypes)}, found {lacking[0]!r}; `diskgnn convert --set kinds=stypes.json` with "
                "it there keeps it; or leave it out"
            )


def given_columns(given: Any) -> frozenset[ColumnOf]:
    """Returns the (table, column) pairs that RelBench's `remove_columns` has.

    Raises:
        ConfigError: it has something else.
    """
    found = list(given or ())
    for each in found:
        if isinstance(each, str) or len(each) != 2 or not all(isinstance(name, str) for name in each):
            raise ConfigError(f"remove_columns: expected (table, column) pairs, found {each!r}")
    return frozenset((table, column) for table, column in found)


def given_kinds(given: Mapping[str, Mapping[str, Any]]) -> Kinds:
    """Returns stypes by table and column, of which some may be named in text.

    Raises:
        ConfigError: there is no stype of this name.
    """
    found = dict[str, dict[str, torch_frame.stype]]()
    for table, columns in given.items():
        found[table] = {}
        for column, kind in columns.items():
            try:
                found[table][column] = torch_frame.stype(getattr(kind, "value", kind))
            except ValueError as error:
                known = ", ".join(each.value for each in torch_frame.stype)
                raise ConfigError(
                    f"col_to_stype_dict: {table}.{column}: expected an stype, {known}, found {kind!r}"
                ) from error
    return found


def _without_keys(table: StoredTable, kinds: Kinds) -> dict[str, torch_frame.stype]:
    if table.name not in kinds:
        raise ConfigError(f"col_to_stype_dict: expected the columns of table {table.name!r}, found none")
    keys = {table.pkey, *table.fkeys}
    return {column: kind for column, kind in kinds[table.name].items() if column not in keys}


def _require_tables(removed: Collection[ColumnOf], names: Collection[str]) -> None:
    if unknown := sorted({table for table, _ in removed} - {*names}):
        raise ConfigError(f"remove_columns: expected tables of {', '.join(names)}, found {unknown[0]!r}")


def _make_graph(tables: Sequence[StoredTable], kinds: Kinds, embedder: Any, cache: Cache) -> tuple[Graph, Use]:
    """Returns the graph directory of tables, made or found, which stays as long as its `Use`."""
    if not any(table.fkeys for table in tables):
        raise ConfigError("db: expected tables with foreign keys, found none: without them there is no graph")
    for table in tables:
        if type_word(table.name) != table.name:
            raise ConfigError(
                f"db: expected tables called by at most {LONGEST_NAME} letters A-Z, a-z, digits, '_' or '-', found "
                f"{table.name!r}: rename it, in the tasks, too"
            )
        if not table.num_rows:
            raise InputError(f"table {table.name}: expected rows, found none; leave the table out")
        table.require_numbered()
    said = {
        "tables": [
            (each.name, each.pkey, dict(each.fkeys), each.time, each.identity(_read(each, kinds))) for each in tables
        ],
        "kinds": {name: [(column, kind.value) for column, kind in of.items()] for name, of in kinds.items()},
        "embedder": _identity_of(embedder, tables, kinds),
        "torch_frame": torch_frame.__version__,
        "diskgnn": VERSION,  # another one may make something else of them
    }

    def make(path: Path, memory: int | str, reporter: Reporter) -> None:
        encodings = {each.name: FrameEncoding(each, kinds[each.name], embedder) for each in tables}
        num_rows = sum(each.num_rows for each in tables)
        cache.say(f"writing {num_rows} rows of {len(tables)} tables to {path}")
        convert(path, schema=_graph_input(tables, encodings), memory=memory, reporter=reporter)

    return cache.graph_of(said, make, _opened)


def _opened(path: Path) -> Graph:
    """Opens a graph directory of the cache folder.

    Raises:
        ArtifactError: it cannot be read, or does not have the statistics that `_make_graph` writes.
    """
    graph = Graph.open(path)
    if (found := graph.config.statistics_until) != ALL_ROWS:
        raise ArtifactError(
            f"{path}: expected statistics of {ALL_ROWS} rows, found {found}: an earlier diskgnn made it"
        )
    return graph


def _read(table: StoredTable, kinds: Kinds) -> list[str]:
    """Returns the columns of a table that are read."""
    keys = [each for each in (table.pkey, table.time, *table.fkeys) if each is not None]
    return list(dict.fromkeys([*keys, *(column for column in kinds[table.name] if column in table.names)]))


def _identity_of(embedder: Any, tables: Sequence[StoredTable], kinds: Kinds) -> object:
    """Names what embeds text: its class, what it says of its version, and, rounded, what it makes of some texts: one
    that all are asked, and the first ones of each column, as models may know no other words."""
    listed = [(each, column) for each in tables for column, kind in kinds[each.name].items()
              if kind.value == "text_embedded" and column in each.names]  # fmt: skip
    if embedder is None or not listed:
        return None
    function = embedder.text_embedder
    kind = function if hasattr(function, "__qualname__") else type(function)
    texts = ["The quick brown fox jumps over the lazy dog."]
    for table, column in listed:
        for rows in itertools.islice(table.chunks([column], _PROBED), 1):
            texts += rows[column].astype(str).tolist()
    made = torch.as_tensor(function(texts)).detach().float().cpu()
    digest = hashlib.blake2b((made.numpy().round(2) + 0.0).tobytes(), digest_size=8).hexdigest()
    return (f"{kind.__module__}:{kind.__qualname__}", str(getattr(function, "version", "")), list(made.shape), digest)


def _graph_input(tables: Sequence[StoredTable], encodings: Mapping[str, FrameEncoding]) -> GraphInput:
    sizes = {each.name: each.num_rows for each in tables}
    nodes = {
        each.name: NodeInput(
            each.num_rows, features=encodings[each.name].rows(), constant=encodings[each.name].record is None,
            times=None if each.time is None else _times(each, each.time), null_time="always",
        ) for each in tables
    }  # fmt: skip
    edges: dict[EdgeType, EdgeInput] = {}
    for table in tables:
        for column, referred in table.fkeys.items():
            if referred not in sizes:
                raise InputError(f"table {table.name}: {column!r} names rows of {referred!r}, which is not there")
            stream = _edges(table, column, sizes[referred])
            if (table.name, key_word(column), referred) in edges:
                raise InputError(
                    f"table {table.name}: two foreign keys would be called {key_word(column)}; rename {column!r}"
                )
            edges[table.name, key_word(column), referred] = EdgeInput(stream, reverse=True, foreign_key=True)
    if not any(table.time for table in tables):
        return GraphInput(nodes, edges, statistics_until=ALL_ROWS)
    return GraphInput(nodes, edges, time_unit="s", order="time", statistics_until=ALL_ROWS)


def _times(table: StoredTable, column: str) -> RowSource:
    """Returns seconds since 1970, as RelBench has them: what has no time is seen always."""

    def read() -> Any:
        for each in table.chunks([column], 1 << 16):
            yield _seconds(each[column])

    return RowSource(f"times of table {table.name}", table.num_rows, (), np.dtype(np.int64), read)


def _seconds(column: pd.Series) -> npt.NDArray[np.int64]:
    """Returns what RelBench's `to_unix_time` returns of nanoseconds; of numbers, these."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(np.int64))
    moments = pd.to_datetime(column, utc=True)
    seconds = moments.dt.tz_localize(None).to_numpy().astype("datetime64[s]").astype(np.int64)
    return np.asarray(np.where(moments.isna().to_numpy(), _NO_TIME, seconds))


def _edges(table: StoredTable, column: str, num_referred: int) -> EdgeStream:
    num_edges = sum(len(rows) for rows, _ in table.edges(column, num_referred))
    return EdgeStream(f"column {column!r} of table {table.name}", num_edges, lambda: table.edges(column, num_referred))


def _data(graph: Graph, kinds: Kinds, removed: Collection[ColumnOf], held: object) -> tuple[HeteroData, Statistics]:
    """Returns the graph as PyG has one, and the statistics of its columns, without those that are `removed`: its frames
    stand for rows on the disk, its times are mapped."""
    tables = {name: _in_order(table, kinds.get(name, {})) for name, table in kept_tables(graph)}
    # As in RelBench, whose cache has all columns: keys and what has no stype may be named, and are in no frame anyway.
    graph = graph.without([f"{name}.{each.name}" for name, table in tables.items() for each in table
                           if (name, each.name) in removed])  # fmt: skip
    statistics = {name: nodes.col_stats() for name, nodes in graph.nodes.items()}
    data = HeteroData()
    for name, nodes in graph.nodes.items():
        table = [each for each in tables.get(name, ()) if (name, each.name) not in removed]
        data[name].tf = frame = DiskFrame(graph, name, table)
        frame.held = held
        if (times := mapped_times(nodes)) is not None:
            data[name].time = times
    for edge_type in graph.edges:
        data[edge_type]
    return data, statistics


def _in_order(table: Sequence[TableColumn], kinds: Mapping[str, torch_frame.stype]) -> list[TableColumn]:
    """Returns columns in the order of torch_frame: by stypes, of which those that `kinds` has come first, in its order;
    then by name, those that were made of text behind the others."""

    def is_made(column: TableColumn) -> bool:
        kind = kinds.get(column.name)
        return column.embedder is not None or (kind is not None and kind is not kind.parent)

    names = {each.name for each in table}
    first = [kind.value for column, kind in kinds.items() if column in names and kind is kind.parent]
    order = list(dict.fromkeys([*first, *STYPES]))
    return sorted(table, key=lambda each: (order.index(stype_of(each)), is_made(each), each.name))
