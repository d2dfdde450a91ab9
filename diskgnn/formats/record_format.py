"""A row of several columns, a record: how its fields lie in its bytes.

A record has a block for each kind of numbers: int64, float32, int32 codes, lists of codes, embeddings in float32, in
codes of a `Quantisation` and in int8, then a bit for each column that may be null. In a block, columns are in the order
of their names. Whoever only moves rows takes them as int32 words; `record_view` reads their columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from diskgnn.errors import ConfigError
from diskgnn.formats.artifacts import RECORD
from diskgnn.formats.records import LEFT_OUT, Codec, Key, Record, one_of, typed, whole
from diskgnn.formats.row_format import RowFormat
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.schema import TableColumn
from diskgnn.units import counted

if TYPE_CHECKING:
    import torch

NULLS = "nulls"  # what the file calls the bits, with the bytes that fill the last word
WORD_BYTES = 4
# By (kind, dtype), the block, in their order. Kinds are called as in torch_frame, where a boolean is a category.
_BLOCKS = {
    ("numerical", "int64"): 0, ("timestamp", "int64"): 0, ("numerical", "float32"): 1, ("categorical", "int32"): 2,
    ("boolean", "int32"): 2, ("multicategorical", "int32"): 3, ("embedding", "float32"): 4, ("embedding", "int8"): 6,
}  # fmt: skip
_QUANTISED_BLOCK = 5  # where those of float32 would be among the others: columns keep their order, and begin in a word
_CODED = ("categorical", "multicategorical")
WIDE = ("multicategorical", "embedding")  # whose columns are [n, width]
_MOST_HEADER_BYTES = 4000  # of the .npy file: what is read of one on a store
_MOST_COLUMNS = 1 << 16


@dataclass(frozen=True)
class RecordField(Record):
    """One column of a record.

    Its values are exact int64 numbers; float32 numbers; int64 microseconds since 1970 ("timestamp"); codes of a
    category, -1 where the value is null or unknown; 0, 1 or -1 ("boolean"); codes of several values, and -1 behind them
    ("multicategorical"); or vectors ("embedding"), which `quantised` are int8 in place of float32: codes of a
    `Quantisation`. Null is the smallest int64, NaN, -1 or zeros, and a bit that is set.
    """

    name: str
    kind: Annotated[str, one_of("numerical", "timestamp", "categorical", "boolean", "multicategorical", "embedding")]
    dtype: Annotated[str, one_of("int64", "float32", "int32", "int8")]
    offset: Annotated[int, whole()] = 0  # in the record, bytes
    width: Annotated[int, LEFT_OUT, whole(1)] = 1  # values; above 1 of WIDE only
    null_bit: Annotated[int | None, LEFT_OUT] = None  # of the bits that follow the values; None: never null
    num_values: Annotated[int | None, LEFT_OUT] = None  # of categories: codes are less
    quantised: Annotated[bool, LEFT_OUT] = False  # of int8 embeddings: they stand for float32

    @property
    def block(self) -> int:
        """Returns the number of the block that it lies in."""
        return _QUANTISED_BLOCK if self.quantised else _BLOCKS[self.kind, self.dtype]

    @property
    def delivered_dtype(self) -> str:
        """Returns the dtype of its values as minibatches have them."""
        return "float32" if self.quantised else self.dtype

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of its values."""
        return self.width * np.dtype(self.dtype).itemsize

    def check_parsed(self) -> None:
        """Refuses fields that there are not."""
        if (self.kind, self.dtype) not in _BLOCKS or (self.width > 1 and self.kind not in WIDE):
            raise ValueError(f"a column of kind {self.kind!r}, {self.width} x {self.dtype}")
        if (self.num_values is not None) != (self.kind in _CODED):
            raise ValueError(f"a column of kind {self.kind!r} of {self.num_values} values")
        if self.quantised and (self.kind, self.dtype) != ("embedding", "int8"):
            raise ValueError(f"a quantised column of kind {self.kind!r}, {self.dtype}")
        for number in (self.null_bit, self.num_values):
            if number is not None and not 0 <= typed(number, int) < 1 << 31:
                raise ValueError(f"a column with null bit {self.null_bit} and {self.num_values} values")


