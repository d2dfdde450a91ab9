"""Rows of tables that kept their columns, in a minibatch: decoded on their device where somebody asks for them.

The records of a minibatch take a fraction of the bytes of x, so they are what is delivered and moved to a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor


class _Decoded(Protocol):
    columns: Mapping[str, Tensor]
    nulls: Mapping[str, Tensor]


class View(Protocol):
    """Reads records; see `formats.record_view.RecordView`."""

    def decode(self, words: Tensor, /) -> Any:
        """Returns the columns and nulls of records [R, words]."""
        ...

    def x(self, decoded: Any, num_rows: int, device: torch.device, /) -> Tensor:
        """Returns x [R, D] float32 of records that were decoded."""
        ...


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of the input nodes of one type. What was asked for is kept."""

    words: Tensor  # [R, words] int32: each record once, however many nodes take it
    places: Tensor | None  # [U] int32, in [0, R), of each node's; None: they have one each, in order
    view: View
    _elsewhere: dict[torch.device, TableRows] = field(default_factory=dict)

    @cached_property
    def x(self) -> Tensor:
        """Returns [U, D] float32 features."""
        return self._spread(self.view.x(self._decoded, len(self.words), self.words.device))

    @cached_property
    def columns(self) -> Mapping[str, Tensor]:
        """Returns the columns, see `TypedMiniBatch`."""
        return _Spread(self._decoded.columns, self)

    @cached_property
    def nulls(self) -> Mapping[str, Tensor]:
        """Returns [U] bool of each column that may be null."""
        return _Spread(self._decoded.nulls, self)

    @cached_property
    def _decoded(self) -> _Decoded:
        found: _Decoded = self.view.decode(self.words)
        return found

    def _spread(self, rows: Tensor) -> Tensor:
        return rows if self.places is None else rows.index_select(0, self.places)

    def to(self, device: torch.device | str, non_blocking: bool) -> TableRows:
        """Returns the same rows on `device`: the same object to all who ask, as they share what is decoded."""
        device = torch.device(device)
        if device not in self._elsewhere:
            words = self.words.to(device, non_blocking=non_blocking)
            places = None if self.places is None else self.places.to(device, non_blocking=non_blocking)
            self._elsewhere[device] = self if words is self.words else TableRows(words, places, self.view)
        return self._elsewhere[device]


class _Spread(Mapping[str, Tensor]):
    """Holds a value for each node, made of one for each record where somebody asks for it."""

    def __init__(self, of_records: Mapping[str, Tensor], rows: TableRows) -> None:
        self._of_records, self._rows, self._made = of_records, rows, dict[str, Tensor]()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._rows._spread(self._of_records[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._of_records

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_records)

    def __len__(self) -> int:
        return len(self._of_records)


@dataclass(frozen=True, eq=False)
class ByType(Mapping[str, Any]):
    """Holds x, columns or nulls of a minibatch by node type.

    Args:
        parts: rows of tables, and the tensors of other types.
        what: the attribute of rows of tables.
    """

    parts: Mapping[str, Tensor | TableRows]
    what: str

    def __getitem__(self, node_type: str) -> Any:
        part = self.parts[node_type]
        return getattr(part, self.what) if isinstance(part, TableRows) else part

    def __contains__(self, node_type: object) -> bool:
        return node_type in self.parts

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)
