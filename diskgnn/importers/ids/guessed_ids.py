"""Which column of a table of nodes has their ids, if nobody says so: the one that edges refer to."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.importers.containers.arrays import named
from diskgnn.importers.graph_input import NodeInput
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import id_keys, id_kind
from diskgnn.importers.tables.table import Table
from diskgnn.specs.schema import EdgeType

_ENDS_READ = 1000  # of each edge type
_ROWS_READ = 1 << 18  # of a table; what comes later is compared when ids are replaced
_OF_IDS = re.compile(r"(.*id|node|key|name)$")


def guessed_ids(
    name: str, nodes: NodeInput, owner: str, ends: Mapping[EdgeType, IdColumns | None]
) -> str | None:  # fmt: skip
    """Returns the column of the table of `nodes` that has every id of the first edges, and no value twice.

    Whole numbers may be numbers of rows as well, so such a column must also be called like ids. A DataWarning says
    which column was taken.

    Args:
        name: of the node type.
        nodes: what is given of it.
        owner: the type, for messages.
        ends: of all edges.

    Raises:
        ConfigError: several columns have all the ids.
    """
    if nodes.table is None or nodes.ids is not None:
        return None
    table = Table(named("nodes", owner, nodes.table), nodes.table, nodes.columns)
    if nodes.columns.id_in(table) is not None:
        return None
    wanted = _first_ends(name, ends)
    if wanted is None:
        return None
    free = [column.name for column in table.schema if id_kind(column.type) == wanted.type]
    if pa.types.is_integer(wanted.type):
        free = [column for column in free if _OF_IDS.match(re.sub("[^a-z]", "", column.lower()))]
    found = [column for column in free if _has_all(table, column, wanted)]
    if len(found) > 1:
        raise ConfigError(
            f"{table.name}: expected one column with the ids that edges refer to, found {' and '.join(found)}; name "
            f"one of these (`columns`, id={found[0]})"
        )
    if not found:
        return None
    warnings.warn(
        f"{table.name}: took column {found[0]!r} as the ids, as edges refer to it; to say so yourself, give `columns` "
        f"the role id={found[0]}",
        DataWarning,
        stacklevel=callers_level(),
    )
    return str(found[0])


def _first_ends(name: str, ends: Mapping[EdgeType, IdColumns | None]) -> pa.Array | None:
    """Ids by which the first edges of each type name nodes of one; None if they are of several kinds, or none."""
    found = []
    for edge_type, columns in ends.items():
        if columns is None or not columns.from_table or name not in (edge_type[0], edge_type[2]):
            continue
        chunk = next(columns.chunks(_ENDS_READ, 0), ())
        for side, (end, ids) in enumerate(zip((edge_type[0], edge_type[2]), chunk, strict=False)):
            if end == name and side != columns.numbered:
                found.append(ids[:_ENDS_READ])
    if not found or len({each.type for each in found}) > 1:
        return None
    distinct = pc.unique(pa.concat_arrays(found))
    return distinct if len(distinct) else None


def _has_all(table: Table, column: str, wanted: pa.Array) -> bool:
    keys = pa.chunked_array(list(_first_keys(table, column)), wanted.type)
    if not len(keys) or keys.null_count or len(pc.unique(keys)) < len(keys):
        return False
    there = pc.is_in(wanted, value_set=keys.combine_chunks())
    return bool(pc.any(there).as_py() if len(keys) == _ROWS_READ else pc.all(there).as_py())


def _first_keys(table: Table, column: str) -> Iterator[pa.Array]:
    left = _ROWS_READ
    for batch in table.batches([column], _ROWS_READ):
        yield id_keys(batch.column(0)[:left])
        left -= min(left, batch.num_rows)
        if not left:
            return
