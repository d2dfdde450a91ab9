"""Blocks, the layers of a minibatch, and the pairs of nodes that it may ask about; the tensors of either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from diskgnn.batches.table_records import TableRows

_T = TypeVar("_T")


class EdgesBySource(NamedTuple):
    """Groups a block's edges by source: source j's are at `indptr[j]:indptr[j+1]` of the other two."""

    indptr: Tensor  # [num_src + 1] int32
    destinations: Tensor  # [num_edges] int32, in [0, num_dst)
    edges: Tensor  # [num_edges] int64, where each edge stands in the block's own order

    def __repr__(self) -> str:
        """Says the shapes in a line."""
        return _in_a_line(self, self._asdict())


@dataclass(frozen=True)
class Block:
    """Holds one bipartite message-flow layer, its edges grouped by destination (CSC), with local node numbers.

    Destination i's sampled in-neighbours are the sources `indices[indptr[i]:indptr[i+1]]`. Where sources and
    destinations are of one type, destination node i is source node i: the first `num_dst` sources are the destinations
    (DGL's convention).
    """

    indptr: Tensor  # [num_dst + 1] int32
    indices: Tensor  # [num_edges] int32, in [0, num_src)
    num_src: int
    edge_ids: Tensor | None = None  # [num_edges] int64, if they were asked for: see SamplingSpec
    edge_x: Tensor | None = None  # [num_edges, D] edge features, of edge types that have some

    def __repr__(self) -> str:
        """Says the sizes in a line."""
        sizes = {"num_src": self.num_src, "num_dst": self.num_dst, "num_edges": self.num_edges}
        return _in_a_line(self, {**sizes, "edge_ids": self.edge_ids, "edge_x": self.edge_x})

    @property
    def num_dst(self) -> int:
        """Returns the number of destination nodes."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Returns the number of sampled edges."""
        return self.indices.numel()

    @cached_property
    def in_degrees(self) -> Tensor:
        """Returns [num_dst] int32: neighbours drawn for each destination."""
        return self.indptr.diff()

    @cached_property
    def out_degrees(self) -> Tensor:
        """Returns [num_src] int32: destinations that drew each source."""
        ones = torch.ones_like(self.indices)
        return ones.new_zeros(self.num_src).index_add_(0, self.indices, ones)

    @cached_property
    def destinations(self) -> Tensor:
        """Returns [num_edges] int32: each edge's destination; with `indices`, the edges as pairs (COO)."""
        numbers = torch.arange(self.num_dst, dtype=self.indices.dtype, device=self.indices.device)
        return numbers.repeat_interleave(self.in_degrees, output_size=self.num_edges)

    @cached_property
    def by_source(self) -> EdgesBySource:
        """Returns the same edges grouped by source: what a backward pass sums over."""
        edges = torch.argsort(self.indices, stable=True)  # stable: a radix sort on a CPU, and deterministic
        indptr = self.indptr.new_zeros(self.num_src + 1)
        torch.cumsum(self.out_degrees, 0, dtype=indptr.dtype, out=indptr[1:])
        return EdgesBySource(indptr, self.destinations[edges], edges)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """Returns the same block with its tensors on `device`."""
        return moved(self, device, non_blocking)


@dataclass(frozen=True)
class Pairs:
    """Holds the pairs of nodes that a link predictor judges, seed edges and negatives; or pairs that have labels.

    `src` and `dst` are positions among the seeds of their types: rows of what the innermost blocks yield.
    """

    src: Tensor  # [P] int64
    dst: Tensor  # [P] int64
    label: Tensor  # [P] float32: 1 for an edge, 0 for a negative; edges come first. Or the labels given, see `y`

    def __repr__(self) -> str:
        """Says the shapes in a line."""
        return _in_a_line(self, {"src": self.src, "dst": self.dst, "label": self.label})

    def y(self, target_kind: str) -> Tensor:
        """Returns the labels as a minibatch has them whose `SourceSchema.target_kind` this is."""
        if target_kind == "class":
            return self.label.long()
        return self.label.unsqueeze(1) if target_kind == "regression" else self.label


def _in_a_line(value: object, parts: Mapping[str, Tensor | int | None]) -> str:
    """Returns what `value` consists of, as PyG's `Data` says it: tensors as shapes, and not those that are None.

    Example:
        >>> print(batch.blocks[0])
        Block(num_src=9876, num_dst=3210, num_edges=12345, edge_x=[12345, 4])
    """
    told = {name: list(part.shape) if isinstance(part, Tensor) else part for name, part in parts.items()}
    return f"{type(value).__name__}({', '.join(f'{name}={part}' for name, part in told.items() if part is not None)})"


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yields all tensors of a minibatch or of a part of one."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, TableRows):
        yield from tensors_of((value.words, value.places))
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, Mapping | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(each)


def moved(value: _T, device: torch.device | str, non_blocking: bool) -> _T:
    """Returns `value`, or what it consists of, with its tensors on `device`."""
    found: _T = _moved(value, device, non_blocking, {})
    return found


def _moved(part: Any, device: torch.device | str, non_blocking: bool, tables: dict[int, TableRows]) -> Any:
    """Moves each of `tables` once: x, columns and nulls share what is decoded."""
    if isinstance(part, Tensor):
        return part.to(device, non_blocking=non_blocking)
    if isinstance(part, TableRows):
        if id(part) not in tables:
            tables[id(part)] = part.to(device, non_blocking)
        return tables[id(part)]
    if is_dataclass(part) and not isinstance(part, type):
        found = {field.name: _moved(getattr(part, field.name), device, non_blocking, tables) for field in fields(part)}
        return replace(part, **found)
    if isinstance(part, Mapping):
        return {key: _moved(each, device, non_blocking, tables) for key, each in part.items()}
    return tuple(_moved(each, device, non_blocking, tables) for each in part) if isinstance(part, tuple) else part


def array_lines(name: str, value: Tensor | Mapping[str, Tensor] | None) -> Iterator[str]:
    """Yields a line for each array that a minibatch calls `name`, with its dtype and shape; none for None."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from array_lines(f"{name}[{key!r}]", each)
    elif value is not None:
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        yield f"{name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}{device}"
