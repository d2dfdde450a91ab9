"""The columns of tables, as the command line names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.importers.tables.table import TableColumns

_DELIMITERS = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ","}


def table_columns(given: Sequence[tuple[str, str]], encode: Sequence[tuple[str, str]] = ()) -> TableColumns | None:
    """Returns what `--column ROLE=NAME` and `--encode COLUMN=ENCODING`, any number of times, say; None if they say
    nothing.

    Raises:
        ConfigError: a type without a column, or a role of one column with several.
    """
    if not given and not encode:
        return None
    columns: dict[str, Any] = {}
    for role, name in given:
        if role in columns and role not in ("features", "types", "label"):
            raise ConfigError(f"columns: expected {role} once, found {role}={columns[role]} and {role}={name}")
        columns[role] = name
    if "features" in columns:
        columns["features"] = [name for role, name in given if role == "features"]
    if len(labels := [name for role, name in given if role == "label"]) > 1:
        columns["label"] = labels
    if "names" in columns:
        columns["names"] = columns["names"].split(",")
    if "delimiter" in columns:
        columns["delimiter"] = _DELIMITERS.get(columns["delimiter"], columns["delimiter"])
    if "types" in columns:
        pairs = [name.rpartition(":") for role, name in given if role == "types"]
        if wrong := [kind for column, _, kind in pairs if not column]:
            raise ConfigError(f"columns: expected types=COLUMN:TYPE, such as types=id:string, found types={wrong[0]}")
        columns["types"] = {column: kind for column, _, kind in pairs}
    return TableColumns(**columns, encode=dict(encode))
