"""Rows of a relational table as records, which keep their columns.

| encoding | of | column of the record |
|---|---|---|
| number, raw | whole numbers | numerical, int64: exact |
| | fractions, decimals, uint64, numbers in text | numerical, float32 |
| time | timestamps, dates, text | timestamp, int64: microseconds since 1970 in UTC, rounded down |
| | whole numbers | numerical, int64 |
| boolean | truth values | boolean, int32: 0 or 1 |
| category | strings | categorical, int32: codes |
| | lists of strings, at most 32 in each | multicategorical, int32: codes of the known ones, then -1 |
| vector | lists of numbers of equal lengths | embedding: int8 of int8, else float32 |
| hash:D | text | embedding: int8, in steps of 1/127 |
| module:function | text | embedding: float32 |

Embeddings of float32 may be quantised as they are written (`importers.quantising`).

Codes of a category are ranks of its values by how often they come, of equal ones that which comes first, in rows that
are known when a model is trained. Null, and a value that comes later, have the code -1. Text is a category if it has at
most 32 values, or a value has at least 4 rows on average; or if the user says so. All that may be that of another graph
(`KnownRecords`).

What models of vectors see is `record_view`'s x: the features that `column_encoding` makes, with categories of more than
32 values left out, and values in the order of their codes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ArtifactError, DataWarning, InputError, callers_level
from diskgnn.formats.categories import CATEGORIES, type_of_values
from diskgnn.formats.column_statistics import DESCRIBED, QUANTILES, ColumnStatistics
from diskgnn.formats.record_format import NULLS, WIDE, RecordField, RecordFormat
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource
from diskgnn.importers.source_listing import SourceListing
from diskgnn.importers.tables import column_finders, column_values, text_embedding
from diskgnn.importers.tables.column_encoding import CHOICES, KnownColumns, TableEncoding, encoding_bytes
from diskgnn.importers.tables.frames import RowTable
from diskgnn.importers.tables.odd_text import SAMPLE, read_by_people
from diskgnn.importers.tables.statistics_finder import StatisticsFinder
from diskgnn.importers.tables.table_rows import is_list
from diskgnn.importers.tables.times import counts_numbers, microseconds
from diskgnn.ordered import made_in_order
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.system.allocators import kept_memory

MOST_CATEGORIES = 1 << 20  # of a column
_MOST_VALUE_BYTES = 32 << 20  # of them
_COUNT_BYTES = 16  # of each: how often it comes, and where first
# Values are there as they were counted, as codes are looked up, and as they are written. Of one column at a time, Arrow
# has a hash table, too.
_VALUE_COPIES, _LOOKUP_COPIES = 3, 2
_LEAST_ROWS = 4  # of a value of a category, on average
_MOST_LISTED, _MOST_ASKED = 32, 256  # values of a cell: if nobody says that it is a category, and if somebody does
_KEPT_BYTES = 16 << 20  # of numbers of all columns among which quantiles are looked for
_MANY = 1 << 16  # values, by which text is told early from a category: it must not wait for 2^20 of them
_MOST_FEATURES = column_finders.MOST_VALUES  # of values, beyond which a category has no features in x
_LISTED = "categories"  # the encoding of lists of text
_COUNTED = ("category", _LISTED)
_NULL_INT = np.iinfo(np.int64).min
_BATCH_ROWS = 1 << 18  # at most, for as many values of a category: they are looked up in a table made for each batch


class CountedValues:
    """Counts the values of a category."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        self._name, self._where, self._asked = name, f"{table}.{name}", asked
        self._num_rows, self._is_text, self._why = 0, False, ""
        self._num_counted = 0  # of all batches: Arrow groups values in an order of its own, so first ones are numbered
        self._counted = self._counts(pa.array([], pa.string()))
        self._waiting: list[pa.Table] = []
        self._sample: list[str] = []  # of values that are not counted any more

    def add(self, values: pa.Array) -> None:
        """Takes `values`, which are known."""
        if self._is_text:
            return
        found = self._counts(column_values.words(values.drop_null(), self._where))
        self._num_rows += len(values) - values.null_count
        self._waiting.append(found)
        is_long = sum(int(each["value"].nbytes) for each in self._waiting) > _MOST_VALUE_BYTES
        if is_long or sum(map(len, self._waiting)) >= len(self._counted):
            self._merge()

    @property
    def held_bytes(self) -> int:
        """Returns the bytes of the values with their counts."""
        return int(self._counted.nbytes) + sum(int(each.nbytes) for each in self._waiting)

    @property
    def most_bytes(self) -> int:
        """Returns the most that these bytes can be: those that wait are fewer than those that were counted."""
        return 0 if self._is_text else 2 * (_MOST_VALUE_BYTES + _COUNT_BYTES * MOST_CATEGORIES)

    def _merge(self) -> None:
        joined = pa.concat_tables([self._counted, *self._waiting])
        summed = joined.group_by("value").aggregate([("count", "sum"), ("first", "min")])
        self._counted = pa.table({
            "value": summed["value"], "count": summed["count_sum"], "first": summed["first_min"]
        }).combine_chunks()  # fmt: skip
        self._waiting.clear()
        values = len(self._counted)
        is_early = values > _MANY and not self._asked and self._num_rows < 2 * values
        is_large = self._counted["value"].nbytes > _MOST_VALUE_BYTES
        if is_early or values > MOST_CATEGORIES or is_large:
            self._sample = self._counted["value"][:SAMPLE].to_pylist()
            self._is_text, self._counted = True, self._counted.slice(0, 0)
            self._why = f"more than {_MANY} values, too many or too rare for a category"
            if is_large:
                self._why = f"more than {_MOST_VALUE_BYTES >> 20} MiB of values, too many for a category"
            if self._asked:
                raise InputError(
                    f"{self._where}: expected at most {MOST_CATEGORIES} values of a category, and "
                    f"{_MOST_VALUE_BYTES >> 20} MiB of them, found more; encode it as none"
                )

    def found(self) -> FeatureColumn | str:
        """Returns the column, with the features that it has in x, if any; or why it is left out."""
        self._merge()
        if self._is_text:
            if told := read_by_people(self._sample):
                return f"more than {_MANY} values, most of them {told}"
            return f"{self._why}: text or ids"
        if not len(self._counted):
            return FeatureColumn(self._name, "category", 0) if self._asked else "it has no values"
        few = len(self._counted) <= _MOST_FEATURES
        if not few and not self._asked and self._num_rows < _LEAST_ROWS * len(self._counted):
            if told := read_by_people(self._counted["value"][:SAMPLE].to_pylist()):
                return f"{len(self._counted)} values, most of them {told}"
            return (
                f"{len(self._counted)} values, with fewer than {_LEAST_ROWS} rows each on average: text or ids; "
                "encoded as hash:256, text becomes vectors, and as category, values become codes"
            )
        if not few:
            return FeatureColumn(self._name, "category", 0)
        words = tuple(self.categories["value"].to_pylist())
        return FeatureColumn(self._name, "category", len(words), values=words)

    @property
    def categories(self) -> pa.Table:
        """Returns the values with their counts, by code."""
        order = np.lexsort((np.asarray(self._counted["first"]), -np.asarray(self._counted["count"])))
        return self._counted.select(["value", "count"]).take(pa.array(order))

    def _counts(self, words: pa.Array) -> pa.Table:
        found = pc.value_counts(words)  # in the order in which each comes first
        first = np.arange(self._num_counted, self._num_counted + len(found))
        self._num_counted += len(found)
        return pa.table({"value": found.field("values"), "count": found.field("counts"), "first": first})


