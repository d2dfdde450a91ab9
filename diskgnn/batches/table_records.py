"""Rows of tables that kept their columns, in a minibatch: decoded on their device where somebody asks for them.

The records of a minibatch take a fraction of the bytes of x, so they are what is delivered and moved to a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

    def widened(self, words: Tensor, places: Tensor | None, /) -> Tensor:
        """Returns x [U, D] float32 of records [R, words] at `places` [U]."""
        ...


@dataclass(frozen=True, eq=False)
class SpreadRows(Mapping[str, Tensor]):
    """Holds a value for each node in each column, made of one for each record where somebody asks for it."""

    of_records: Mapping[str, Tensor]  # [R] or [R, width]
    places: Tensor | None  # [U] int32, in [0, R), of each node's record; None: they have one each, in order

    @cached_property
    def _made(self) -> dict[str, Tensor]:
        return {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = _spread(self.of_records[name], self.places)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self.of_records

    def __iter__(self) -> Iterator[str]:
        return iter(self.of_records)

    def __len__(self) -> int:
        return len(self.of_records)


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of the input nodes of one type. What was asked for is kept. Nothing here refers to it, so that it goes as
    soon as the minibatch does: its records may be the memory that a loader reads the next one into."""

    words: Tensor  # [R, words] int32: each record once, however many nodes take it
    places: Tensor | None  # [U] int32, in [0, R), see `SpreadRows`
    view: View

    @cached_property
    def x(self) -> Tensor:
        """Returns [U, D] float32 features."""
        with torch.inference_mode(False):  # another one may train on it
            if self.words.device.type == "cpu":  # in one pass; elsewhere passes are cheap, and columns are decoded once
                return self.view.widened(self.words, self.places)
            return _spread(self.view.x(self._decoded, len(self.words), self.words.device), self.places)

    @cached_property
    def columns(self) -> Mapping[str, Tensor]:
        """Returns the columns, see `TypedMiniBatch`."""
        return SpreadRows(self._decoded.columns, self.places)

    @cached_property
    def nulls(self) -> Mapping[str, Tensor]:
        """Returns [U] bool of each column that may be null."""
        return SpreadRows(self._decoded.nulls, self.places)

    @cached_property
    def _decoded(self) -> _Decoded:
        with torch.inference_mode(False):
            found: _Decoded = self.view.decode(self.words)
        return found

    def to(self, device: torch.device | str, non_blocking: bool) -> TableRows:
        """Returns the same rows on `device`."""
        words = self.words.to(device, non_blocking=non_blocking)
        if words is self.words:
            return self
        places = None if self.places is None else self.places.to(device, non_blocking=non_blocking)
        return TableRows(words, places, self.view)


def _spread(rows: Tensor, places: Tensor | None) -> Tensor:
    with torch.inference_mode(False):
        return rows if places is None else rows.index_select(0, places)


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
