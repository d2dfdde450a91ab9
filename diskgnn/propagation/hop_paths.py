"""Paths of edge types, from seeds against the edges to features: which ones records have, and what they are called.

A path that leads from papers over the authors that write them to the institutions that employ these is called
'author:writes/institution:employs'. A step names the source and the edge type; it ends where the path has come so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from diskgnn.errors import ConfigError
from diskgnn.formats.hops_config import MOST_HOPS, VALUE_BYTES
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import EdgeType

Path = tuple[EdgeType, ...]  # from the seeds outwards; empty: the seeds' own features

MOST_PATHS = 32  # that records have: a set of nodes is held for each
OWN = "x"  # the name of the empty one


def path_name(path: Path) -> str:
    """Returns what a segment of records is called that has features from the end of `path`."""
    return "/".join(f"{source}:{name}" for source, name, _ in path) or OWN


def end_of(path: Path, target: str) -> str:
    """Returns the node type whose features a path from `target` nodes ends at."""
    return path[-1][0] if path else target


def paths_within(graph: Graph, target: str, hops: int) -> list[Path]:
    """Returns all paths of at most `hops` edge types from `target` nodes that end at a type with features, by length.

    Raises:
        ConfigError: there are more than MOST_PATHS, which are named with their sizes; or none but the empty one.
    """
    into = _edges_into(graph)
    ways = _count_ways(graph, into, hops)
    num_paths = sum(each[target] for each in ways)
    if num_paths == ways[0][target]:
        with_features = [nodes.name for nodes in graph.nodes.values() if nodes.config.num_features is not None]
        raise ConfigError(
            f"hops: no path of 1 to {hops} edge types leads from {target} nodes of {graph.manifest.path} to a type "
            f"with features ({', '.join(with_features) or 'no type has any'}): take more hops, or `diskgnn prepare`, "
            f"which draws minibatches in which vectors of nodes without features are trained"
        )
    found = list[Path]()
    for length in range(hops + 1):
        for path in _of_length(into, ways, target, length):
            if len(found) == MOST_PATHS:
                break
            found.append(path)
    if num_paths > MOST_PATHS:
        more = f", and {num_paths - len(found)} more" * (num_paths > len(found))
        raise ConfigError(
            f"hops: expected at most {MOST_PATHS} paths, found {num_paths} of at most {hops} edge types: "
            f"{told_sizes(graph, target, found)}{more}; take fewer hops, or name those that you want in `paths`"
        )
    return found


def _edges_into(graph: Graph) -> dict[str, list[EdgeType]]:
    into: dict[str, list[EdgeType]] = {name: [] for name in graph.nodes}
    for edge_type in graph.edges:
        into[edge_type[2]].append(edge_type)
    return into


def _count_ways(graph: Graph, into: Mapping[str, Sequence[EdgeType]], hops: int) -> list[dict[str, int]]:
    """Returns, by length up to `hops`, how many paths lead from each type to features."""
    ways = [{name: int(nodes.config.num_features is not None) for name, nodes in graph.nodes.items()}]
    for _ in range(hops):
        ways.append({name: sum(ways[-1][edge_type[0]] for edge_type in each) for name, each in into.items()})
    return ways


def _of_length(
    into: Mapping[str, Sequence[EdgeType]], ways: Sequence[Mapping[str, int]], at: str, length: int
) -> Iterator[Path]:
    """Yields the paths of so many edge types from type `at` to features; follows none that leads to no features."""
    if not ways[length][at]:
        return
    if not length:
        yield ()
    for edge_type in into[at] if length else ():
        for rest in _of_length(into, ways, edge_type[0], length - 1):
            yield (edge_type, *rest)


def told_sizes(graph: Graph, target: str, paths: Sequence[Path]) -> str:
    """Returns the paths and the bytes that each takes of a record, for messages."""
    told = []
    for path in paths:
        num_features = graph.nodes[end_of(path, target)].config.num_features
        assert num_features is not None
        told.append(f"{path_name(path)} ({VALUE_BYTES * num_features} bytes)")
    return ", ".join(told)


def parse_paths(graph: Graph, target: str, given: object) -> list[Path]:
    """Returns the paths that are `given`: as a list of names, or as one text with commas between them; first the empty
    one, if `target` nodes have features.

    Raises:
        ConfigError: something else, no path of the graph, one that ends without features, or too many.
    """
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"paths: expected a list such as ['author:writes', 'author:writes/institution:employs'], found {given!r}"
        )
    own: list[Path] = [()] if graph.nodes[target].config.num_features is not None else []
    paths = [*own, *(_parse(graph, target, name.strip()) for name in names)]
    if len({*paths}) < len(paths):
        raise ConfigError(f"paths: expected different ones, found {given!r}")
    if len(paths) > MOST_PATHS:
        raise ConfigError(
            f"paths: expected at most {MOST_PATHS}, found {len(paths)}: {told_sizes(graph, target, paths)}; leave some "
            "out"
        )
    return paths


def _parse(graph: Graph, target: str, name: str) -> Path:
    path = list[EdgeType]()
    for step in name.split("/"):
        at = end_of(tuple(path), target)
        there = [edge_type for edge_type in graph.edges if edge_type[2] == at]
        parts = tuple(step.split(":"))
        found = [each for each in there if parts in (each, each[:2], each[1:2])]
        if len(found) != 1:
            known = ", ".join(f"{source}:{middle}" for source, middle, _ in found or there) or "there are none"
            raise ConfigError(f"paths: expected edges to {at} nodes ({known}), found {step!r} in {name!r}")
        path += found
    if len(path) > MOST_HOPS:
        raise ConfigError(f"paths: expected at most {MOST_HOPS} edge types, found {len(path)} in {name!r:.80}")
    end = path[-1][0]
    if graph.nodes[end].config.num_features is None:
        raise ConfigError(
            f"paths: expected paths to types with features, found {name!r}, and {end} nodes have none: let it go on to "
            "a type that has, or `diskgnn prepare`, which draws minibatches in which vectors of these nodes are trained"
        )
    return tuple(path)