class CountedLists(CountedValues):
    """Counts the values in lists of them."""

    def __init__(self, table: str, name: str, encoding: str, asked: bool) -> None:
        super().__init__(table, name, encoding, asked)
        self.longest = 0

    def add(self, values: pa.Array) -> None:
        """Takes `values`, which are known."""
        rows, words = _distinct(values, self._where)
        self.longest = max(self.longest, int(np.bincount(rows).max(initial=0)))
        super().add(words)

    def found(self) -> FeatureColumn | str:
        """Returns the column, which has no features in x; or why it is left out."""
        found = super().found()
        if isinstance(found, str):
            return found
        if self.longest > (most := _MOST_ASKED if self._asked else _MOST_LISTED):
            return f"lists of up to {self.longest} values, more than {most}"
        return FeatureColumn(found.name, _LISTED, 0)


class UnknownCodes(column_finders.UnknownValues):
    """A category whose values are known, or lists of them. Counts values that have no code."""

    def __init__(self, table: str, column: FeatureColumn, graph: str, known: pa.Array) -> None:
        super().__init__(table, column, graph)
        self._known, self._num_values, self._waiting = known, 0, list[pa.StructArray]()

    def add(self, values: pa.Array) -> None:
        """Takes `values`, which are known."""
        values = values.flatten() if self._column.encoding == _LISTED else values
        words = column_values.words(values, self._where).drop_null()
        self._num_values += len(words)
        self._waiting.append(pc.value_counts(words))
        if sum(map(len, self._waiting)) >= len(self._known):  # those that are known are hashed each time
            self._look_up()

    @property
    def held_bytes(self) -> int:
        """Returns the bytes of the values that are known, and of those that wait."""
        return int(self._known.nbytes) + sum(int(each.nbytes) for each in self._waiting)

    def _look_up(self) -> None:
        if not self._waiting:
            return
        counts = pa.concat_arrays(self._waiting)
        self._waiting.clear()
        unknown = counts.filter(pc.invert(pc.is_in(counts.field("values"), self._known)))
        if len(unknown) and not self._num_unknown:
            self._first_unknown = unknown.field("values")[0].as_py()
        self._num_unknown += pc.sum(unknown.field("counts")).as_py() or 0

    def told(self, num_rows: int) -> str:
        """Says which values have no code; "" if all have one."""
        self._look_up()
        if not self._num_unknown:
            return ""
        found = f"{self._num_unknown} of {self._num_values} values, first {self._first_unknown!r}"
        return f"{self._graph} has no code for them: {found}"


