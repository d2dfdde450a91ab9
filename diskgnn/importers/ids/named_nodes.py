"""Nodes that a user names: by their numbers, or by ids in a file."""

from __future__ import annotations

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
from diskgnn.importers.ids.id_columns import node_ids
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import readable_kind
from diskgnn.importers.ids.kept_ids import kept_kind, nodes_of_ids
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.paths import PathLike
from diskgnn.stores.locations import local, located


def chosen_nodes(nodes: npt.ArrayLike | None, num_nodes: int) -> npt.NDArray[np.int64] | None:
    """Returns [n] ids in the order given; None: all.

    Raises:
        ConfigError: they are no nodes.
    """
    if nodes is None:
        return None
    expected = f"nodes: expected at least one id [n], or bool [{num_nodes}]"
    try:
        found = np.asarray(nodes)
    except ValueError as error:  # rows of several lengths
        raise ConfigError(f"{expected}, found what is no array ({error})") from error
    if found.dtype == np.bool_ and found.shape == (num_nodes,):
        if not found.any():
            raise ConfigError(f"{expected}, found no True")
        return np.flatnonzero(found)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise ConfigError(f"{expected}, found {found.dtype} {list(found.shape)}")
    if found.min() < 0 or found.max() >= num_nodes:
        raise ConfigError(f"nodes: expected ids from 0 to {num_nodes - 1}, found {found.min()} to {found.max()}")
    return found.astype(np.int64)


def read_nodes(path: PathLike, nodes: NodeSet | None) -> npt.NDArray[Any]:
    """Returns the nodes [n], or bool [N], that a .npy file, or the column `id` of a table, names.

    Args:
        path: of the file; of a table also a folder of parts.
        nodes: of whose ids the file is: the user's own where the graph keeps some. None: numbers of rows.

    Raises:
        ConfigError: neither.
        InputError: a file that cannot be read, or ids that no node has.
    """
    columns = id_columns_of(("id",), nodes)
    source = open_ids("nodes", path, ("id",), columns)
    if isinstance(source, np.ndarray) and source.dtype == np.bool_:
        return source
    return node_numbers("nodes", nodes, id_column(node_ids("nodes", source, columns), 0))


def id_columns_of(names: Sequence[str], *kept: NodeSet | None) -> TableColumns:
    """Returns columns of a table that are read as what the ids are, also those of CSV."""
    return TableColumns(
        types={name: str(kept_kind(nodes)) for name, nodes in zip(names, kept, strict=True) if nodes is not None}
    )


def open_ids(name: str, path: PathLike, wanted: Sequence[str], columns: TableColumns) -> npt.NDArray[Any] | PathLike:
    """Returns the array in a .npy file, or `path` itself if it is a table.

    Raises:
        ConfigError, InputError: it is neither, or without the columns.
    """
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


def id_column(ids: IdColumns, number: int) -> pa.ChunkedArray:
    """Returns one column of ids, all of it."""
    return pa.chunked_array([found[number] for found in ids.chunks(CHUNK_EDGES, 0)], ids.key_kinds[number])


def node_numbers(name: str, nodes: NodeSet | None, ids: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Returns the numbers of the nodes that have these ids.

    Raises:
        ConfigError: nobody says what ids that are not numbers stand for.
        InputError: no node has such an id.
    """
    if nodes is not None:
        return nodes_of_ids(name, nodes, [ids])[0]
    if ids.type != pa.int64():
        raise ConfigError(
            f"{name}: expected numbers of nodes, found {readable_kind(ids.type)}; give the graph that "
            "they are of, which keeps ids"
        )
    return np.asarray(ids)
