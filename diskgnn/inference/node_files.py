"""Times and pairs that a model is asked about, in files, by the ids that the user knows them by."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.ids.id_columns import end_ids, node_ids
from diskgnn.importers.ids.named_nodes import id_column, id_columns_of, node_numbers, open_ids
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.importers.tables.times import seconds
from diskgnn.inference.asked_times import SeedTimes
from diskgnn.paths import PathLike


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
    """Returns the pairs [n, 2] of an array, of a .npy file, or of the columns `src` and `dst` of a table, in this
    order.

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
    columns = id_columns_of(("src", "dst"), source, destination)
    given = open_ids("pairs", path, ("src", "dst"), columns)
    if not isinstance(given, np.ndarray):
        both = end_ids("pairs", given, columns)
        ends = [id_column(both, 0), id_column(both, 1)]
    elif given.ndim != 2 or given.shape[1] != 2:
        raise ConfigError(f"pairs: expected ids [n, 2] in {path}, found {list(given.shape)}")
    else:
        ends = [id_column(node_ids("pairs", end, columns), 0) for end in given.T]
    return np.stack([node_numbers("pairs", *each) for each in zip((source, destination), ends, strict=True)], 1)