@dataclass(frozen=True)
class KnownRecords(KnownColumns):
    """Encodes a table as records that lie as those of a node type of another graph.

    Args:
        nodes: the type: its rows are records or constants.
    """

    nodes: NodeSet

    @property
    def record(self) -> RecordFormat | None:
        """Returns the format of the records, before embeddings are quantised; None if rows are constants."""
        rows = self.nodes.config.rows
        return rows.widened() if isinstance(rows, RecordFormat) else None

    @property
    def codes(self) -> NodeSet | None:
        """Returns the type if it has embeddings that are quantised."""
        rows = self.nodes.config.rows
        return self.nodes if rows is not None and rows.are_codes else None

    @property
    def stored(self) -> tuple[FeatureColumn, ...]:
        """Returns the columns of a record, those of x first."""
        in_x = {column.name for column in self.columns}
        return (*self.columns, *(
            FeatureColumn(each.name, "category" if each.kind == "categorical" else _LISTED, 0)
            for each in (self.record.fields if self.record else ()) if each.name not in in_x
        ))  # fmt: skip

    @cached_property
    def _categories(self) -> pa.Table | None:
        return self.nodes.categories()

    def values(self, name: str) -> pa.Array:
        """Returns the values of a category, by code.

        Raises:
            ArtifactError: they are damaged, or not as many as there are codes.
        """
        expected = next(each.num_values for each in self.record.fields if each.name == name) if self.record else 0
        table = self._categories
        found = _NO_VALUES if table is None else table.filter(pc.equal(table["column"], name))["value"]
        if len(found) != expected:
            raise ArtifactError(
                f"{self.graph} has {len(found)} values of {self.nodes.name}.{name}, expected {expected}; make it with "
                "`diskgnn convert` again"
            )
        return found.combine_chunks()

    def expected(self, column: FeatureColumn, kind: pa.DataType) -> str | None:
        """Returns what a column has to be, where it is of a type that cannot be encoded alike; None if it can."""
        field = next(each for each in (self.record.fields if self.record else ()) if each.name == column.name)
        if pa.types.is_null(kind):
            return None
        if column.encoding == _LISTED:
            is_empty = is_list(kind) and pa.types.is_null(kind.value_type)  # all lists of the column
            return None if _is_text_list(kind) or is_empty else "lists of text"
        if column.encoding == "time" and counts_numbers(kind) != (field.kind == "numerical"):
            return "whole numbers" if field.kind == "numerical" else "timestamps or dates"
        if column.encoding == "vector" and field.dtype == "int8" and not _is_int8_list(kind):
            return "lists of int8"
        return super().expected(column, kind)

    def finder(self, table: str, column: FeatureColumn) -> column_finders.Finder:
        """Returns what looks at the values of a column of `table`."""
        if column.encoding in _COUNTED:
            return UnknownCodes(table, column, self.graph, self.values(column.name))
        return super().finder(table, column)


