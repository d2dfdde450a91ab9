"""Reads columns of records as tensors, and x: the float32 features that models of vectors take.

x is what a table without records is converted to (`importers.tables.column_encoding`): scaled numbers, categories of
few values with a feature for each, vectors. Means, deviations and values are in the manifest, so it is always the same.
Numbers are scaled in float64 and then rounded. Embeddings that are quantised are dequantised, before all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import fill_record_features
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_format import WIDE, WORD_BYTES, RecordField, RecordFormat
from diskgnn.formats.row_format import RowFormat
from diskgnn.specs.feature_columns import HASH_STEPS, FeatureColumn

if TYPE_CHECKING:
    import torch
    import torch_frame
    from torch import Tensor

PER_SECOND = 10**6  # of timestamps
_NOTHING, _INTEGER, _TIMESTAMP, _FLOAT, _CODE, _FLOATS, _BYTES, _QUANTISED = range(8)  # native/files/record_features.h


@dataclass(frozen=True)
class DecodedRecords:
    """The columns of some records, on their device."""

    columns: dict[str, Tensor]  # [n] int64, float32 or int32 codes; of WIDE [n, width]
    nulls: dict[str, Tensor]  # [n] bool, of the columns that may be null


@dataclass(frozen=True)
class RecordView:
    """Reads records of a format.

    Args:
        rows: how they lie.
        features: what x consists of: columns of these, see `column_encoding`. Of none, it is a single 1.
        quantisation: what the codes of quantised embeddings mean; None: there are no such columns.
    """

    rows: RecordFormat
    features: Sequence[FeatureColumn]
    quantisation: Quantisation | None = None

    def decode(self, words: Tensor) -> DecodedRecords:
        """Returns the columns of records [n, words] as `RowFormat.as_tensor` has them. Nothing is written to them."""
        import torch

        fields = self.rows.fields
        columns: dict[str, Tensor] = {}
        for block in sorted({each.block for each in fields}):
            of_block = [each for each in fields if each.block == block]
            begin, end = of_block[0].offset // WORD_BYTES, of_block[-1].offset + of_block[-1].num_bytes
            stored = _copied(words[:, begin : -(-end // WORD_BYTES)]).view(getattr(torch, of_block[0].dtype))
            values = self._widened(stored) if of_block[0].quantised else stored
            for each in of_block:
                first = (each.offset - WORD_BYTES * begin) // stored.element_size()
                taken = values[:, first : first + each.width]
                columns[each.name] = taken if each.kind in WIDE else taken.squeeze(1)
        return DecodedRecords({each.name: columns[each.name] for each in fields}, self._nulls(words))

    def _widened(self, codes: Tensor) -> Tensor:
        assert self.quantisation is not None
        return self.quantisation.widened(codes[:, : self.rows.num_codes])

    def _nulls(self, words: Tensor) -> dict[str, Tensor]:
        import torch

        nullable = [each for each in self.rows.fields if each.null_bit is not None]
        if not nullable:
            return {}
        first = self.rows.nulls_offset // WORD_BYTES
        skipped = self.rows.nulls_offset - WORD_BYTES * first
        data = _copied(words[:, first:]).view(torch.uint8)[:, skipped:]
        numbers = torch.arange(len(nullable), device=words.device)
        bits = (data.index_select(1, numbers // 8) >> (numbers % 8).to(torch.uint8)) & 1
        return {each.name: bits[:, number].bool() for number, each in enumerate(nullable)}

    def x(self, decoded: DecodedRecords, num_rows: int, device: torch.device) -> Tensor:
        """Returns x [n, D] float32 of records that were decoded on `device`."""
        import torch

        if not self.features:
            return torch.ones((num_rows, 1), dtype=torch.float32, device=device)
        out = torch.zeros((num_rows, self.rows.num_features), dtype=torch.float32, device=device)
        fields, first = {each.name: each for each in self.rows.fields}, 0
        for column in self.features:
            values, null = decoded.columns[column.name], decoded.nulls.get(column.name)
            _fill(out[:, first : first + column.width], column, fields[column.name], values, null)
            first += column.width
        return out

    def widened(self, words: Tensor, places: Tensor | None = None) -> Tensor:
        """Returns x [U, D] float32 of records as `RowFormat.as_tensor` has them: of those at `places` [U] int32, or of
        each. On the host in one pass, without decoding them.
        """
        import torch

        if words.device.type != "cpu":
            x = self.x(self.decode(words), len(words), words.device)
            return x if places is None else x.index_select(0, places)
        num_rows = len(words if places is None else places)
        if not self.features:
            return torch.ones((num_rows, 1), dtype=torch.float32)
        x = torch.empty((num_rows, self.rows.num_features), dtype=torch.float32)
        columns, scales, code_scale, zero_point = self._sources
        fill_record_features(
            words.reshape(-1).view(torch.uint8).numpy(), self.rows.row_bytes, columns, scales, code_scale, zero_point,
            None if places is None else places.numpy(), x.numpy().reshape(-1), torch.get_num_threads(),
        )  # fmt: skip
        return x

    @cached_property
    def _sources(self) -> tuple[npt.NDArray[Any], ...]:
        """Returns what the native code knows of x: its columns, what scales them, and what codes mean."""
        first_codes, num_codes = dict[str, int](), 0
        for each in self.rows.fields:
            if each.quantised:
                first_codes[each.name], num_codes = num_codes, num_codes + each.width
        columns, scales = list[tuple[int, ...]](), list[tuple[float, float]]()
        fields, left = {each.name: each for each in self.rows.fields}, self.rows.num_features
        for column in self.features:
            field, encoding = fields[column.name], column.encoding
            null_bit = -1 if field.null_bit is None else 8 * self.rows.nulls_offset + field.null_bit
            first = first_codes.get(column.name, int(encoding == "boolean"))
            columns.append((_source_of(column, field), field.offset, column.width, null_bit, first, encoding != "raw"))
            scales.append((column.mean or 0, column.deviation or (HASH_STEPS if encoding == "text" else 1)))
            left -= column.width
        columns.append((_NOTHING, 0, left, -1, 0, 0))  # of columns without any features, x is a single 0
        codes = np.empty((2, 0), np.float32) if self.quantisation is None else self.quantisation.to_array()
        return np.array(columns, np.int64).reshape(-1), np.array([*scales, (0, 1)], np.float64).reshape(-1), *codes

    def tensor_frame(self, words: Tensor) -> torch_frame.TensorFrame:
        """Returns records [n, words] as `RowFormat.as_tensor` has them as a TensorFrame of n rows, see
        `batches.tensor_frames`.

        Raises:
            UnavailableError: torch_frame cannot be imported.
        """
        from diskgnn.batches.tensor_frames import in_order, tensor_frame

        decoded = self.decode(words)
        table = in_order(self.rows.columns(self.features, None))
        return tensor_frame(table, decoded.columns, decoded.nulls, len(words), words.device)


def _copied(words: Tensor) -> Tensor:
    """Returns a copy in memory of its own, whose bytes may be of another type: `contiguous` keeps odd strides of one
    row, and of none."""
    import torch

    return words.clone(memory_format=torch.contiguous_format)


def view_of(
    rows: RowFormat, columns: Sequence[FeatureColumn] | None, quantisation: Quantisation | None
) -> RecordView | None:
    """Returns the view of records of a manifest that says these `columns` of x; None of other rows."""
    return RecordView(rows, columns or (), quantisation) if isinstance(rows, RecordFormat) else None


def _source_of(column: FeatureColumn, field: RecordField) -> int:
    """Returns of which kind the numbers are that a column of x is made of."""
    if column.encoding in ("vector", "text"):
        return _QUANTISED if field.quantised else _BYTES if field.dtype == "int8" else _FLOATS
    if column.encoding in ("category", "boolean"):
        return _CODE
    if column.encoding != "raw" and (column.mean is None or not column.deviation):
        return _NOTHING
    if field.kind == "timestamp":
        return _TIMESTAMP
    return _INTEGER if field.dtype == "int64" else _FLOAT


def _fill(out: Tensor, column: FeatureColumn, field: RecordField, values: Tensor, null: Tensor | None) -> None:
    """Fills [n, width] of x, which is 0, from a column [n]."""
    import torch

    if column.encoding in ("vector", "text"):
        out.copy_(values)
        if column.encoding == "text" and field.delivered_dtype == "int8":
            out /= HASH_STEPS
        return
    if column.encoding in ("category", "boolean"):
        codes = torch.arange(column.width, device=out.device) + (column.encoding == "boolean")
        out.copy_(values.unsqueeze(1) == codes)
        return
    numbers = values
    if field.kind == "timestamp":
        numbers = torch.div(values, PER_SECOND, rounding_mode="floor")
    numbers = numbers.double()
    if column.encoding == "raw":
        out[:, 0] = numbers if null is None else numbers.masked_fill(null, torch.nan)
        return
    if column.mean is None or not column.deviation:
        return
    scaled = (numbers - column.mean) / column.deviation
    is_there = torch.isfinite(scaled) if null is None else torch.isfinite(scaled) & ~null
    out[:, 0] = torch.where(is_there, scaled, 0)
