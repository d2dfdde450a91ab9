"""The user's own ids of nodes: found in what a graph is made from, and replaced by dense ones.

A node type has such ids if it is given some (`NodeInput.ids`), if its table has an id column that does not count the
rows, or if edges mention ids that cannot be numbers of rows. `replacing_ids` replaces them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.importers.containers.arrays import named
from diskgnn.importers.graph_input import GraphInput, NodeInput
from diskgnn.importers.graph_sources import type_owner
from diskgnn.importers.ids.guessed_ids import guessed_ids
from diskgnn.importers.ids.id_columns import edge_ends, node_ids
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import readable_kind
from diskgnn.importers.tables.table import Table, is_table
from diskgnn.specs.schema import EdgeType


@dataclass(frozen=True)
class UserIds:
    """Which node types of a graph have ids of the user's."""

    listed: Mapping[str, IdColumns]  # by node type: the ids of all nodes, in order
    mentioned: Mapping[str, pa.DataType]  # by node type: no list; all ids that edges mention, and their type
    ends: Mapping[EdgeType, IdColumns]  # of the edges that have such a type at an end
    guessed: Mapping[str, str]  # by node type: the column of the table that edges refer to, which nobody named

    @property
    def types(self) -> set[str]:
        """Returns the names of these node types."""
        return {*self.listed, *self.mentioned}


def find_user_ids(given: GraphInput, owner_of: Callable[[str, str | EdgeType], str]) -> UserIds:
    """Look at the types of columns, and at id columns of whole numbers: whether they count the rows.

    Args:
        given: the graph.
        owner_of: what messages call a type of "node" or "edge".

    Raises:
        ConfigError: edges mention ids, and nothing says whose rows of features are which.
        InputError: a column that cannot be ids, or no ids at all.
    """
    listed, mentioned, guessed = dict[str, IdColumns](), dict[str, pa.DataType](), dict[str, str]()
    ends = {name: edge_ends(edges, owner_of("edge", name)) for name, edges in given.edges.items()}
    for name, nodes in given.nodes.items():
        owner = owner_of("node", name)
        if (guess := guessed_ids(name, nodes, owner, ends)) is not None:
            guessed[name] = guess
            nodes = replace(nodes, columns=replace(nodes.columns, id=guess))
        column = _listed(nodes, owner)
        if column is not None:
            if not column.num_rows:
                raise InputError(f"{column.told}: expected an id for each node, found none; is it what was meant?")
            listed[name] = column
            continue
        found = _mentions(name, ends)
        if found:
            _look_at_excluded(nodes, owner, found)
        if found and _are_mapped(found, nodes, owner, _is_counted(given, name)):
            mentioned[name] = _one_kind(found)
            of_type = [each for ends_of, each in ends.items() if each is not None and name in (ends_of[0], ends_of[2])]
            if not any(each.num_rows for each in of_type):
                told = " and ".join(each.told for each in of_type)
                raise InputError(
                    f"{told}: found no edges, and nothing else says which nodes there are; is it what was meant?"
                )
    types = {*listed, *mentioned}
    by_rows = [name for name, found in ends.items() if found is None and given.edges[name].indptr is not None]
    if uncounted := [name for name in by_rows if {name[0], name[2]} & types]:
        raise ConfigError(
            f"{owner_of('edge', uncounted[0]) or 'edges'}: indptr counts nodes by their rows, which does not go with "
            f"ids of your own; give the edges as a list"
        )
    concerned = {
        name: found for name, found in ends.items() if found is not None and {name[0], name[2]} & types
    }  # fmt: skip
    return UserIds(listed, mentioned, concerned, guessed)


def _listed(nodes: NodeInput, owner: str) -> IdColumns | None:
    if nodes.ids is not None:
        given = node_ids(named("ids", owner, nodes.ids), nodes.ids, nodes.columns)
        return None if given.count_rows() else given
    if nodes.table is None:
        return None
    table = Table(named("nodes", owner, nodes.table), nodes.table, nodes.columns)
    if nodes.columns.id_in(table) is None:
        return None
    column = node_ids(table.name, nodes.table, nodes.columns)
    return None if column.count_rows() else column