class RecordEncoding(TableEncoding):
    """The columns of a table whose rows become records. `features` are those of x; see `TableEncoding`."""

    _choices = (*CHOICES, _LISTED)
    _finder_of = MappingProxyType({**column_finders.FINDERS, "category": CountedValues, _LISTED: CountedLists})

    @staticmethod
    def of(
        table: str,
        columns: Sequence[pa.Field],
        asked: Mapping[str, str],
        argument: str = "encode",
        known: KnownRecords | None = None,
        of: str = "",
    ) -> RecordEncoding:
        """Returns the encoding of a table, not yet complete, of its `columns` that are no keys and not the time.

        Raises:
            ConfigError, InputError: see `TableEncoding`.
        """
        found = RecordEncoding(table, {each.name: each.type for each in columns}, asked, argument, known, of=of)
        found._fields, found._known_records = {each.name: each for each in columns}, known
        found._statistics = {} if known is not None else found._statistics_finders(asked)
        if known is None:
            found.has_float_embeddings = any(found._is_float_embedding(name, asked) for name in found._finders)
        elif known.record is not None:
            found.has_float_embeddings = known.record.quantised().are_codes
        return found

    def _is_float_embedding(self, name: str, asked: Mapping[str, str]) -> bool:
        given = self._fields[name].type
        encoding = asked.get(name, self._natural_encoding(given))
        return self._kind(encoding, name)[0] == "embedding" and not self._is_int8(encoding, given)

    def _statistics_finders(self, asked: Mapping[str, str]) -> dict[str, StatisticsFinder]:
        kept, found = _KEPT_BYTES // (8 * len(QUANTILES) * max(1, len(self._finders))), {}
        for name in self._finders:
            kind, dtype = self._kind(asked.get(name, self._natural_encoding(self._fields[name].type)), name)
            if kind in DESCRIBED:
                found[name] = StatisticsFinder(name, kind, dtype, f"{self._table}.{name}", kept)
        return found

    @property
    def _column_statistics(self) -> tuple[ColumnStatistics, ...] | None:
        """Returns the statistics, those of the other graph if columns are encoded alike."""
        if self._known_records is not None:
            return self._known_records.nodes.config.statistics
        return tuple(self._statistics[each.name].found() for each in self.record.fields if each.kind in DESCRIBED)

    def _natural_encoding(self, kind: pa.DataType) -> str:
        return _LISTED if _is_text_list(kind) else super()._natural_encoding(kind)

    def _fits(self, encoding: str, kind: pa.DataType) -> bool:
        if encoding != _LISTED:
            return super()._fits(encoding, kind)
        return pa.types.is_null(kind) or (is_list(kind) and not pa.types.is_nested(kind.value_type))

    has_float_embeddings = False  # as far as their types tell: columns of float32 that can be quantised
    _fields: Mapping[str, pa.Field]
    _known_records: KnownRecords | None = None
    _stored: tuple[FeatureColumn, ...] = ()  # all columns of a record
    _statistics: dict[str, StatisticsFinder]

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Takes rows that are known, as `columns`."""
        super().add(columns)
        self._add_statistics(self.columns, columns)

    @property
    def held_bytes(self) -> int:
        """Returns what is kept in memory of the values of categories."""
        return _VALUE_COPIES * sum(self._value_bytes)

    @property
    def lookup_bytes(self) -> int:
        """Returns what the hash table of the values of a column takes; columns take turns."""
        return _LOOKUP_COPIES * max(self._value_bytes, default=0)

    @property
    def most_bytes(self) -> int | None:
        """Returns the most that both can be, whatever rows are added; None if nobody knows."""
        counted = [each.most_bytes for each in self._finders.values() if isinstance(each, CountedValues)]
        if len(counted) < len(self._value_bytes):
            return None
        return _VALUE_COPIES * sum(counted) + _LOOKUP_COPIES * max(counted, default=0)

    @property
    def _value_bytes(self) -> list[int]:
        return [each.held_bytes for each in self._finders.values() if isinstance(each, CountedValues | UnknownCodes)]

    def complete(self) -> None:
        """Ends the first pass: all known rows were added."""
        super().complete()
        self._stored = self.features
        self.features = tuple(column for column in self._stored if column.width)
        self.finish_pass([each.name for each in self._stored])

    @property
    def unfinished(self) -> list[str]:
        """Returns the columns in which quantiles are not known yet; see `TableEncoding`."""
        return [each.name for each in self._stored if each.name in self._statistics
                and not self._statistics[each.name].is_done]  # fmt: skip

    def add_again(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        """Takes the same rows as before, as some of their columns."""
        self._add_statistics(names, columns)

    def finish_pass(self, names: Sequence[str]) -> None:
        """Ends a pass: all rows of these columns were added again."""
        for name in names:
            if name in self._statistics:
                self._statistics[name].finish_pass()

    def _add_statistics(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        for name, values in zip(names, columns, strict=True):
            if name in self._statistics:
                self._statistics[name].add(values)

    def list_columns(self, of: str, listing: SourceListing) -> None:
        """Note what became of each column of the table of the type `of`."""
        super().list_columns(of, listing)
        for column in self._stored:
            if not column.width:
                share = self._nulls[column.name] / self._num_rows if self._num_rows else None
                listing.read(of, column.name, "columns", column.encoding, None, share)

    @property
    def record(self) -> RecordFormat:
        """Returns the format of the records. There is at least one column."""
        if self._known_records is not None and self._known_records.record is not None:
            return self._known_records.record
        return RecordFormat.of([self._field(column) for column in self._stored], self.width)

    def _field(self, column: FeatureColumn) -> RecordField:
        given, encoding, num_values = self._fields[column.name], column.encoding, None
        kind, dtype = self._kind(encoding, column.name)
        if kind == "embedding" and self._is_int8(column.asked_as, given.type):
            dtype = "int8"
        elif encoding in _COUNTED:
            num_values = len(self._values(column.name))
        width = self._longest(column.name) if encoding == _LISTED else column.width
        width = max(1, width) if kind in WIDE else 1
        return RecordField(
            column.name, kind, dtype, width=width, null_bit=0 if given.nullable else None, num_values=num_values
        )

    def _kind(self, encoding: str, name: str) -> tuple[str, str]:
        """Returns what a column is in the record, and the dtype of its numbers but for that of embeddings."""
        given = self._fields[name].type
        if encoding in ("number", "raw") and pa.types.is_integer(given) and not pa.types.is_uint64(given):
            return "numerical", "int64"
        if encoding == "time" and (pa.types.is_integer(given) or pa.types.is_floating(given)):
            return "numerical", "int64"
        return _KINDS["text" if text_embedding.is_embedder(encoding) else encoding]

    def _is_int8(self, encoding: str, given: pa.DataType) -> bool:
        if text_embedding.is_embedder(encoding):
            return text_embedding.hash_width(encoding, self._table) is not None
        return _is_int8_list(given)

    def _longest(self, name: str) -> int:
        finder = self._finders[name]
        assert isinstance(finder, CountedLists)
        return finder.longest

    def _values(self, name: str) -> pa.Table:
        finder = self._finders[name]
        assert isinstance(finder, CountedValues)
        return finder.categories

    def _known_values(self, name: str) -> pa.Array:
        """Returns the values of a category, by code."""
        if self._known_records is not None:
            return self._known_records.values(name)
        return self._values(name)["value"].combine_chunks()

    @property
    def categories(self) -> pa.Table:
        """Returns the rows of `CATEGORIES` of all categories that were found, by code."""
        found = [CATEGORIES.empty_table()]
        for column in self._stored:
            if column.encoding in _COUNTED:
                values = self._values(column.name)
                first = pa.array(np.zeros(len(values), np.int64))
                said = {"column": column.name, "type": type_of_values(self._fields[column.name].type)}
                same = {name: pa.array([each], pa.string()).take(first) for name, each in said.items()}
                of_column = pa.table({**same, "value": values["value"], "count": values["count"]})
                found.append(of_column.select(CATEGORIES.names))
        return pa.concat_tables(found)

    def rows(self, name: str, table: RowTable) -> RowSource:
        """Returns the rows of the table as a structured array [N], once it was read. There is at least one column.

        Raises (while streaming):
            InputError: null in a column that says that it has none, or values that are not what the encoding takes.
        """
        record, columns = self.record, self.columns
        values = {each.name: self._known_values(each.name) for each in record.fields if each.num_values is not None}
        most = max(map(len, values.values()), default=0)
        batch_rows = max(1, CHUNK_BYTES // record.row_bytes, min(_BATCH_ROWS, most))

        def encoded(given: pa.RecordBatch) -> tuple[npt.NDArray[Any], dict[str, int]]:
            return self._encoded(record, values, dict(zip(columns, given.columns, strict=True)), given.num_rows)

        def read(first: int, threads: int = 1) -> Iterator[npt.NDArray[Any]]:
            num_cut = Counter[str]()
            calls = (partial(encoded, batch) for batch in table.batches(columns, batch_rows, first))
            for rows, cut in made_in_order(calls, threads):
                num_cut.update(cut)
                yield rows
            self._warn_of_cut(record, num_cut)

        categories = self.categories if self._known_records is None else self._known_records.nodes
        return RowSource(
            name, table.num_rows, (), record.file_dtype, partial(read, 0), stored_bytes=table.stored_bytes, seek=read,
            columns=self.features, record=record, categories=categories if values else None,
            statistics=self._column_statistics,
            codes=None if self._known_records is None else self._known_records.codes,
            seek_on_threads=read if self.may_use_threads else None,
            thread_bytes=encoding_bytes(batch_rows, record.row_bytes),
        )  # fmt: skip

    def _encoded(
        self,
        record: RecordFormat,
        values: Mapping[str, pa.Array],
        given: Mapping[str, pa.Array],
        num_rows: int,
    ) -> tuple[npt.NDArray[Any], dict[str, int]]:
        """Returns records, and how many lists were cut off."""
        content = kept_memory(num_rows * record.file_dtype.itemsize)
        content.fill(0)
        out, num_cut = content.view(record.file_dtype), dict[str, int]()
        encodings = {column.name: column for column in self._stored}
        for field, name in zip(record.fields, record.file_dtype.names or (), strict=False):
            column, where = given[field.name], f"{self._table}.{field.name}"
            num_cut[field.name] = _fill(out[name], field, encodings[field.name], column, values.get(field.name), where)
            if field.null_bit is not None:
                nulls = np.asarray(column.is_null())
                out[NULLS][:, field.null_bit // 8] |= nulls.astype(np.uint8) << np.uint8(field.null_bit % 8)
            elif column.null_count:
                said = "the column says" if self._known_records is None else f"in {self._known_records.graph}"
                raise InputError(f"{where}: expected values in all rows, as {said}, found null")
        return out, num_cut

    def _warn_of_cut(self, record: RecordFormat, num_cut: Mapping[str, int]) -> None:
        for field in record.fields:
            if count := num_cut.get(field.name, 0):
                warnings.warn(
                    f"{self._table}.{field.name}: {count} lists are longer than those that were known, of up to "
                    f"{field.width} values, and are cut off",
                    DataWarning,
                    stacklevel=callers_level(),
                )


def _is_text_list(kind: pa.DataType) -> bool:
    return is_list(kind) and bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))


def _is_int8_list(kind: pa.DataType) -> bool:
    return is_list(kind) and bool(pa.types.is_int8(kind.value_type))


_NO_VALUES = pa.chunked_array([], pa.string())
# By encoding, the kind and the dtype of most columns.
_KINDS: Mapping[str, tuple[str, str]] = {
    "number": ("numerical", "float32"), "raw": ("numerical", "float32"), "time": ("timestamp", "int64"),
    "boolean": ("boolean", "int32"), "category": ("categorical", "int32"), "vector": ("embedding", "float32"),
    "text": ("embedding", "float32"), _LISTED: ("multicategorical", "int32"),
}  # fmt: skip


def _fill(
    out: npt.NDArray[Any],
    field: RecordField,
    column: FeatureColumn,
    given: pa.Array,
    values: pa.Array | None,
    where: str,
) -> int:
    """Writes the values of a column to `out`, [n] or [n, width], which is 0. Returns how many lists were cut off."""
    if pa.types.is_null(given.type) and field.kind != "categorical":  # in which no row has a value
        given = given.cast(pa.from_numpy_dtype(field.dtype) if field.kind == "numerical" else _NULLS[field.kind])
    if field.kind == "numerical" and field.dtype == "int64":
        whole = column_values.whole_numbers(given, where)
        out[:] = np.asarray(whole.fill_null(_NULL_INT))
    elif field.kind == "numerical":
        with np.errstate(over="ignore"):
            out[:] = column_values.numbers(given, "number", where)
    elif field.kind == "timestamp":
        out[:] = np.asarray(microseconds(given, where).fill_null(_NULL_INT))
    elif field.kind == "boolean":
        out[:] = np.asarray(column_values.truths(given, where).cast(pa.int32()).fill_null(-1))
    elif field.kind == "categorical":
        found = pc.index_in(column_values.words(given, where), value_set=values)
        out[:] = np.asarray(found.fill_null(-1))
    elif field.kind == "multicategorical":
        return _fill_lists(out.reshape(len(given), field.width), given, values, where)
    else:
        _fill_vectors(out, field, column, given, where)
    return 0


def _distinct(lists: pa.Array, where: str) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Returns the values of lists in their order, each once in its list: [m] the list, and [m] the value."""
    words = column_values.words(lists.flatten(), where)
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0), np.int64)
    rows = np.repeat(np.arange(len(lists)), lengths)[np.asarray(words.is_valid())]
    words = words.drop_null()
    codes = np.asarray(words.dictionary_encode().indices, np.int64)
    _, first = np.unique(rows * (1 + codes.max(initial=0)) + codes, return_index=True)
    first.sort()
    return rows[first], words.take(pa.array(first))


