"""Nodes that a user names: by their numbers, or by ids in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
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
from diskgnn.importers.ids.kept_ids import MAKE_IDS, keeps_ids, kept_kind, nodes_of_ids
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.importers.tables.times import moment_texts
from diskgnn.paths import PathLike
from diskgnn.stores.locations import local, located


def chosen_nodes(nodes: npt.ArrayLike | None, node_set: NodeSet) -> npt.NDArray[np.int64] | None:
    """Returns [n] numbers of nodes in the order given; None: all.

    Args:
        nodes: [n] numbers, or text or dates, which are the user's own ids, or bool [N].
        node_set: whose nodes they are.

    Raises:
        ConfigError: they are no nodes.
        InputError: ids that no node has.
    """
    if nodes is None:
        return None
    num_nodes = node_set.num_nodes
    expected = f"nodes: expected at least one id [n], or bool [{num_nodes}]"
    try:
        found = np.asarray(nodes)
    except ValueError as error:  # rows of several lengths
        raise ConfigError(f"{expected}, found what is no array ({error})") from error
    if found.dtype == np.bool_ and found.shape == (num_nodes,):
        if not found.any():
            raise ConfigError(f"{expected}, found no True")
        return np.flatnonzero(found)
    are_objects = found.dtype.kind == "O" and found.ndim == 1
    are_moments = are_objects and all(isinstance(each, date) for each in found)
    if are_moments:
        found = np.array(moment_texts(found), object)
    is_text = are_moments or (are_objects and all(isinstance(each, (str, bytes)) for each in found))
    if found.ndim == 1 and len(found) and (found.dtype.kind in "USM" or is_text):
        if pa.types.is_integer(kept_kind(node_set)):
            path = node_set.manifest.path
            with node_set.user_ids or nullcontext() as file:
                hint = (
                    f"{path} keeps no ids of {node_set.name!r} nodes; {MAKE_IDS}"
                    if file is None
                    else f"ids of your own, which are numbers in {path}, go into a file, in a column `id`"
                )
            raise ConfigError(f"nodes: expected numbers of rows, found {str(found[0])!r:.80}; {hint}")
        return node_numbers("nodes", node_set, id_column(node_ids("nodes", found, TableColumns()), 0))
    if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise ConfigError(f"{expected}, found {found.dtype} {list(found.shape)}")
    if found.min() < 0 or found.max() >= num_nodes:
        with node_set.user_ids or nullcontext() as file:
            hint = "" if file is None else "; ids of your own that are numbers go into a file, in a column `id`"
        raise ConfigError(
            f"nodes: expected numbers of rows from 0 to {num_nodes - 1}, found {found.min()} to {found.max()}{hint}"
        )
    return found.astype(np.int64)


def read_nodes(path: PathLike, nodes: NodeSet | None, columns: TableColumns | None = None) -> npt.NDArray[Any]:
    """Returns the nodes [n], or bool [N], that a .npy file, or the column of ids of a table, names.

    Args:
        path: of the file; of a table also a folder of parts.
        nodes: of whose ids the file is: the user's own where the graph keeps some. None: numbers of rows.
        columns: what those of a table are called; None: `id`, and nobody can say otherwise.

    Raises:
        ConfigError: neither.
        InputError: a file that cannot be read, or ids that no node has.
    """
    found = id_columns_of(columns, {"id": nodes})
    source = open_ids("nodes", path, ("id",), found, can_name=columns is not None)
    if isinstance(source, np.ndarray) and source.dtype == np.bool_:
        return source
    return node_numbers("nodes", nodes, id_column(node_ids("nodes", source, found), 0))


def id_columns_of(given: TableColumns | None, kept: Mapping[str, NodeSet | None]) -> TableColumns:
    """Returns what columns of ids are called, where each is read as what the ids of nodes are, also those of CSV.

    Args:
        given: by the user, who may say something else.
        kept: by role, the nodes; None: numbers of rows.
    """
    given = given or TableColumns()
    types = {called(given, role): str(kept_kind(nodes)) for role, nodes in kept.items() if keeps_ids(nodes)}
    return replace(given, types={**types, **given.types})


def called(columns: TableColumns, role: str) -> str:
    """Returns what the column of a role is called: as the role if nobody says otherwise."""
    found: str | None = getattr(columns, role)
    return found or role


def open_ids(
    name: str, path: PathLike, roles: Sequence[str], columns: TableColumns, *, can_name: bool = True
) -> npt.NDArray[Any] | PathLike:
    """Returns the array in a .npy file, or `path` itself if it is a table.

    Raises:
        ConfigError, InputError: it is neither, or without the columns.
    """
    if is_table(path):
        found = Table(name, path, columns).schema.names
        if missing := [role for role in roles if called(columns, role) not in found]:
            hint = (
                f"say what the one of ids is called (`columns`, {missing[0]}=NAME)" if can_name else "call it so there"
            )
            raise InputError(
                f"{name}: expected a column {called(columns, missing[0])!r} in {path}, found {found} (in CSV the first "
                f"line names them); {hint}"
            )
        return path
    if kind_of(path) != "npy":
        raise ConfigError(
            f"{name}: expected a .npy file of ids, or a Parquet or CSV table with {' and '.join(map(repr, roles))}, "
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
