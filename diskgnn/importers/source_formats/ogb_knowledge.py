"""Knowledge graphs of the Open Graph Benchmark, ogbl-wikikg2 and ogbl-biokg: an edge type for each relation.

A split holds triples: `head`, `relation` and `tail` of each. biokg names the types of heads and tails, too, and has a
folder of edges for each relation; wikikg2 has one list of edges and the relation of each beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.importers.containers import text_numbers, torch_files
from diskgnn.importers.containers.rows import EdgeStream
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_listing import SourceListing
from diskgnn.specs.schema import SPLITS, EdgeType

_KEYS = ("head", "relation", "tail")
_READ_OF_SEEDS = ("edge", "source_node", "target_node", "head", "relation", "tail")
_SORTING_BYTES = 24  # of each edge: its relation, its place and a count; then its place and its ends
ENTITY = "entity"  # the one type of nodes of wikikg2


def with_triples(split: Path | None) -> Path | None:
    """Returns a split's folder, if it holds triples."""
    return None if split is None or _triples(split, "train") is None else split


def held_bytes(raw: Path, split: Path) -> int:
    """Returns what `of_one_list` has in memory at most, by the sizes of files: edges while it sorts them, or edges and
    triples.

    Unpickling a file of arrays and sorting its triples by relation take three times what the file has, besides it.
    """
    num_edges = int(text_numbers.whole_column("sizes", raw / "num-edge-list.csv.gz").sum())
    files = {path.stem: path.stat().st_size for path in split.glob("*.pt")}
    return max(_SORTING_BYTES * num_edges, 16 * num_edges + max(files.values()) + 3 * files["train"])


def of_one_list(
    raw: Path, split: Path, num_nodes: int, num_edges: int, undirected: bool, listing: SourceListing
) -> GraphInput:
    """Returns the graph of wikikg2: nodes are `entity`, relation r is the edge type (entity, relation_r, entity).

    Edges are held in memory, sorted by relation: 16 bytes each, and while they are sorted 24.

    Raises:
        InputError: a file is missing, or relations are not those of the edges.
    """
    listing.read("", "raw/edge.csv.gz", "edges")
    listing.read("", "raw/edge_reltype.csv.gz", "types of edges")
    starts, places = _by_relation(raw / "edge_reltype.csv.gz", num_edges)
    ends, done = np.empty((num_edges, 2), np.int64), 0
    for chunk in text_numbers.rows("edges", raw / "edge.csv.gz", num_edges, np.int64).chunks():
        at = places[done : done + len(chunk)]  # fewer, if the file has too many rows; it says so at its end
        ends[at] = chunk[: len(at)]
        done += len(chunk)
    edges = {
        (ENTITY, f"relation_{number}", ENTITY): EdgeInput(
            edges=_stream(f"edges of relation {number}", ends[start:stop]), symmetric=undirected
        )
        for number, (start, stop) in enumerate(pairwise(starts.tolist()))
    }
    by_relation = dict(enumerate(edges))
    return GraphInput({ENTITY: NodeInput(num_nodes=num_nodes)}, _with_seeds(edges, split, by_relation, listing))


def _by_relation(path: Path, num_edges: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns [relations + 1] where each begins in edges sorted by relation, and [num_edges] where each edge goes
    there."""
    chunks = text_numbers.column("relations", path, num_edges, np.int64).chunks()
    relations = np.concatenate([np.empty(0, np.int64), *chunks])
    if relations.min(initial=0) < 0:
        raise InputError(f"{path}: expected relations that count from 0, found {relations.min()}")
    starts = np.concatenate([[0], np.cumsum(np.bincount(relations))])
    order = np.argsort(relations, kind="stable")
    places = relations  # not needed any more
    places[order] = np.arange(num_edges)
    return starts, places


def of_several_lists(graph: GraphInput, raw: Path, split: Path, listing: SourceListing) -> GraphInput:
    """Returns the graph of biokg with the triples of its splits as seed edges of their types.

    Raises:
        InputError: a relation of a split is that of no edges, or of edges of two types.
    """
    by_relation: dict[int, EdgeType] = {}
    for edge_type in graph.edges:
        path = raw / "relations" / "___".join(edge_type) / "edge_reltype.csv.gz"
        for number in np.unique(text_numbers.whole_column("relations", path)).tolist():
            if number in by_relation:
                raise InputError(f"{path}: expected a relation of its own, found {number}, which another folder has")
            by_relation[number] = edge_type
    return replace(graph, edges=_with_seeds(graph.edges, split, by_relation, listing))


def _with_seeds(
    edges: Mapping[EdgeType, EdgeInput], split: Path, by_relation: Mapping[int, EdgeType], listing: SourceListing
) -> dict[EdgeType, EdgeInput]:
    seeds: dict[EdgeType, dict[str, Any]] = {edge_type: {} for edge_type in edges}
    for name in SPLITS:
        if (found := _triples(split, name)) is None:
            continue
        (head, relation, tail), content = found
        list_seed_data(listing, "", f"split of {split.name}: {name}", name, content)
        order = np.argsort(relation, kind="stable")
        numbers, starts = np.unique(relation[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            if number not in by_relation:
                raise InputError(f"{split / name}.pt: expected relations that edges have, found {number}")
            ends = np.stack([head[places], tail[places]], axis=1)
            seeds[by_relation[number]][name] = _stream(f"{name} of relation {number}", ends)
    return {edge_type: replace(given, **seeds[edge_type]) for edge_type, given in edges.items()}


def _triples(split: Path, name: str) -> tuple[list[npt.NDArray[Any]], dict[str, Any]] | None:
    """Returns the head, relation and tail of each triple, and all that the file holds; None if it holds no triples."""
    path = split / f"{name}.pt"
    content = torch_files.load(name, path) if path.is_file() else None
    if not isinstance(content, dict) or not set(_KEYS) <= set(content):
        return None
    found = [torch_files.as_array(content[key]) for key in _KEYS]
    if any(each is None or each.ndim != 1 or len(each) != len(found[0]) for each in found):  # type: ignore[arg-type]
        raise InputError(f"{path}: expected head, relation and tail, each [n], found other shapes")
    return found, content  # type: ignore[return-value]


def _stream(name: str, pairs: npt.NDArray[np.int64]) -> EdgeStream:
    return EdgeStream(name, len(pairs), lambda: iter([(pairs[:, 0], pairs[:, 1])]))


def list_seed_data(listing: SourceListing, of: str, name: str, split: str, content: Mapping[str, Any]) -> None:
    """Notes what a file of seed edges holds: their ends are read, and their relations."""
    for key in content:
        if key in _READ_OF_SEEDS:
            listing.read(of, f"{name}: {key}", split)
        elif "neg" in key:
            listing.leave_out(of, f"{name}: {key}", "diskgnn draws negative pairs of its own", expected=True)
        elif key in ("head_type", "tail_type"):
            listing.leave_out(of, f"{name}: {key}", "the relation says it", expected=True)
        else:
            listing.leave_out(of, f"{name}: {key}", "of seed edges, only the ends are read")
