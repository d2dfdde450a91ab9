"""Kinds of columns that are given for all tables, as RelBench has them in stypes.json: {table: {column: stype}}.

| stype of torch_frame | encoding |
|---|---|
| numerical, categorical, multicategorical | number, category, categories |
| timestamp, embedding | time, vector |
| text_embedded | the embedder that the user names |
| text_tokenized, sequence_numerical, image_embedded | none: records have no such columns |

Columns that are not named are left out. As in RelBench, keys are no features, and the time of a table is one if it is
named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.source_formats.relational_source import KeyedTable, RelationalSource
from diskgnn.importers.tables.times import counts_numbers
from diskgnn.specs.near_names import near_name

Kinds = Mapping[str, Mapping[str, Any]]  # of text, or of members of torch_frame's enumeration of stypes

_ENCODINGS = {"numerical": "number", "categorical": "category", "multicategorical": "categories", "timestamp": "time",
              "embedding": "vector"}  # fmt: skip
_TEXT = "text_embedded"
_IMPOSSIBLE = ("text_tokenized", "sequence_numerical", "image_embedded")


def with_read_kinds(source: RelationalSource, path: str | None) -> RelationalSource:
    """Returns `source` with the kinds in a JSON file; with its own ones where there is none (None).

    Raises:
        ConfigError: it says something else.
        InputError: there is no such file.
    """
    if path is None:
        return source
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"kinds: expected a JSON file, found none that can be read at {path} ({error})") from error
    except ValueError as error:
        raise ConfigError(f"kinds: expected JSON, {{table: {{column: stype}}}}, found {path} ({error})") from error
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ConfigError(f"kinds: expected {{table: {{column: stype}}}}, found something else in {path}")
    return replace(source, kinds=found)


def with_kinds(source: RelationalSource, kinds: Kinds) -> RelationalSource:
    """Returns `source` with the encodings that kinds of all columns stand for.

    Raises:
        ConfigError: kinds that there are not, of other tables or columns than there are, or of some tables only.
        InputError: a timestamp whose values are numbers.
    """
    left_out = {name for (name, what) in source.left_out if what == "table"}
    if unknown := [name for name in kinds if name not in source.tables and name not in left_out]:
        raise ConfigError(
            f"kinds: expected tables of {', '.join(source.tables)}, found {unknown[0]!r}"
            f"{near_name(unknown[0], source.tables)}"
        )
    if missing := [name for name in source.tables if name not in kinds]:
        raise ConfigError(
            f"kinds: expected the columns of all tables, found none of {', '.join(missing)}; say {{}} of a table whose "
            "columns are to be left out"
        )
    return replace(
        source, tables={name: _with_kinds(name, table, kinds[name], source) for name, table in source.tables.items()}
    )


def require_encodings(source: RelationalSource) -> None:
    """Refuses kinds that nothing is known for, once the user has named embedders and excluded columns.

    Raises:
        ConfigError: names all such columns.
    """
    found = [(f"{name}.{column}", encoding) for name, table in source.tables.items()
             for column, encoding in table.columns.items()]  # fmt: skip
    if texts := [where for where, encoding in found if encoding == _TEXT]:
        raise ConfigError(
            f"kinds: {_TEXT} of {', '.join(texts)}: say how to embed them (`encode`, {texts[0]}=hash:256), or leave "
            "them out (`exclude`)"
        )
    if others := [f"{encoding} of {where}" for where, encoding in found if encoding in _IMPOSSIBLE]:
        raise ConfigError(f"kinds: rows of tables cannot have {', '.join(others)}; leave them out (`exclude`)")


def _with_kinds(name: str, table: KeyedTable, kinds: Mapping[str, Any], source: RelationalSource) -> KeyedTable:
    names, keys = table.rows.schema.names, {table.pkey, *table.fkeys}
    columns = {column: "none" for column in names if column not in keys and column != table.time}
    for column, given in kinds.items():
        kind, where = getattr(given, "value", given), f"{name}.{column}"
        if kind not in (*_ENCODINGS, _TEXT, *_IMPOSSIBLE):
            raise ConfigError(f"kinds: {where}: expected one of {', '.join([*_ENCODINGS, _TEXT])}, found {kind!r}")
        if column not in names and (name, column) not in source.left_out:
            raise ConfigError(
                f"kinds: expected columns of {name}, of {', '.join(names)}; found {column!r}{near_name(column, names)}"
            )
        if column in keys or column not in names:
            continue
        if kind == "timestamp" and counts_numbers(table.rows.field(column).type):
            raise InputError(
                f"kinds: {where}: expected timestamps, dates or text, found {table.rows.field(column).type}, of which "
                "nobody knows what they count; say numerical"
            )
        columns[column] = _ENCODINGS.get(kind, kind)
    return replace(table, columns=columns, keeps_time=table.time in columns)