def _look_at_excluded(nodes: NodeInput, owner: str, found: Mapping[str, pa.DataType]) -> None:
    """Warn of a column of ids that is excluded, so that edges name nodes by other numbers than meant.

    Args:
        nodes: of a type, without ids.
        owner: the type, for messages.
        found: what mentions these nodes, see `_mentions`.

    Raises:
        ConfigError: edges have text, which only that column could explain.
    """
    excluded = [name for name in nodes.columns.exclude if name != "id"]
    if nodes.columns.id is not None or len(excluded) == len(nodes.columns.exclude):
        return
    columns = replace(nodes.columns, exclude=excluded)
    ids = _listed(replace(nodes, columns=columns), owner)
    if ids is None or ids.key_kinds[0] not in found.values():
        return
    told = (
        f"{ids.name}: column 'id' is excluded, so edges cannot name nodes by it; an id is no feature anyway: leave it "
        "out of `exclude`"
    )
    if pa.types.is_integer(ids.key_kinds[0]):
        warnings.warn(
            f"{told}. Without it, edges name nodes by the numbers of their rows, 0, 1, 2, ...",
            DataWarning,
            stacklevel=callers_level(),
        )
        return
    raise ConfigError(told)


def _mentions(node_type: str, ends: Mapping[EdgeType, IdColumns | None]) -> dict[str, pa.DataType]:
    """Returns what mentions nodes of this type by what may be ids, and the type of these."""
    kinds = {}
    for edge_type, found in ends.items():
        if found is not None:
            sides = zip((edge_type[0], edge_type[2]), found.columns, found.key_kinds, strict=True)
            for side, (end, column, kind) in enumerate(sides):
                if end == node_type and side != found.numbered and (found.from_table or not pa.types.is_integer(kind)):
                    kinds[f"{found.name}: {column}"] = kind
    return kinds


def _are_mapped(found: Mapping[str, pa.DataType], nodes: NodeInput, owner: str, counted: bool) -> bool:
    """Returns whether ids are to be replaced that edges mention and nothing lists."""
    has_counted_ids = nodes.ids is not None or (
        nodes.table is not None and nodes.columns.id_in(Table("nodes", nodes.table, nodes.columns)) is not None
    )
    unnumbered = [where for where, kind in found.items() if not pa.types.is_integer(kind)]
    if unnumbered and counted and has_counted_ids:
        raise InputError(
            f"{unnumbered[0]} names nodes by ids of type {readable_kind(found[unnumbered[0]])}, while the ids of "
            f"{owner or 'the nodes'} are the numbers 0, 1, 2, ...: have both as text or both as numbers (columns of "
            f"CSV: types=NAME:string or types=NAME:int64)"
        )
    if unnumbered and counted:
        raise ConfigError(
            f"{unnumbered[0]} names nodes by ids of type {readable_kind(found[unnumbered[0]])}; expected the ids of "
            f"{owner or 'the nodes'} in the order of their rows: as a column {nodes.columns.id or 'id'!r} of their "
            f"table (`{'table' if owner else 'nodes'}`), or as `ids`"
        )
    return bool(unnumbered) or not counted


def _is_counted(given: GraphInput, name: str) -> bool:
    """Returns whether something says how many nodes of a type there are."""
    nodes = given.nodes[name]
    rows = (nodes.num_nodes, nodes.table, nodes.features, nodes.times)
    return (
        any(source is not None for source in rows)
        or (nodes.labels is not None and not is_table(nodes.labels))
        or any(edges.indptr is not None and ends[2] == name for ends, edges in given.edges.items())
    )


def _one_kind(found: Mapping[str, pa.DataType]) -> pa.DataType:
    (first, expected), *others = found.items()
    for where, kind in others:
        if kind != expected:
            raise InputError(
                f"{where}: expected ids of type {readable_kind(expected)}, as in {first}, found {readable_kind(kind)}; "
                f"cast one of the two"
            )
    return expected


def default_owner(typed: bool) -> Callable[[str, str | EdgeType], str]:
    """Returns what messages call a type; "" in a graph of one type, which nobody had to name."""
    return type_owner if typed else lambda kind, name: ""
