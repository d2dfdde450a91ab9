"""What is said beside a graph's description: how to store it, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.containers import arrays
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.source_listing import replaced
from diskgnn.importers.tables.table import Table, is_table
from diskgnn.importers.tables.times import counts_numbers
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType, edge_type_name
from diskgnn.specs.time_windows import checked_time_unit

T = TypeVar("T", NodeInput, EdgeInput)

_STORED = ("bfloat16", "quantise", "reference_features")  # of each node type with features


def is_of_one_type(given: GraphInput) -> bool:
    """Returns whether this is a graph of one type of nodes and edges, which nobody had to name."""
    return list(given.nodes) == [ONE_NODE_TYPE] and list(given.edges) == [ONE_EDGE_TYPE]


def completed(
    given: GraphInput,
    on_nodes: Mapping[str, Any],
    *,
    reverse: bool,
    self_loops: bool,
    drop_duplicates: bool,
    keep_ids: bool,
) -> GraphInput:
    """Returns the graph with what is given beside it.

    Args:
        given: as its format describes it.
        on_nodes: what it lacks, as fields of `NodeInput` (`nodes` is its table), for a graph of one type; and how
            features are stored.
        reverse: add the reverse of every edge: to its type, if that has the same nodes at both ends, or as a type.
        self_loops: add (v, v) for every node that has none, in edge types with the same nodes at both ends.
        drop_duplicates: keep one of equal edges.
        keep_ids: remember the position of each edge in its list.

    Raises:
        ConfigError: what is given does not go together.
    """
    edges = {
        edge_type: _with_options(edge_type, described, reverse, self_loops, drop_duplicates, keep_ids)
        for edge_type, described in given.edges.items()
    }
    stored = {name: on_nodes[name] for name in _STORED if name in on_nodes}
    rest = {("table" if name == "nodes" else name): value for name, value in on_nodes.items() if name not in _STORED}
    contents = replaced(given.contents, [*rest, *["reverse"] * reverse])
    if is_of_one_type(given):
        nodes = {ONE_NODE_TYPE: replace(given.nodes[ONE_NODE_TYPE], **stored, **rest)}
        return replace(given, nodes=nodes, edges=edges, contents=contents)
    if rest:
        raise ConfigError(
            f"{' and '.join(rest)}: expected a source of one node type and one edge type, found node types "
            f"{', '.join(given.nodes)}; describe such a graph by a `schema`"
        )
    nodes = {name: replace(found, **stored) if _has_features(found) else found for name, found in given.nodes.items()}
    return replace(given, nodes=nodes, edges=edges, contents=contents)


def without_columns(
    given: GraphInput, exclude: Sequence[str], may_lack: Callable[[str], bool] = lambda name: False
) -> GraphInput:
    """Returns the graph whose tables do without some columns.

    Args:
        given: its tables not read yet.
        exclude: names of columns, of every table that has them; or TYPE.COLUMN, where the tables of a graph of one type
            are called nodes and edges.
        may_lack: returns True for names of columns that need not be there.

    Raises:
        ConfigError: no table has a column of that name.
    """
    if not exclude:
        return given
    plain = is_of_one_type(given)
    there: dict[str, list[str]] = {}

    def without(of: str, source: Any, described: T) -> T:
        if not is_table(source):
            return described
        there[of] = Table(of, source, described.columns).schema.names
        found: list[str] = [name for name in there[of] if name in exclude or f"{of}.{name}" in exclude]
        return replace(described, columns=replace(described.columns, exclude=(*described.columns.exclude, *found)))

    nodes = {name: without("nodes" if plain else name, each.table, each) for name, each in given.nodes.items()}
    edges = {
        name: without("edges" if plain else edge_type_name(name), each.edges, each)
        for name, each in given.edges.items()
    }
    require_columns_there([each for each in exclude if not may_lack(each)], there, "exclude")
    return replace(given, nodes=nodes, edges=edges)


def require_times(
    has_timestamps: Mapping[str, bool], null_time: str | None, time_unit: str | None, order: str | None,
    said: str | None = None,
) -> None:  # fmt: skip
    """Checks that what the user says of times is about some.

    Args:
        has_timestamps: of types with times, whether these are dates or timestamps, and no numbers.
        null_time, time_unit, order: as `convert` takes them.
        said: the unit that the graph says itself.

    Raises:
        ConfigError: no type has times; or no unit, another one than the graph says itself or than timestamps become.
    """
    if null_time is not None and not has_timestamps:
        raise ConfigError(f"null_time: found {null_time!r}, while no type of nodes or edges has times; leave it out")
    if checked_time_unit(time_unit) not in (None, said) and said is not None:
        raise ConfigError(f"time_unit: expected {said}, as what is read says itself, found {time_unit}; leave it out")
    unit = time_unit or said
    if not has_timestamps and unit is not None:
        raise ConfigError(f"time_unit: found {unit!r}, while no type of nodes or edges has times; leave it out")
    if unit not in (None, "s") and any(has_timestamps.values()):
        name = next(name for name, found in has_timestamps.items() if found)
        raise ConfigError(
            f"time_unit: expected s, as times of {name} are dates or timestamps, which become seconds "
            f"since 1970; found {unit}"
        )
    if order == "time" and not has_timestamps:
        raise ConfigError("order: found 'time', while no type of nodes or edges has times; leave it out")


def with_times(given: GraphInput, null_time: str | None, time_unit: str | None, order: str | None) -> GraphInput:
    """Returns the graph with what the user says of its times, and of what goes by them.

    Args:
        given: the graph.
        null_time: what a missing time of any type means, unless the type says another.
        time_unit: of all times; by default what the graph says itself, or seconds if all times are dates and
            timestamps, which become that.
        order: of its lists; by default that which it says itself.

    Raises:
        ConfigError: see `require_times`.
    """
    has_timestamps = {
        f"nodes of type {name}": name in given.dated or _has_timestamps(name, each)
        for name, each in given.nodes.items() if _has_times(each)
    } | {
        f"edges of type {edge_type_name(name)}": _has_timestamps(edge_type_name(name), each)
        for name, each in given.edges.items() if _has_times(each)
    }  # fmt: skip
    require_times(has_timestamps, null_time, time_unit, order, given.time_unit)
    unit = time_unit or given.time_unit
    if unit is None and has_timestamps and all(has_timestamps.values()):
        unit = "s"

    def meant(described: T) -> T:
        return replace(described, null_time=described.null_time or null_time)

    nodes = {name: meant(each) for name, each in given.nodes.items()}
    edges = {name: meant(each) for name, each in given.edges.items()}
    return replace(given, nodes=nodes, edges=edges, time_unit=unit, order=order or given.order)


def require_columns_there(
    named: Iterable[str], there: Mapping[str, Sequence[str]], argument: str, which: str = ""
) -> None:
    """Checks that each column that an `argument` names is among the columns `there` by table.

    Raises:
        ConfigError: one is not.
    """
    known = {each for of, names in there.items() for name in names for each in (name, f"{of}.{name}")}
    if unknown := [name for name in named if name not in known]:
        told = "; ".join(f"{of} has {', '.join(names)}" for of, names in there.items())
        raise ConfigError(
            f"{argument}: expected COLUMN or TABLE.COLUMN of the tables{which}, found {unknown[0]!r}; "
            f"{told or 'there are none'}{near_name(unknown[0], known)}"
        )


def _has_times(described: NodeInput | EdgeInput) -> bool:
    return described.times is not None or described.columns.time is not None


def _has_timestamps(name: str, described: NodeInput | EdgeInput) -> bool:
    """Returns whether times are dates or timestamps, and no numbers."""
    try:
        if described.times is not None:
            return arrays.items(f"times of {name}", described.times).dtype.kind == "M"
        source = described.table if isinstance(described, NodeInput) else described.edges
        if not is_table(source) or described.columns.time is None:
            return False
        return not counts_numbers(Table(name, source, described.columns).field(described.columns.time).type)
    except InputError:
        return False  # it is refused where it is opened, with what else is wrong


def _with_options(
    edge_type: EdgeType,
    described: EdgeInput,
    reverse: bool,
    self_loops: bool,
    drop_duplicates: bool,
    keep_ids: bool,
) -> EdgeInput:
    within = edge_type[0] == edge_type[2]
    if keep_ids and isinstance(described.edges, IdColumns) and described.edges.skips_unknown:
        raise ConfigError(
            f"keep_ids: edges of {edge_type_name(edge_type)} to ids that no node has are left out, so the others are "
            "not where the table has them; pass skip_unknown=false (`options`), or do without"
        )
    return replace(
        described,
        symmetric=described.symmetric or (reverse and within),
        reverse=described.reverse or (reverse and not within),
        self_loops=described.self_loops or (self_loops and within),
        drop_duplicates=described.drop_duplicates or drop_duplicates,
        keep_ids=described.keep_ids or keep_ids,
    )


def _has_features(nodes: NodeInput) -> bool:
    return nodes.features is not None or nodes.table is not None
