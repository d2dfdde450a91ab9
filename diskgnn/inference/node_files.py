"""Files that say which nodes or pairs a model is asked about, by the ids that the user knows them by."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ConfigError, InputError
from diskgnn.files.file_reading import ReadableFile, raise_if_disk_failed
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.npy_headers import read_npy_header
from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.ids.id_columns import end_ids, node_ids
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import readable_kind
from diskgnn.importers.ids.kept_ids import kept_kind, nodes_of_ids
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.importers.tables.times import seconds
from diskgnn.inference.asked_times import SeedTimes
from diskgnn.paths import PathLike
from diskgnn.stores.locations import local, located


def read_nodes(path: PathLike, nodes: NodeSet | None) -> npt.NDArray[Any]:
    """The nodes [n], or bool [N], that a .npy file, or the column `id` of a table, names.

    Args:
        path: of the file; of a table also a folder of parts.
        nodes: of whose ids the file is: the user's own where the graph keeps some. None: numbers of rows.

    Raises:
        ConfigError: neither.
        InputError: a file that cannot be read, or ids that no node has.
    """
    columns = _columns(("id",), nodes)
    source = _opened("nodes", path, ("id",), columns)
    if isinstance(source, np.ndarray) and source.dtype == np.bool_:
        return source
    return _numbers("nodes", nodes, _column(node_ids("nodes", source, columns), 0))


def read_times(name: str, given: object) -> SeedTimes | None:
    """Returns the column `time` of a table; None if `given` is no table, or has no such column.

    Raises:
        InputError: the column has no times, or some are missing.
    """
    if not isinstance(given, str | os.PathLike) or not is_table(given):
        return None
    table = Table(name, given, TableColumns())
    if "time" not in table.schema.names:
        return None
    where = f"{name}: column 'time' of {given}"
    given_times = pa.chunked_array([batch.column(0) for batch in table.batches(["time"], CHUNK_EDGES)])
    times = pa.chunked_array([seconds(chunk, where) for chunk in given_times.chunks], pa.int64())
    if times.null_count:
        raise InputError(f"{where}: expected a time in each row, found none in {times.null_count}")
    return SeedTimes(np.asarray(times), given_times)


def chosen_pairs(
    pairs: npt.ArrayLike | PathLike, source: NodeSet | None, destination: NodeSet | None
) -> npt.NDArray[np.int64]:
    """The pairs [n, 2] of an array, of a .npy file, or of the columns `src` and `dst` of a table, in this order.

    Args:
        pairs: numbers of rows; in a file ids as `read_nodes` takes them.
        source: the nodes that `src` are of; None if the graph has no such type.
        destination: those that `dst` are of.

    Raises:
        ConfigError: they are no pairs of such nodes.
        InputError: see `read_nodes`.
    """
    where = ""
    if isinstance(pairs, str | os.PathLike):
        where = f" in {pairs}"
        pairs = _read_pairs(pairs, source, destination)
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


def _read_pairs(path: PathLike, source: NodeSet | None, destination: NodeSet | None) -> npt.NDArray[np.int64]:
    columns = _columns(("src", "dst"), source, destination)
    given = _opened("pairs", path, ("src", "dst"), columns)
    if not isinstance(given, np.ndarray):
        both = end_ids("pairs", given, columns)
        ends = [_column(both, 0), _column(both, 1)]
    elif given.ndim != 2 or given.shape[1] != 2:
        raise ConfigError(f"pairs: expected ids [n, 2] in {path}, found {list(given.shape)}")
    else:
        ends = [_column(node_ids("pairs", end, columns), 0) for end in given.T]
    return np.stack([_numbers("pairs", *each) for each in zip((source, destination), ends, strict=True)], 1)


def _columns(names: Sequence[str], *kept: NodeSet | None) -> TableColumns:
    """Columns of CSV are read as what the ids are."""
    return TableColumns(
        types={name: str(kept_kind(nodes)) for name, nodes in zip(names, kept, strict=True) if nodes is not None}
    )


def _opened(name: str, path: PathLike, wanted: Sequence[str], columns: TableColumns) -> npt.NDArray[Any] | PathLike:
    """The array in a .npy file, or `path` itself if it is a table."""
    if is_table(path):
        found = Table(name, path, columns).schema.names
        if missing := [column for column in wanted if column not in found]:
            raise InputError(
                f"{name}: expected a column {missing[0]!r} in {path}, found {found}; in CSV the first line names them"
            )
        return path
    if kind_of(path) != "npy":
        raise ConfigError(
            f"{name}: expected a .npy file of ids, or a Parquet or CSV table with {' and '.join(map(repr, wanted))}, "
            f"found {describe(path).partition(';')[0]}"
        )
    try:
        with ReadableFile(local(path, name)) as file:
            read_npy_header(file)
            file.seek(0)
            array: npt.NDArray[Any] = np.load(file, allow_pickle=False)
        return array
    except (ValueError, EOFError, OSError) as error:
        raise_if_disk_failed(error, located(path))
        raise InputError(
            f"{name}: expected an array of numbers or strings in {path}, which cannot be read ({error})"
        ) from error


def _column(ids: IdColumns, number: int) -> pa.ChunkedArray:
    return pa.chunked_array([found[number] for found in ids.chunks(CHUNK_EDGES, 0)], ids.key_kinds[number])


def _numbers(name: str, nodes: NodeSet | None, ids: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    if nodes is not None:
        return nodes_of_ids(name, nodes, [ids])[0]
    if ids.type != pa.int64():
        raise ConfigError(
            f"{name}: expected numbers of nodes, found {readable_kind(ids.type)}; give the graph in place of the "
            "packed directory, which does not keep ids"
        )
    return np.asarray(ids)
