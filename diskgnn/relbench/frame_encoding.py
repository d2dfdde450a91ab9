"""Rows of a table as torch_frame encodes them, kept as records: some rows are encoded at a time, by torch_frame.

So codes, numbers and statistics are those of `torch_frame.data.Dataset.materialize`, whatever it does with a value.
`convert` finds the same statistics of its tables by itself (`importers.tables.statistics_finder`), in passes over what
does not fit in memory, and without torch_frame. That cannot stand in for this: which of two values that come equally
often has the smaller code is decided by a sort of pandas' that is not stable, and columns may hold objects of any type.
Nor can this for that: it has a column in memory. What either finds, graphs keep in one way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any

import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import torch
import torch_frame
from torch_frame.data import Dataset
from torch_frame.data.stats import StatType, compute_col_stats

from diskgnn.errors import ConfigError, InputError
from diskgnn.formats.categories import CATEGORIES, value_as_text
from diskgnn.formats.column_statistics import DESCRIBED, ColumnStatistics
from diskgnn.formats.record_format import RecordField, RecordFormat
from diskgnn.importers.containers.rows import RowSource
from diskgnn.pyg.frame_rows import longest_list, microseconds, packed_rows, widths
from diskgnn.relbench.stored_tables import StoredTable

_CHUNK_BYTES, _MOST_ROWS = 8 << 20, 1 << 16
_TRIED = 8  # rows that tell how long vectors are
_KINDS = ("numerical", "categorical", "multicategorical", "timestamp", "embedding", "text_embedded")
_COUNTED = {"categorical": StatType.COUNT, "multicategorical": StatType.MULTI_COUNT}

Statistics = dict[StatType, Any]


class FrameEncoding:
    """Says how the columns of a table are encoded: by their stypes, and by what all of their rows say.

    Args:
        table: its rows; there is at least one.
        kinds: the stype of each column that is no key; of none, there is a constant.
        embedder: a TextEmbedderConfig for columns of text.

    Attributes:
        record: the format of the records; None of the constant.

    Raises:
        ConfigError: a column that there is not, or of an stype that RelBench's models have no encoder for.
        InputError: values that torch_frame cannot encode so.
    """

    def __init__(self, table: StoredTable, kinds: Mapping[str, torch_frame.stype], embedder: Any) -> None:
        self._table, self._kinds, self._embedder = table, dict(kinds), embedder
        for name, stype in kinds.items():
            if not isinstance(name, str):
                raise ConfigError(f"col_to_stype_dict: expected columns of {table.name} called by text, found {name!r}")
            if name not in table.names:
                raise ConfigError(f"col_to_stype_dict: expected columns of {table.name}, found {name!r}")
            if stype.value not in _KINDS:
                raise ConfigError(
                    f"col_to_stype_dict: {table.name}.{name}: expected {', '.join(_KINDS)}, found {stype.value}, which "
                    "RelBench's models have no encoder for; leave the column out"
                )
        if any(stype.value == "text_embedded" for stype in kinds.values()) and embedder is None:
            raise ConfigError(f"text_embedder_cfg: expected one for the columns of text of {table.name}, found none")
        self._dtypes: dict[str, Any] = {}  # of whole columns: those of some rows may have others
        # Of columns whose rows say together how they are read: timestamps in text, and what is embedded as text.
        self._whole: dict[str, pd.Series] = {}
        self._statistics = {name: self._statistics_of(name, stype) for name, stype in kinds.items()}
        self.record = self._record() if kinds else None

    def _statistics_of(self, name: str, stype: torch_frame.stype) -> Statistics:
        if stype.value == "text_embedded" and not self._is_of_text(name):
            self._whole[name] = self._table.column(name).astype(str)
        if stype.value in ("text_embedded", "embedding"):
            return {}
        column = self._table.column(name)
        if stype.value == "timestamp" and not pd.api.types.is_datetime64_any_dtype(column):
            column = self._whole[name] = pd.to_datetime(column, errors="coerce")
        self._dtypes[name] = column.dtype
        try:
            return dict(compute_col_stats(column, stype))
        except (TypeError, ValueError) as error:
            raise InputError(f"table {self._table.name}: column {name!r} as {stype.value}: {error}") from error

    def _is_of_text(self, name: str) -> bool:
        """Returns True of a column of objects such as text, which some rows have just as all of them. Numbers and times
        become other text beside nulls, or beside times of day."""
        for each in self._table.chunks([name], _MOST_ROWS):
            if each[name].dtype != object:
                return False
            if any(isinstance(value, str) for value in each[name]):
                break  # so are the other rows of a file
        return True

    def _record(self) -> RecordFormat:
        lists = [name for name, stype in self._kinds.items() if stype.value == "multicategorical"]
        longest = dict.fromkeys(lists, 1)
        for name in lists:
            for frame in self._frames(_MOST_ROWS, [name]):
                longest[name] = max(longest[name], longest_list(frame))
        first = next(self._frames(_TRIED))
        for name, width in widths(first).items():
            self._statistics[name][StatType.EMB_DIM] = width
        fields = []
        for name, stype in self._kinds.items():
            if stype.value == "numerical":
                fields.append(RecordField(name, "numerical", "float32"))
            elif stype.value == "timestamp":
                fields.append(RecordField(name, "timestamp", "int64", null_bit=0))
            elif stype.value in _COUNTED:
                num_values = len(self._statistics[name][_COUNTED[stype.value]][0])
                width = longest.get(name, 1)
                fields.append(RecordField(name, stype.value, "int32", width=width, num_values=num_values, null_bit=0))
            else:
                width = self._statistics[name][StatType.EMB_DIM]
                fields.append(RecordField(name, "embedding", "float32", width=width))
        return RecordFormat.of(fields, 1)

    def _frames(self, rows: int, names: list[str] | None = None) -> Iterator[Any]:
        """Yields TensorFrames of all rows in order, of the columns `names` or of all."""
        kinds = {name: stype for name, stype in self._kinds.items() if names is None or name in names}
        statistics = {name: dict(self._statistics[name]) for name in kinds}
        for name, stype in kinds.items():
            if stype.value == "embedding":
                statistics[name].setdefault(StatType.EMB_DIM, 0)  # which torch_frame finds by itself
        start = 0
        for each in self._table.chunks(list(kinds), rows):
            for name in kinds:
                if name in self._whole:
                    each[name] = self._whole[name].iloc[start : start + len(each)].to_numpy()
                elif name in self._dtypes and each[name].dtype != self._dtypes[name]:
                    each[name] = each[name].astype(self._dtypes[name])
            data_set = Dataset(each, col_to_stype=kinds, col_to_text_embedder_cfg=self._embedder)
            try:
                yield data_set.materialize(col_stats=statistics).tensor_frame
            except (TypeError, ValueError) as error:
                raise InputError(f"table {self._table.name}: torch_frame cannot encode it: {error}") from error
            start += len(each)

    def rows(self) -> RowSource | None:
        """Returns the records [N], which are encoded as they are read; None of the constant."""
        record, table = self.record, self._table
        if record is None:
            return None
        step = max(1, min(_MOST_ROWS, _CHUNK_BYTES // record.row_bytes))

        def read() -> Iterator[npt.NDArray[Any]]:
            for frame in self._frames(step):
                yield packed_rows(f"table {table.name}", frame, record, 0, frame.num_rows)

        return RowSource(
            f"rows of table {table.name}", table.num_rows, (), record.file_dtype, partial(read), columns=(),
            record=record, categories=self._categories(),
            statistics=tuple(self._described(each) for each in record.fields if each.kind in DESCRIBED),
        )  # fmt: skip

    def _described(self, field: RecordField) -> ColumnStatistics:
        """Returns what a graph keeps of the statistics of a column."""
        found = self._statistics[field.name]
        if field.kind == "timestamp":
            times = (StatType.OLDEST_TIME, StatType.MEDIAN_TIME, StatType.NEWEST_TIME)
            parts = torch.stack([found[each] for each in times]).numpy()
            return ColumnStatistics(field.name, times=None if parts.max() < 0 else tuple(microseconds(parts).tolist()))
        mean, deviation = (
            number if isfinite(number) else None for number in (found[StatType.MEAN], found[StatType.STD])
        )
        quantiles = tuple(map(float, found[StatType.QUANTILES]))
        return ColumnStatistics(field.name, mean, deviation, quantiles if all(map(isfinite, quantiles)) else None)

    def _categories(self) -> pa.Table | None:
        counted = {name: stype.value for name, stype in self._kinds.items() if stype.value in _COUNTED}
        if not counted:
            return None
        columns: dict[str, list[Any]] = {"column": [], "value": [], "count": [], "type": []}
        for name in sorted(counted):
            values, counts = self._statistics[name][_COUNTED[counted[name]]]
            columns["column"] += [name] * len(values)
            texts = [value_as_text(value) for value in values]
            columns["value"] += [text for text, _ in texts]
            columns["type"] += [kind for _, kind in texts]
            columns["count"] += [int(count) for count in counts]
        return pa.table(columns, schema=CATEGORIES)
