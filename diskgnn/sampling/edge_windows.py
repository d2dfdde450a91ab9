"""Which edge types a window of time holds for, and how long it is in the unit of a graph's times."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import EdgeType, edge_type_name, require_edge_type
from diskgnn.specs.time_windows import MAX_WINDOW, Windows, window_in_unit


def edge_windows(
    graph: Graph, windows: Windows | None, fanouts: Iterable[npt.NDArray[np.int32]]
) -> dict[EdgeType, int]:
    """Returns the window of each edge type that has one, in the unit of the graph's times.

    Args:
        graph: what is sampled.
        windows: as they were asked for.
        fanouts: [layers, edge types] of each split.

    Raises:
        ConfigError: edge types that there are not, or that have no times; a window in another unit; or one window
            where nobody knows which edge types it is for.
    """
    if windows is None:
        return {}
    where = str(graph.manifest.path)
    timed = [each for each in graph.edges if _has_times(graph, each)]
    if not timed:
        dated = ",".join(_time_columns(graph, graph.nodes).values()) or "TABLE.COLUMN"
        raise ConfigError(
            f"temporal_window: expected edges or nodes with times, found none in {where}: convert it again and say "
            f"when rows appear (of a database, `diskgnn convert --set times={dated}`; `time` in "
            "relational.yaml; `diskgnn convert --column time=COLUMN` of other tables)"
        )
    _say_units(graph, windows)
    if isinstance(windows, Mapping):
        for each in windows:
            require_edge_type("temporal_window", each, graph.edges)
        if untimed := [each for each in windows if each not in timed]:
            raise ConfigError(
                f"temporal_window: expected edge types with times, found {edge_type_name(untimed[0])}: neither its "
                f"edges nor nodes of type {untimed[0][0]} have some in {where}"
            )
        return {each: window_in_unit(window, graph.config.time_unit, where) for each, window in windows.items()}
    length = window_in_unit(windows, graph.config.time_unit, where)
    followed = {
        each for layers in fanouts for each, is_followed in zip(graph.edges, (layers != 0).any(axis=0), strict=True)
        if is_followed
    }  # fmt: skip
    held = _held_by_one(graph, timed)
    unsaid = [] if _is_database(graph) else [each for each in timed if each not in held and each in followed]
    if unsaid or not held:
        names = ", ".join(map(edge_type_name, unsaid or graph.edges))
        found = f"only nodes have times where edges of {names} begin" if unsaid else f"no such edges in {where}"
        example = "180d" if length == MAX_WINDOW else windows
        raise ConfigError(
            "temporal_window: one window is for edges with times and, in a database, for edges towards the row that "
            f"is referred to; found {found}. Say for which edge types it is, as a mapping "
            f"({edge_type_name((unsaid or timed or list(graph.edges))[0])}={example})"
        )
    return dict.fromkeys(held, length)


def warn_of_rows_without_times(graph: Graph, drawn: Iterable[EdgeType]) -> None:
    """Warns where rows that refer to others are drawn and have no times, although some column may say them: most
    likely nobody said it, and seeds see what comes after them.

    Args:
        graph: of a database; others are not looked at.
        drawn: the edge types that are followed.
    """
    untimed = {each[0] for each in drawn if graph.edges[each].config.foreign_key and not _has_times(graph, each)}
    if dated := _time_columns(graph, untimed):
        warnings.warn(
            f"rows of {', '.join(dated)} are drawn without regard to time, as nobody said when they appear: a seed "
            f"sees those that come after it. If these columns say it, make {graph.manifest.path} again with `diskgnn "
            f"convert --set times={','.join(dated.values())}` and the times of other tables; nothing is wrong if they "
            "are of something else, such as birthdays",
            DataWarning,
            stacklevel=callers_level(),
        )


def _time_columns(graph: Graph, node_types: Collection[str]) -> dict[str, str]:
    """Returns a column of each of these tables that may say when its rows appear, as `convert` takes them."""
    found = dict[str, str]()
    for nodes in graph.config.node_types:
        for column in nodes.columns or ():
            if column.encoding == "time" and nodes.name in node_types:
                found.setdefault(nodes.name, f"{nodes.name}.{column.name}")
    return found


def _say_units(graph: Graph, windows: Windows) -> None:
    """Warns of windows that are numbers without a unit where the times have one: nobody wrote which."""
    given = [*windows.values()] if isinstance(windows, Mapping) else [windows]
    bare = [window for window in given if not isinstance(window, str) or window.isdecimal()]
    if bare and (unit := graph.config.time_unit) is not None:
        warnings.warn(
            f"temporal_window: {bare[0]} has no unit, so it is {bare[0]} {unit}, as times of {graph.manifest.path} are "
            f"in {unit}; write '{bare[0]}{unit}' if that is meant, or another unit, such as '{bare[0]}d'",
            DataWarning,
            stacklevel=callers_level(),
        )


def _has_times(graph: Graph, edge_type: EdgeType) -> bool:
    return graph.edges[edge_type].config.has_times or graph.nodes[edge_type[0]].config.has_times


def _is_database(graph: Graph) -> bool:
    return any(edges.config.foreign_key for edges in graph.edges.values())


def _held_by_one(graph: Graph, timed: list[EdgeType]) -> list[EdgeType]:
    """Returns those that one window for all is for: a row is looked up whatever its age, rows that refer to it are
    not."""
    if len(graph.edges) == 1:
        return timed
    configs = {each: graph.edges[each].config for each in timed}
    return [each for each, config in configs.items() if config.has_times or config.foreign_key]
