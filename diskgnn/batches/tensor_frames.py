"""Columns that tables kept as TensorFrames, as torch_frame's `Dataset.materialize` makes them of a data frame.

| kind of column | stype | values of n columns |
|---|---|---|
| numerical | numerical | float32 [N, n]; null is NaN |
| categorical, boolean | categorical | int64 [N, n] codes; -1 is null or unknown |
| multicategorical | multicategorical | a MultiNestedTensor of int64 codes; null is [-1], unknown values are left out |
| timestamp | timestamp | int64 [N, n, 7] year, month - 1, day - 1, weekday, hour, minute, second in UTC; null is -1 |
| embedding | embedding | a MultiEmbeddingTensor of float32 |

A table without columns has `__const__`, which is 1, as RelBench's `make_pkey_fkey_graph` gives it. Only whoever asks
for a TensorFrame imports torch_frame.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diskgnn.errors import DataWarning, UnavailableError, callers_level
from diskgnn.specs.feature_columns import HASH_STEPS
from diskgnn.specs.schema import TableColumn

if TYPE_CHECKING:
    import torch_frame

CONSTANT = "__const__"  # the column of a table that has none
STYPES = ("numerical", "categorical", "multicategorical", "timestamp", "embedding")  # in the order of torch_frame
_PER_SECOND, _PER_DAY = 10**6, 86_400
_FIRST_WEEKDAY = 3  # of 1970-01-01, a Thursday; Monday is 0
# Of the calendar that begins in March of year 0: days before 1970, days in 400 years.
_BEFORE, _ERA = 719_468, 146_097


def in_order(table: Iterable[TableColumn]) -> list[TableColumn]:
    """Returns columns in the order in which torch_frame has those of an stype: by name, of embeddings those that were
    made of text behind the others."""
    return sorted(table, key=lambda each: (each.embedder is not None, each.name))


def tensor_frame(
    table: Sequence[TableColumn],
    columns: Mapping[str, Tensor],
    nulls: Mapping[str, Tensor],
    num_rows: int,
    device: torch.device | str,
) -> torch_frame.TensorFrame:
    """Returns rows of a table as torch_frame has them.

    Args:
        table: its columns, which stay in this order within an stype; of none, there is the constant.
        columns: [N] or [N, width] of each of them, as minibatches have them.
        nulls: [N] of those that may be null.
        num_rows: N.
        device: where the values are wanted, which is where those of `columns` are.

    Raises:
        UnavailableError: torch_frame cannot be imported.
    """
    library = _imported()
    if isinstance(library, ImportError):
        raise UnavailableError(f"a TensorFrame needs torch_frame, found {library}; pip install pytorch-frame")
    rows = _Rows(library, columns, nulls, num_rows)
    features: dict[Any, Any] = {}
    names: dict[Any, list[str]] = {}
    for stype in STYPES:
        if listed := [each for each in table if stype_of(each) == stype]:
            key = library.stype(stype)
            features[key] = _VALUES[stype](rows, listed)
            names[key] = [each.name for each in listed]
    if not names:
        key = library.stype("numerical")
        features[key], names[key] = torch.ones((num_rows, 1), device=device), [CONSTANT]
    return library.TensorFrame(features, names)


def set_frames(
    store_of: Callable[[str], Any],
    tables: Mapping[str, Sequence[TableColumn]] | None,
    columns: Mapping[str, Mapping[str, Tensor]] | None,
    nulls: Mapping[str, Mapping[str, Tensor]] | None,
    num_rows: Mapping[str, int],
    device: torch.device,
) -> None:
    """Gives PyG's store of each node type whose table kept its columns the TensorFrame of a minibatch's rows, as `tf`.
    Warns in its place if torch_frame cannot be imported: what models of vectors take is there without it."""
    if not tables:
        return
    if isinstance(missing := _imported(), ImportError):
        warnings.warn(
            f"to_pyg() has no tf of tables that kept their columns, as torch_frame cannot be imported ({missing}); pip "
            "install pytorch-frame",
            DataWarning,
            stacklevel=callers_level(),
        )
        return
    for name, table in tables.items():
        of_type = (columns or {}).get(name, {}), (nulls or {}).get(name, {})
        store_of(name).tf = tensor_frame(table, *of_type, num_rows[name], device)


def _imported() -> Any:
    """Returns torch_frame, or the error of importing it."""
    try:
        import torch_frame
    except ImportError as error:
        return error
    return torch_frame


def stype_of(column: TableColumn) -> str:
    """Returns the name of the stype that torch_frame has such a column as."""
    return "categorical" if column.kind == "boolean" else column.kind


@dataclass(frozen=True)
class _Rows:
    """Rows of a table, of which a function for each stype takes columns."""

    library: Any
    columns: Mapping[str, Tensor]
    nulls: Mapping[str, Tensor]
    num_rows: int


def _numbers(rows: _Rows, table: Sequence[TableColumn]) -> Tensor:
    found = [rows.columns[each.name].to(torch.float32) for each in table]
    for number, each in enumerate(table):
        if each.name in rows.nulls:
            found[number] = found[number].masked_fill(rows.nulls[each.name], torch.nan)
    return torch.stack(found, 1)


def _codes(rows: _Rows, table: Sequence[TableColumn]) -> Tensor:
    return torch.stack([rows.columns[each.name].long() for each in table], 1)


def _code_lists(rows: _Rows, table: Sequence[TableColumn]) -> Any:
    device, width = rows.columns[table[0].name].device, max(each.width for each in table)
    codes = torch.full((rows.num_rows, len(table), width), -1, dtype=torch.int64, device=device)
    for number, each in enumerate(table):
        codes[:, number, : each.width] = rows.columns[each.name]
    is_there = codes >= 0
    for number, each in enumerate(table):
        if each.name in rows.nulls:
            is_there[:, number, 0] |= rows.nulls[each.name]
    offset = torch.zeros(rows.num_rows * len(table) + 1, dtype=torch.int64, device=device)
    torch.cumsum(is_there.sum(2).flatten(), 0, out=offset[1:])
    return rows.library.data.MultiNestedTensor(rows.num_rows, len(table), codes[is_there], offset)


def _times(rows: _Rows, table: Sequence[TableColumn]) -> Tensor:
    found = calendar(torch.stack([rows.columns[each.name] for each in table], 1))
    for number, each in enumerate(table):
        if each.name in rows.nulls:
            found[:, number] = found[:, number].masked_fill(rows.nulls[each.name].unsqueeze(1), -1)
    return found


def _vectors(rows: _Rows, table: Sequence[TableColumn]) -> Any:
    device, ends = rows.columns[table[0].name].device, [0]
    for each in table:
        ends.append(ends[-1] + each.width)
    values = torch.empty((rows.num_rows, ends[-1]), dtype=torch.float32, device=device)
    for each, (begin, end) in zip(table, pairwise(ends), strict=True):
        values[:, begin:end] = rows.columns[each.name]
        if each.embedder is not None and each.dtype == "int8":
            values[:, begin:end] /= HASH_STEPS
    offset = torch.tensor(ends, device=device)
    return rows.library.data.MultiEmbeddingTensor(rows.num_rows, len(table), values, offset)


def calendar(timestamps: Tensor) -> Tensor:
    """Returns what torch_frame makes of moments: [...] int64 microseconds since 1970 to [..., 7] int64 year, month
    from 0, day from 0, weekday from Monday, hour, minute and second in UTC.

    By Howard Hinnant's `civil_from_days`: years begin in March, so that a leap day is the last one.
    """
    seconds = timestamps.div(_PER_SECOND, rounding_mode="floor")
    days = seconds.div(_PER_DAY, rounding_mode="floor")
    of_day = seconds - days * _PER_DAY
    shifted = days + _BEFORE
    era = shifted.div(_ERA, rounding_mode="floor")
    of_era = shifted - era * _ERA
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // (_ERA - 1)) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    month = (5 * of_year + 2) // 153  # from March
    day = of_year - (153 * month + 2) // 5
    is_next = month >= 10  # January and February of the year after
    return torch.stack(
        [
            years + 400 * era + is_next, torch.where(is_next, month - 10, month + 2), day,
            (days + _FIRST_WEEKDAY).remainder(7), of_day // 3600, of_day // 60 % 60, of_day % 60,
        ],
        -1,
    )  # fmt: skip


_VALUES: Mapping[str, Callable[[_Rows, Sequence[TableColumn]], Any]] = {
    "numerical": _numbers, "categorical": _codes, "multicategorical": _code_lists, "timestamp": _times,
    "embedding": _vectors,
}  # fmt: skip
