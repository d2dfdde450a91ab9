"""The formats that `convert` reads by name. Each is a module beside this one.

A format turns a path, or an object in memory, into a `GraphInput`. It reads nothing but headers and small files then;
features and edges are streams (`rows.RowSource`, `rows.EdgeStream`) that `convert` reads later, within its memory.
The tables of a database are fetched before: its format reads their `Catalogue`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.containers.file_kinds import describe
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.graph_input import GraphInput
from diskgnn.importers.source_formats import (
    databases,
    dgl_graphs,
    diskgnn_original,
    duckdb,
    graphbolt,
    igb,
    mag240m,
    ogb,
    postgresql,
    pyg,
    relational,
    scipy_sparse,
    snap,
    sqlite,
)
from diskgnn.importers.source_formats.catalogue import Catalogue
from diskgnn.importers.source_formats.databases import Database, DatabaseFile
from diskgnn.importers.source_listing import AUTO, require_named
from diskgnn.importers.tables import duckdb_tables
from diskgnn.importers.tables.times import as_told
from diskgnn.specs.near_names import near_name
from diskgnn.stores.locations import is_database, local
from diskgnn.system.resources import Resources


@dataclass(frozen=True)
class SourceFormat:
    """One format of graphs."""

    name: str  # as in `convert --from NAME PATH`
    summary: str  # one line, for --help and errors
    recognises: Callable[[object], bool]  # of a Path or an object in memory; looks at names and first bytes only
    # read(source, **options); options are keywords of the types str, int, bool, Listed, Moment, or None.
    read: Callable[..., GraphInput]
    naming: tuple[str, ...] = ()  # options that name something of the source, noted as read in their words
    held_bytes: Callable[[object], int] = lambda source: 0  # of memory that `read` takes, if that is much
    database: Callable[[Any], Database] | None = None  # of a source whose tables are fetched, and `read` then

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """Returns what `read` takes beside the source, and what is said of columns of all tables."""
        return {name: given for name, given in self._keywords.items() if name not in _OF_TABLES}

    @property
    def has_tables(self) -> bool:
        """Returns True if `read` takes columns to leave out of its tables (`exclude`), how to `encode` others, the
        `encoding` of another graph, and how features are stored (`quantise`)."""
        return "exclude" in self._keywords

    @property
    def _keywords(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.read).parameters
        return {name: given for name, given in parameters.items() if given.kind is inspect.Parameter.KEYWORD_ONLY}


# What `read` takes beside options of the format.
_OF_TABLES = ("exclude", "encode", "encoding", "quantise", "resources")

FORMATS = {
    known.name: known
    for known in (
        SourceFormat("ogb", "a folder of OGB for node or link prediction: raw/ and split/", ogb.recognises, ogb.read,
                     held_bytes=ogb.held_bytes),
        SourceFormat("mag240m", "MAG240M of OGB-LSC: the folder mag240m_kddcup2021", mag240m.recognises, mag240m.read),
        SourceFormat("igb", "one size of IGB or IGBH: a folder with processed/", igb.recognises, igb.read),
        SourceFormat("graphbolt", "a data set of GraphBolt: a folder with metadata.yaml", graphbolt.recognises,
                     graphbolt.read, ("features", "edge_features", "weights", "times")),
        SourceFormat("dgl", "a DGLGraph, or a file that dgl.save_graphs wrote", dgl_graphs.recognises, dgl_graphs.read,
                     ("features", "labels", "weights", "times")),
        SourceFormat("diskgnn", "a folder NAME-offgs of the original DiskGNN", diskgnn_original.recognises,
                     diskgnn_original.read),
        SourceFormat("snap", "a text file with an edge per line, as SNAP has them", snap.recognises, snap.read),
        SourceFormat("pyg", "Data, HeteroData, their .pt file, (FeatureStore, GraphStore) of PyTorch Geometric",
                     pyg.recognises, pyg.read,
                     ("features", "labels", "times", "edge_times", "edge_features", "weights")),
        SourceFormat("scipy", "a matrix of scipy.sparse, or its file of save_npz", scipy_sparse.recognises,
                     scipy_sparse.read),
        SourceFormat("relational", "tables with keys: a folder with relational.yaml, a folder or database of RelBench",
                     relational.recognises, relational.read),
        SourceFormat("sqlite", "an SQLite file whose tables have foreign keys", sqlite.recognises, databases.read,
                     database=partial(DatabaseFile, sqlite.open_catalogue, 0)),
        SourceFormat("duckdb", "a DuckDB file whose tables have foreign keys", duckdb.recognises, databases.read,
                     database=partial(DatabaseFile, duckdb.open_catalogue, duckdb_tables.HELD_BYTES)),
        SourceFormat("postgresql", "the URL of a PostgreSQL database, postgresql://USER@HOST/DATABASE",
                     postgresql.recognises, databases.read, database=postgresql.PostgresDatabase),
    )
}  # fmt: skip


@dataclass(frozen=True)
class ChosenSource:
    """Holds a source, its format, and what of it is wanted; see `choose_source`."""

    source: Any
    format: SourceFormat
    options: Mapping[str, Any]
    exclude: Sequence[str]
    encode: Mapping[str, str]
    quantise: str | None

    @property
    def database(self) -> Database | None:
        """Returns the database whose tables have to be fetched before `read`; None where there is none.

        Raises:
            ConfigError: the source is none.
        """
        return None if self.format.database is None else self.format.database(self.source)

    def require(self, encoding: GivenEncoding | None, require_times: Callable[..., None], tables: Catalogue) -> None:
        """Refuses tables of a database that cannot become a graph, before any row is read; see `databases.require`."""
        databases.require(tables, self.exclude, self.encode, encoding, require_times, self.quantise, **self.options)

    def read(
        self, resources: Resources, encoding: GivenEncoding | None = None, tables: Catalogue | None = None
    ) -> GraphInput:
        """Returns the graph that the source holds.

        Args:
            resources: have the memory that reading may take.
            encoding: of another graph, for the columns of tables.
            tables: of the database, if it is one.

        Raises:
            ConfigError: an option names what the source does not have, columns to exclude that there are not, or too
                little memory for what it holds.
            InputError: the source is not what the format expects.
        """
        source = self.source if tables is None else tables
        resources.require("to read the source", self.format.held_bytes(source))
        of_tables = {"exclude": self.exclude, "encode": self.encode, "encoding": encoding, "quantise": self.quantise,
                     "resources": resources}  # fmt: skip
        found = self.format.read(source, **self.options, **(of_tables if self.format.has_tables else {}))
        require_named(found.contents, {name: self.options[name] for name in self.format.naming if name in self.options})
        return found


def named_format(source: Any, name: str) -> tuple[Any, str]:
    """Returns a source and its format apart, where text names both: sqlite:shop.db, as on the command line.

    Args:
        source: as the user gives it.
        name: of the format, or "auto".
    """
    if name != AUTO or not isinstance(source, (str, os.PathLike)) or is_database(source) or os.path.lexists(source):
        return source, name
    before, colon, path = os.fspath(source).partition(":")
    return (path, before) if colon and before in (*FORMATS, AUTO) else (source, name)


def choose_source(
    source: object,
    name: str,
    options: Mapping[str, Any],
    exclude: Sequence[str],
    encode: Mapping[str, str],
    quantise: str | None,
) -> ChosenSource:
    """Returns a source with its format, nothing of it read but what that takes.

    Args:
        source: a path, an object in memory, or the URL of a database.
        name: of the format, or "auto".
        options: of the format; text is taken as what the format expects.
        exclude: columns of its tables that are left out, TABLE.COLUMN or COLUMN.
        encode: how columns of its tables become features, by such names.
        quantise: how its features are stored.

    Raises:
        ConfigError: no such format or option, nothing recognises the source, or columns to exclude from a format that
            has no tables.
        InputError: there is no such file.
    """
    if postgresql.recognises(source):
        if name not in (AUTO, "postgresql"):
            raise ConfigError(f"format: expected postgresql, as the source is the URL of a database, found {name!r}")
        name = "postgresql"
    elif name == "postgresql":
        raise ConfigError("source: expected the URL of a database, such as postgresql:///shop, found none")
    elif isinstance(source, (str, os.PathLike)):
        source = local(source, "source")
        fetches = name in FORMATS and FORMATS[name].database is not None  # what was fetched goes on without the file
        if not source.exists() and not fetches:
            before, colon, _ = str(source).partition(":")
            near = near_name(before, FORMATS) if colon else ""
            raise InputError(f"source: expected a file or folder, found none at {source}{near}")
    chosen = _recognised(source) if name == AUTO else FORMATS.get(name)
    if chosen is None:
        raise ConfigError(
            f"format: expected one of {', '.join(FORMATS)} or {AUTO}, found {name!r}{near_name(name, FORMATS)}"
        )
    parsed = _parsed(chosen, options)
    if (exclude or encode) and not chosen.has_tables:
        able = ", ".join(known.name for known in FORMATS.values() if known.has_tables)
        raise ConfigError(
            f"{'exclude' if exclude else 'encode'}: expected a source with columns ({able}), found one of format "
            + chosen.name
            + (f"; its options name what is read: {', '.join(chosen.naming)}" if chosen.naming else "")
        )
    return ChosenSource(source, chosen, parsed, exclude, encode, quantise)


def _recognised(source: object) -> SourceFormat:
    found = [known for known in FORMATS.values() if known.recognises(source)]
    if len(found) == 1:
        return found[0]
    known = "".join(f"\n  {known.name}: {known.summary}" for known in found or FORMATS.values())
    what = describe(source) if isinstance(source, Path) else f"an object of type {type(source).__name__}"
    if found:
        raise ConfigError(f"format: found {what}, which may be of several formats; say which one:{known}")
    raise ConfigError(f"format: expected something that a format recognises, found {what}. The formats are:{known}")


def _parsed(chosen: SourceFormat, options: Mapping[str, Any]) -> dict[str, Any]:
    known, parsed = chosen.options, {}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(
                f"options: format {chosen.name} takes {', '.join(known) or 'none'}; found {name!r}"
                f"{near_name(name, known)}"
            )
        parsed[name] = _value(f"options: {name}", str(known[name].annotation), value)
    return parsed


# What the types of options are called in messages, where these are no words.
_WORDS = {"bool": "true or false", "Listed": "str or a list of str", "Moment": "int, str, date or datetime"}


def _value(where: str, expected: str, value: Any) -> Any:
    kinds = expected.split(" | ")
    if "None" in kinds and (value is None or (isinstance(value, str) and value == "none")):
        return None
    if isinstance(value, str):
        if "bool" in kinds and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if {"int", "Moment"} & {*kinds} and value.lstrip("-").isdecimal():
            return int(value)
        if {"str", "Listed", "Moment"} & {*kinds}:
            return value
    elif isinstance(value, (bool, np.bool_)):
        if "bool" in kinds:
            return bool(value)
    elif isinstance(value, (int, np.integer)):
        if {"int", "Moment"} & {*kinds}:
            return int(value)
    elif isinstance(value, (date, np.datetime64)):
        if "Moment" in kinds:
            return as_told(value)
    elif isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value) and "Listed" in kinds:
        return ",".join(value)
    words = " | ".join(_WORDS.get(kind, kind) for kind in kinds)
    raise ConfigError(f"{where}: expected {words}, found {value!r:.80}")
