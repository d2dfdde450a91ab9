"""What a sampler of the user's own returns: the nodes and blocks of one minibatch, in plain NumPy.

`diskgnn.sample(..., sampler=f)` calls `f(seeds, rng)` for every minibatch, in several threads:

- seeds: int64 [B], or on a graph with several types a dict of them by node type. They are distinct.
- rng: a `numpy.random.Generator` that follows from the seed, split, epoch and number of the minibatch alone. A function
  that draws from nothing else gives the same bytes whatever the threads and however often preparing is stopped.

It returns a `Neighbourhood`. `Neighbourhood.from_edges` makes one from edges between node ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType

Ids = npt.NDArray[Any]  # [n] whole numbers
# (indptr [num_dst + 1], indices [E]) and, where edges have features or ids are kept, positions [E] in the CSC of the
# graph: destination i's sources are indices[indptr[i]:indptr[i + 1]], places among the nodes of their type.
BlockArrays = Sequence[Ids]


@dataclass(frozen=True)
class Neighbourhood:
    """The nodes of one minibatch, and its blocks.

    Nodes are in the order in which layers need them: the seeds first, then what the innermost block adds, and so on.
    So the destinations of each block are the first of its sources. On a graph of one type, `nodes` is an array and each
    block one of `BlockArrays`; otherwise both are mappings by type. Edge types that a layer does not use are left out.

    Example, a node and its two neighbours:
        >>> Neighbourhood(np.array([7, 3, 4]), [(np.array([0, 2]), np.array([1, 2]))])
    """

    nodes: Ids | Mapping[str, Ids]  # [U] ids of each type, none twice
    blocks: Sequence[BlockArrays] | Sequence[Mapping[EdgeType, BlockArrays]]  # one for each layer, outermost first
    # How many of the nodes there are, [layers + 1] from the sources of the outermost block to the seeds. None: as the
    # blocks say; where there are several types, they do not.
    counts: Sequence[Mapping[str, int]] | None = None

    @staticmethod
    def from_edges(
        seeds: Ids | Mapping[str, Ids], layers: Sequence[Sequence[Ids]] | Sequence[Mapping[EdgeType, Sequence[Ids]]]
    ) -> Neighbourhood:
        """Returns the neighbourhood with these edges.

        Args:
            seeds: as the sampler got them.
            layers: from the seeds outwards, (sources [E], destinations [E]) as node ids, by edge type where there are
                several, and positions [E] if they are wanted. Destinations are seeds, or nodes of the layers before.

        Raises:
            ConfigError: a destination is none of them.

        Example:
            >>> def full(seeds, rng):  # all in-edges of a SciPy CSC matrix, for one layer
            ...     columns = matrix[:, seeds].tocoo()
            ...     return Neighbourhood.from_edges(seeds, [(columns.row, seeds[columns.col])])
        """
        if not isinstance(seeds, Mapping):
            by_type = [{ONE_EDGE_TYPE: layer} for layer in layers]
            found = Neighbourhood.from_edges({ONE_NODE_TYPE: seeds}, by_type)  # type: ignore[arg-type]
            blocks = [block[ONE_EDGE_TYPE] for block in found.blocks]  # type: ignore[call-overload]
            return Neighbourhood(found.nodes[ONE_NODE_TYPE], blocks)
        nodes = {name: _Numbering(ids) for name, ids in seeds.items()}
        counts = [{name: len(numbering.ids) for name, numbering in nodes.items()}]
        blocks_outwards = []
        for number, layer in enumerate(layers):
            assert isinstance(layer, Mapping)
            destinations = {
                edge_type: _destinations(nodes, edge_type, np.asarray(edges[1]), number, counts[-1])
                for edge_type, edges in layer.items()
            }
            block = {}
            for edge_type, (src, _, *positions) in layer.items():
                numbering = nodes.setdefault(edge_type[0], _Numbering(np.empty(0, np.int64)))
                places = numbering.numbered(np.asarray(src, np.int64))
                order = np.argsort(destinations[edge_type], kind="stable")
                degrees = np.bincount(destinations[edge_type], minlength=counts[-1].get(edge_type[2], 0))
                indptr = np.concatenate([[0], np.cumsum(degrees)])
                block[edge_type] = (indptr, places[order], *(np.asarray(each)[order] for each in positions))
            blocks_outwards.append(block)
            counts.append({name: len(numbering.ids) for name, numbering in nodes.items()})
        found_nodes = {name: numbering.ids for name, numbering in nodes.items()}
        return Neighbourhood(found_nodes, blocks_outwards[::-1], counts[::-1])


class _Numbering:
    """Distinct ids in the order in which they came."""

    def __init__(self, ids: Ids) -> None:
        self.ids = np.asarray(ids, np.int64)

    def places(self, wanted: Ids) -> Ids:
        """Returns [n] where they are, -1 for those that are not."""
        if not len(self.ids):
            return np.full(len(wanted), -1)
        order = np.argsort(self.ids)
        rank = np.minimum(np.searchsorted(self.ids, wanted, sorter=order), len(order) - 1)
        found = order[rank]
        return np.where(self.ids[found] == wanted, found, -1)

    def numbered(self, wanted: Ids) -> Ids:
        """Returns [n] where they are; those that were not there are added."""
        new = wanted[self.places(wanted) < 0]
        _, first = np.unique(new, return_index=True)
        self.ids = np.concatenate([self.ids, new[np.sort(first)]])
        return self.places(wanted)


def _destinations(
    nodes: Mapping[str, _Numbering], edge_type: EdgeType, wanted: Ids, layer: int, counts: Mapping[str, int]
) -> Ids:
    places = nodes[edge_type[2]].places(wanted) if edge_type[2] in nodes else np.full(len(wanted), -1)
    assert (places < counts.get(edge_type[2], 0)).all()
    if (places < 0).any():
        raise ConfigError(
            f"layers: destination {wanted[places < 0][0]} of layer {layer} is neither a seed nor a node of the layers "
            "before it"
        )
    return places