def _fill_lists(out: npt.NDArray[Any], given: pa.Array, values: pa.Array | None, where: str) -> int:
    """Writes the codes of each list's known values to `out` [n, width], as many as there is room for, then -1. Returns
    how many lists had more."""
    out[:] = -1
    rows, words = _distinct(given, where)
    codes = np.asarray(pc.index_in(words, value_set=values).fill_null(-1))
    rows, codes = rows[codes >= 0], codes[codes >= 0]
    places = np.arange(len(rows)) - np.searchsorted(rows, rows)
    fits = places < out.shape[1]
    out[rows[fits], places[fits]] = codes[fits]
    return len(np.unique(rows[~fits]))


def _fill_vectors(
    out: npt.NDArray[Any], field: RecordField, column: FeatureColumn, given: pa.Array, where: str
) -> None:
    if column.encoding == "text" and field.dtype == "int8":
        text_embedding.hashes(text_embedding.as_text(given, where), column.width, where, out.reshape(-1, column.width))
        return
    numbers = np.zeros((len(given), column.width), np.float32)
    column_values.encode(column, given, numbers, where)
    out[:] = numbers.reshape(out.shape) if field.dtype == "float32" else numbers.reshape(out.shape).astype(np.int8)


_NULLS = {"timestamp": pa.timestamp("us"), "boolean": pa.bool_(), "embedding": pa.list_(pa.float32()),
          "multicategorical": pa.list_(pa.string())}  # fmt: skip
