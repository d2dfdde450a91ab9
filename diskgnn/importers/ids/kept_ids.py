"""Nodes by the user's own ids, and the other way round: a graph directory keeps the ids that it was made with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diskgnn.errors import InputError
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.ids.id_types import id_keys, id_kind, readable_kind
from diskgnn.importers.ids.near_ids import near_id

MAKE_IDS = (  # what errors advise where there are none
    "make the graph again with them (`ids` of convert, an id column of the table of nodes, or `keys` of a database)"
)


def kept_kind(nodes: NodeSet) -> pa.DataType:
    """Returns how ids of `nodes` are compared (`id_types.id_kind`); int64 where they are numbers of rows."""
    with nodes.user_ids or nullcontext() as file:
        return _kind(file)


def keeps_ids(nodes: NodeSet | None) -> TypeGuard[NodeSet]:
    """Returns True for nodes that have ids of the user's own."""
    with (nodes and nodes.user_ids) or nullcontext() as file:
        return file is not None


def _kind(file: pq.ParquetFile | None) -> pa.DataType:
    return pa.int64() if file is None else id_kind(file.schema_arrow.field("id").type)


def _ids(file: pq.ParquetFile) -> Iterator[pa.Array]:
    return (id_keys(batch.column(0)) for batch in file.iter_batches(CHUNK_EDGES, columns=["id"]))


def nodes_of_ids(
    name: str, nodes: NodeSet, ids: Sequence[pa.ChunkedArray], hint: str = ""
) -> list[npt.NDArray[np.int64]]:
    """Returns the nodes [n] of each of `ids` [n]: the user's own ids where the graph keeps some, numbers of rows
    elsewhere.

    Numbers of rows are returned as they are; whoever takes them checks that there are such nodes.

    Args:
        name: of what the ids are from, for messages.
        nodes: whose ids they are.
        ids: as `id_keys`, without null.
        hint: what may be done about ids of another type, for messages.

    Raises:
        InputError: ids of another type, or one that no node has.
    """
    with nodes.user_ids or nullcontext() as file:
        kind = _kind(file)
        for each in ids:
            if each.type != kind:
                if file is None:
                    raise InputError(
                        f"{name}: expected numbers of rows, as {nodes.manifest.path} keeps no ids of {nodes.name!r} "
                        f"nodes, found {readable_kind(each.type)}; {MAKE_IDS}{hint}"
                    )
                near = near_id(each[0].as_py(), _ids(file)) if len(each) else ""
                raise InputError(
                    f"{name}: expected ids of type {readable_kind(kind)}, as of the nodes of type {nodes.name!r}, "
                    f"found {readable_kind(each.type)}"
                    + (f" such as {each[0].as_py()!r}{near}" if near else f": cast them to {readable_kind(kind)}{hint}")
                )
        if file is None:
            return [np.asarray(each) for each in ids]
        distinct = pa.chunked_array([chunk for each in ids for chunk in each.chunks], kind).unique()
        found, start = np.full(len(distinct), -1, np.int64), 0
        at_once = max(CHUNK_EDGES, len(distinct))  # each time Arrow builds its hash table of the ids anew
        for batch in file.iter_batches(at_once, columns=["id"]):
            places = pc.index_in(id_keys(batch.column(0)), value_set=distinct)
            found[np.asarray(places.drop_null())] = start + np.flatnonzero(np.asarray(places.is_valid()))
            start += batch.num_rows
        if (found < 0).any():
            unknown = distinct[int(found.argmin())].as_py()
            near = near_id(unknown, _ids(file))
            raise InputError(
                f"{name}: expected ids of nodes of type {nodes.name!r}, found {unknown!r}, which none has{near}"
            )
    return [found[np.asarray(pc.index_in(each, value_set=distinct))] for each in ids]
