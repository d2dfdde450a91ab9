"""Times and pairs that a model is asked about, in files, by the ids that the user knows them by."""

from __future__ import annotations

import os
from dataclasses import fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.ids.id_columns import end_ids, node_ids
from diskgnn.importers.ids.named_nodes import called, id_column, id_columns_of, node_numbers, open_ids
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.importers.tables.times import counted
from diskgnn.inference.asked_times import SeedTimes
from diskgnn.paths import PathLike

_IDS = {"nodes": ("id",), "pairs": ("src", "dst")}  # the columns of ids, by what a table is of
_READING = ("exclude", "names", "delimiter", "types")  # how a table is read, whatever it is of


def columns_of(given: TableColumns | None, *, timed: bool, **tables: object) -> TableColumns:
    """Returns what columns of `tables` are called, of which one may be a table.

    Args:
        given: by the user.
        timed: whether a column of times may count.
        tables: by name, `nodes` or `pairs`, whatever was given as such.

    Raises:
        ConfigError: it was said, and none is a table; or of columns that nobody reads.
    """
    if given is None:
        return TableColumns()
    found = [name for name, each in tables.items() if isinstance(each, str | os.PathLike) and is_table(each)]
    if not found:
        raise ConfigError(
            f"columns: expected a table of {' or '.join(f'`{name}`' for name in tables)} that has them, found none; "
            "leave it out"
        )
    taken, usual = (*_IDS[found[0]], *["time"] * timed), TableColumns()
    for role in (member.name for member in fields(TableColumns)):
        if role not in (*taken, *_READING) and (value := getattr(given, role)) != getattr(usual, role):
            raise ConfigError(
                f"columns: expected what {' or '.join(taken)} of the table of `{found[0]}` is called, as no other "
                f"column is read, found {role}={value!r}; leave it out"
            )
    return given


def read_times(name: str, given: object, unit: str | None, columns: TableColumns | None = None) -> SeedTimes | None:
    """Returns the column of times of a table; None if `given` is no table, or has no such column and none was named.

    Args:
        name: of the argument, for messages.
        given: the table, if it is one.
        unit: of the graph's times; None: nobody knows.
        columns: what those of the table are called.

    Raises:
        ConfigError: dates and timestamps, where the graph's times are in a unit that has none.
        InputError: the column has no times, or some are missing.
    """
    if not isinstance(given, str | os.PathLike) or not is_table(given):
        return None
    columns = columns or TableColumns()
    table, column = Table(name, given, columns), called(columns, "time")
    if columns.time is None and column not in table.schema.names:
        return None
    table.field(column)
    where = f"{name}: column {column!r} of {given}"
    given_times = pa.chunked_array([batch.column(0) for batch in table.batches([column], CHUNK_EDGES)])
    times = pa.chunked_array([counted(chunk, where, unit) for chunk in given_times.chunks], pa.int64())
    if times.null_count:
        raise InputError(f"{where}: expected a time in each row, found none in {times.null_count}")
    return SeedTimes(np.asarray(times), given_times)


def chosen_pairs(
    pairs: npt.ArrayLike | PathLike,
    source: NodeSet | None,
    destination: NodeSet | None,
    columns: TableColumns | None = None,
) -> npt.NDArray[np.int64]:
    """Returns the pairs [n, 2] of an array, of a .npy file, or of the columns `src` and `dst` of a table, in this
    order.

    Args:
        pairs: numbers of rows; in a file ids as `read_nodes` takes them.
        source: the nodes that `src` are of; None if the graph has no such type.
        destination: those that `dst` are of.
        columns: what those of a table are called; by default `src` and `dst`.

    Raises:
        ConfigError: they are no pairs of such nodes.
        InputError: see `read_nodes`.
    """
    where = ""
    if isinstance(pairs, str | os.PathLike):
        where = f" in {pairs}"
        pairs = _read_pairs(pairs, source, destination, columns)
    found = np.asarray(pairs)
    if found.ndim != 2 or found.shape[1] != 2 or found.dtype.kind not in "iu" or not len(found):
        raise ConfigError(f"pairs: expected at least one pair of ids [n, 2], found {found.dtype} {list(found.shape)}")
    for name, ids, nodes in zip(("src", "dst"), found.T, (source, destination), strict=True):
        if nodes is not None and (ids.min() < 0 or ids.max() >= nodes.num_nodes):
            raise ConfigError(
                f"pairs: expected {name}{where} to be of the {nodes.num_nodes} nodes of type {nodes.name!r}, found "
                f"{ids.min()} to {ids.max()}"
            )
    return found.astype(np.int64)


def _read_pairs(
    path: PathLike, source: NodeSet | None, destination: NodeSet | None, columns: TableColumns | None
) -> npt.NDArray[np.int64]:
    columns = id_columns_of(columns, {"src": source, "dst": destination})
    given = open_ids("pairs", path, ("src", "dst"), columns)
    if not isinstance(given, np.ndarray):
        both = end_ids("pairs", given, columns)
        ends = [id_column(both, 0), id_column(both, 1)]
    elif given.ndim != 2 or given.shape[1] != 2:
        raise ConfigError(f"pairs: expected ids [n, 2] in {path}, found {list(given.shape)}")
    else:
        ends = [id_column(node_ids("pairs", end, columns), 0) for end in given.T]
    return np.stack([node_numbers("pairs", *each) for each in zip((source, destination), ends, strict=True)], 1)