@dataclass(frozen=True)
class RecordFormat(RowFormat):
    """The rows of a table that keeps its columns.

    To all but the last step they are rows of int32 words. `num_features` is D, the width of x: what models of vectors
    take, see `record_view`.

    Raises:
        ConfigError: fields that do not lie as `of` lays them out.
    """

    fields: Annotated[tuple[RecordField, ...], Key("record")]

    def __post_init__(self) -> None:
        if self.dtype != RECORD:
            raise ConfigError(f"feature_dtype: expected {RECORD!r} of rows with columns, found {self.dtype!r}")
        if self.num_features < 1 or not 0 < len(self.fields) <= _MOST_COLUMNS:
            raise ConfigError(f"record: expected columns, found {len(self.fields)} for {self.num_features} features")
        if self.fields != _laid_out(self.fields) or len({each.name for each in self.fields}) < len(self.fields):
            raise ConfigError("record: its columns do not lie where they should, or have a name twice")

    @staticmethod
    def of(fields: Sequence[RecordField], num_features: int) -> RecordFormat:
        """Returns the format of records of these columns, in any order; offsets and numbers of bits are found, a
        `null_bit` of any number says that there shall be one.

        Raises:
            ConfigError: there are no columns, too many, or two of one name.
        """
        return RecordFormat(RECORD, num_features, _laid_out(fields))

    def columns(self, features: Iterable[FeatureColumn] | None, values_digest: str | None) -> tuple[TableColumn, ...]:
        """Returns what minibatches have of them.

        Args:
            features: what x consists of.
            values_digest: names what the codes of categories stand for.
        """
        embedders = {each.name: each.embedder for each in features or ()}
        return tuple(
            TableColumn(
                each.name, each.kind, each.delivered_dtype, each.width, each.num_values, each.null_bit is not None,
                None if each.num_values is None else values_digest, embedders.get(each.name),
            ) for each in self.fields
        )  # fmt: skip

    def quantised(self) -> RecordFormat:
        """Returns the format of the same columns with codes in place of float32 embeddings."""
        return self.of([
            replace(each, dtype="int8", quantised=True) if (each.kind, each.dtype) == ("embedding", "float32") else each
            for each in self.fields
        ], self.num_features)  # fmt: skip

    def widened(self) -> RecordFormat:
        """Returns the format of the same columns with float32 embeddings in place of codes."""
        fields = [replace(each, dtype="float32", quantised=False) if each.quantised else each for each in self.fields]
        return self.of(fields, self.num_features)

    @property
    def num_codes(self) -> int:
        """Returns the numbers of all embeddings that are codes; they lie back to back."""
        return sum(each.width for each in self.fields if each.quantised)

    @property
    def are_codes(self) -> bool:
        """Returns True if there are some."""
        return self.num_codes > 0

    @property
    def storage(self) -> np.dtype[Any]:
        """Returns the dtype of the words."""
        return np.dtype("<i4")

    @property
    def stored_columns(self) -> int:
        """Returns how many words a row has."""
        return self.row_bytes // WORD_BYTES

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of one row, a multiple of 4."""
        return -(-(self.nulls_offset + -(-self.num_nullable // 8)) // WORD_BYTES) * WORD_BYTES

    @property
    def nulls_offset(self) -> int:
        """Returns where the bits start, in bytes: behind the values."""
        return sum(each.num_bytes for each in self.fields)

    @property
    def num_nullable(self) -> int:
        """Returns the columns that may be null."""
        return sum(each.null_bit is not None for each in self.fields)

    @property
    def exponent_bits(self) -> int | None:
        """Returns None: rows are no floats."""
        return None

    @property
    def torch_dtype(self) -> torch.dtype:
        """Returns what torch calls the dtype of the words."""
        import torch

        return torch.int32

    @property
    def delivered_row_bytes(self) -> int:
        """Returns the bytes of a row of a minibatch whose model asks for all of it: its words, its columns and x."""
        return 2 * self.row_bytes + self.num_nullable + 4 * (self.num_codes + self.num_features)

    @property
    def file_dtype(self) -> np.dtype[Any]:
        """Returns the dtype of a graph's file of them: a field for each column, under its name where .npy can have
        it."""
        names = [each.name for each in self.fields]
        if (
            not all(name and name.isascii() for name in names)
            or NULLS in names
            or sum(map(len, names)) + 32 * len(names) > _MOST_HEADER_BYTES
        ):
            names = [f"column_{number}" for number in range(len(names))]
        listed: list[Any] = [
            (name, np.dtype(each.dtype).newbyteorder("<"), *([(each.width,)] if each.width > 1 else []))
            for name, each in zip(names, self.fields, strict=True)
        ]
        rest = self.row_bytes - self.nulls_offset
        return np.dtype([*listed, *([(NULLS, "|u1", (rest,))] if rest else [])])

    @property
    def file_row_shape(self) -> tuple[int, ...]:
        """Returns (): the file is an array of records."""
        return ()

    @property
    def told(self) -> str:
        """Returns for people how many columns and bytes there are."""
        return f"{counted(len(self.fields), 'column')}, {self.row_bytes} bytes"


def _laid_out(fields: Sequence[RecordField]) -> tuple[RecordField, ...]:
    """Returns the fields in their order, with their offsets and the numbers of their bits."""
    found, offset, bit = list[RecordField](), 0, 0
    for each in sorted(fields, key=lambda each: (each.block, each.name)):
        is_nullable = each.null_bit is not None
        found.append(replace(each, offset=offset, null_bit=bit if is_nullable else None))
        offset, bit = offset + each.num_bytes, bit + is_nullable
    return tuple(found)


def _parse(config: Any) -> RowFormat:
    if config.get("feature_dtype") != RECORD:
        return RowFormat.parse(config)
    return RecordFormat.parse(config)


ROWS = Codec[RowFormat](lambda rows: rows.to_json(), _parse, "feature_dtype")  # of either form, for manifests
