"""A minibatch before it has tensors: what was sampled for it, and where its rows are. `minibatch_columns` stores it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

_ARRAY_BYTES = 256  # of an array beside its numbers: NumPy's object, and what Arrow has around a column


@dataclass(frozen=True)
class SampledBlock:
    """The sampled edges of one type in one layer, grouped by destination. Local numbers are positions among the input
    nodes of the source type.
    """

    indptr: npt.NDArray[np.int32]  # [num_dst + 1]: destination i's are indices[indptr[i]:indptr[i + 1]]
    indices: npt.NDArray[np.int32]  # [E] local numbers of the sources
    positions: npt.NDArray[Any] | None = None  # [E] int32 or int64: where each edge lies in the CSC, if wanted
    edge_ids: npt.NDArray[np.int64] | None = None  # [E] the user's ids of these edges, if kept


@dataclass(frozen=True)
class PairSample:
    """The pairs that a minibatch of link prediction scores: positions among the seeds of their types.

    The B positive ones come first, in the order of the batch; then the K negative ones of the first, of the second, and
    so on: negative k of positive i is at B + K * i + k, and has the same source.
    """

    src: npt.NDArray[np.int32]  # [P]
    dst: npt.NDArray[np.int32]  # [P]
    label: npt.NDArray[np.float32]  # [P] 1 for an edge, 0 for a negative; or the label that was given


@dataclass(frozen=True)
class RowPlaces:
    """Says where the rows of one row set are that a minibatch needs: each once, U of them."""

    addresses: npt.NDArray[np.int32]  # [U]
    admissions: npt.NDArray[np.int32]  # [A, 2]: extent row, cpu slot
    spread: npt.NDArray[np.int32] | None = None  # in [0, U): the row of each input node, or of each edge layer by layer


@dataclass(frozen=True, kw_only=True)
class SampledMinibatch:
    """Holds what samples say of a minibatch, and then the header of its extent: L layers, T node types, K row sets, B
    seeds.

    A graph of one type is the case of T = 1. Samples have no y, rows, times of nodes and edge ids, headers
    no places and positions. Fields are in the order of the columns.
    """

    seeds: npt.NDArray[np.int64]  # [B] the ids of all seeds, by node type in order
    y: npt.NDArray[Any] | None = None  # [B] int64, [B * C] uint8 or [B * C] float32; None of links, and without labels
    node_counts: npt.NDArray[np.int32]  # [L + 1, T] row l: the sources of blocks[l]; row l + 1: its destinations
    rows: tuple[RowPlaces, ...] = ()  # [K]
    input_nodes: tuple[npt.NDArray[Any], ...]  # [T] each [U_t] int32 or int64 ids, the seeds first; a header's may be
    # empty, see `MinibatchLayout.node_dtypes`
    trees: tuple[npt.NDArray[np.int32], ...] | None = None  # [U_t] the seed whose tree a node is in; ids may repeat
    # [T] each [U_t], or None where the type has no times; samples have none
    times: tuple[npt.NDArray[np.int64] | None, ...] | None = None
    seed_times: npt.NDArray[np.int64] | None = None  # [B] with the times that draws went by
    pairs: PairSample | None = None  # of link prediction
    places: npt.NDArray[np.int64] | None = None  # [B] where seeds stand among the given ones, if these have labels
    blocks: tuple[tuple[SampledBlock, ...], ...]  # [L] outermost first, each with one block per edge type

    @property
    def only_nodes(self) -> npt.NDArray[Any]:
        """Returns the input nodes, of a graph of one node type."""
        (nodes,) = self.input_nodes
        return nodes

    @property
    def only_blocks(self) -> tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]], ...]:
        """Returns (indptr, indices) of each layer, outermost first, of a graph of one edge type."""
        return tuple((block.indptr, block.indices) for (block,) in self.blocks)

    @property
    def num_edges(self) -> int:
        """Returns the sampled edges of all layers and types."""
        return sum(len(block.indices) for layer in self.blocks for block in layer)

    @property
    def num_bytes(self) -> int:
        """Returns about how many bytes all arrays take in memory."""
        return _num_bytes(self)


def _num_bytes(found: Any) -> int:
    if isinstance(found, np.ndarray):
        return found.nbytes + _ARRAY_BYTES
    if found is None:
        return 0
    parts = found if isinstance(found, tuple) else (getattr(found, field.name) for field in fields(found))
    return sum(map(_num_bytes, parts))
