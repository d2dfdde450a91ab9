"""Features in fewer bits on their way into a graph directory: int8 and int4 with a scale per column, or half floats.

int8 and int4 take two passes over the features: the first finds what each column spans. The steps of a column divide
its span evenly (affine quantisation: Jacob et al., Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference, CVPR 2018). Memory is that of one chunk, whatever the number of rows.

Of rows that keep their columns, the embeddings of float32 become int8; all else is exact and stays as it is. The span
is that of all rows, also of those that come after a model was trained, so that no value is cut off. Rows that are
encoded as those of another graph have its steps, and one pass is enough: values beyond its span are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.files.checked_files import load_npy
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_format import NULLS, RecordFormat
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.containers.rows import RowSource
from diskgnn.progress.reporter import Reporter
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output, Step
from diskgnn.work.runner import Work
from diskgnn.work.step_file import SavedArray
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

QUANTISED = ("int8", "int4", "float16", "bfloat16")
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}
_CODES = {"int8": (-128, 127), "int4": (0, 15)}
_MAX_HALF = float(np.finfo(np.float16).max)
_PART_VALUES = 1 << 16  # at a time, so that temporary arrays stay in the processor's cache
_ROUNDED = 1e-3  # of a step: so far beyond the last code, a value is still among those that it was found from
# No step is finer than this part of a column's largest magnitude: float32 has few finer ones there. So the differences
# of codes and zero points are exact.
_FINEST_STEP = 2.0**-22
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class QuantisationError:
    """Says how far x will be from the features, in standard deviations of their column; 0 in constant columns."""

    mean: Floats  # [D] absolute error
    max: Floats  # [D]
    called: Callable[[int], int | str]  # what messages call a column

    def details(self) -> dict[str, int | float | str]:
        """Returns for a `StageReport` the mean over all columns, and the column with the largest mean."""
        worst = int(self.mean.argmax())
        return {
            "mean_error_in_deviations": float(self.mean.mean()),
            "worst_column": self.called(worst),
            "worst_column_mean_error_in_deviations": float(self.mean[worst]),
            "worst_column_max_error_in_deviations": float(self.max[worst]),
        }


def quantised_format(dtype: str, rows: RowFormat) -> RowFormat:
    """Returns the format of `rows` once they are stored as `dtype`; of records, once their embeddings are.

    Raises:
        ConfigError: `dtype` is none of `QUANTISED`, not narrower than they are, or of records not int8.
    """
    if dtype not in QUANTISED:
        raise ConfigError(f"quantise: expected one of {', '.join(QUANTISED)}, found {dtype!r}")
    if isinstance(rows, RecordFormat):
        require_of_records(dtype)
        return rows.quantised()
    if _BITS[dtype] >= _BITS[rows.dtype]:
        raise ConfigError(
            f"quantise: expected something narrower than the features, which are {rows.dtype}, found {dtype!r}; "
            "leave it out"
        )
    return RowFormat(dtype, rows.num_features)


def require_of_records(dtype: str) -> None:
    """Checks that rows that keep their columns can be stored in fewer bits as `dtype`.

    Raises:
        ConfigError: it is another one than int8.
    """
    if dtype != "int8":
        raise ConfigError(
            f"quantise: expected int8 for tables that keep their columns, found {dtype!r}: embeddings of float32 "
            "become int8, all other columns are exact; or make vectors of the tables (`diskgnn convert --set "
            "keep_columns=false`), all of which become that"
        )


def is_scanned(source: RowSource, stored: RowFormat) -> bool:
    """Returns True if storing rows as `stored` takes a pass over them before, which finds the steps."""
    return _code_dtype(stored) is not None and source.codes is None


def write_quantised(
    writer: ArtifactWriter,
    node_type: str,
    source: RowSource,
    given: RowFormat,
    stored: RowFormat,
    reporter: Reporter,
    version: str = "",
) -> QuantisationError:
    """Write the features in fewer bits; for int8 and int4 also what their codes mean.

    Args:
        writer: of the graph directory.
        node_type: names the files.
        source: [N, D], read once, or twice for int8 and int4; or records [N].
        given: its format.
        stored: the format to write, from `quantised_format`.
        reporter: told about a stage for each pass, in bytes of `source`.
        version: names what `source` is made with: what a killed run has written with another one is not gone on with.

    Warns:
        DataWarning: values beyond those that the codes of another graph reach.

    Raises:
        InputError: NaN, infinite values, or values that `stored` does not reach; names the row and column.
    """
    values, features_file, dtype = _Values(source, given), node_file(artifacts.FEATURES, node_type), _code_dtype(stored)
    codes_file, arrays = node_file(artifacts.FEATURE_CODES, node_type), list[SavedArray]()
    quantisation = None
    if source.codes is not None:
        quantisation = _known_quantisation(source.codes)
        arrays = [SavedArray(writer, codes_file, quantisation.to_array())]
    elif dtype is not None:
        codes = SavedArray(writer, codes_file, np.empty((2, values.width), np.float32))
        scan, extremes = _scan(values, source.total_bytes, codes, dtype, reporter)
        Work(writer, features_file).run(lambda work: work.fold(f"scan{version}", scan, extremes, files=[codes]))
        quantisation = Quantisation(*load_npy(codes.path)[0])

    file = ArrayFile(
        writer, features_file, stored.file_dtype, source.num_rows, stored.file_row_shape,
        node_file(artifacts.FEATURE_CHECKSUMS, node_type), may_stream=True,
    )  # fmt: skip

    def write(state: State, output: Output) -> Generator[int, None, None]:
        errors = _Errors(file.rows_written, state["errors"])
        with output.stage(reporter, "quantise features", source.total_bytes, "B") as advance:
            for rows, part in values.parts(advance, file.rows_written):
                if dtype is None or quantisation is None:
                    bits, found = (_to_float16 if stored.dtype == "float16" else _to_bfloat16)(part, values)
                else:
                    codes = encode(part, quantisation, dtype)
                    found = (codes.astype(np.float32) - quantisation.zero_point) * quantisation.scale
                    bits = _stored_codes(codes, rows, stored)
                    if source.codes is not None:
                        state["beyond"] += _is_beyond(part, quantisation, dtype).sum(axis=0)
                errors.add(part, found)
                file.write(bits)
                yield bits.nbytes

    first = {"errors": np.zeros((4, values.width)), "beyond": np.zeros(values.width, np.int64)}
    state = Work(writer, features_file).run(
        lambda work: work.fold(f"quantise{version}", write, first, files=[file, *arrays])
    )
    if source.codes is not None:
        values.warn_of_beyond(state["beyond"], source.codes)
    return _Errors(source.num_rows, state["errors"]).result(values.called)


def _scan(
    values: _Values, total_bytes: int, codes: SavedArray, dtype: str, reporter: Reporter
) -> tuple[Step, dict[str, npt.ArrayLike]]:
    """Returns a step that finds the extremes of each column, and has `codes` say what these make of it; and the state
    that it begins with."""

    def scan(state: State, output: Output) -> Generator[int, None, None]:
        with output.stage(reporter, "scan features", total_bytes, "B") as advance:
            for _, part in values.parts(advance, int(state["rows"])):
                np.minimum(state["low"], part.min(axis=0), out=state["low"])
                np.maximum(state["high"], part.max(axis=0), out=state["high"])
                state["rows"] += len(part)
                yield part.nbytes
        codes.array[:] = affine(state["low"], state["high"], dtype, values.called).to_array()

    low = np.where(values.may_be_null, 0, np.inf)
    return scan, {"rows": 0, "low": low, "high": -low}


def _known_quantisation(nodes: NodeSet) -> Quantisation:
    """Returns what the codes of a type mean that has some.

    Raises:
        ArtifactError: the file that says it is damaged.
    """
    file = nodes.feature_file
    assert file is not None
    assert file.quantisation is not None
    return file.quantisation


def _code_dtype(stored: RowFormat) -> str | None:
    """Returns what codes are stored as, int8 or int4; None of float16 and bfloat16."""
    dtype = "int8" if isinstance(stored, RecordFormat) else stored.dtype
    return dtype if dtype in _CODES else None


def _stored_codes(codes: npt.NDArray[Any], rows: npt.NDArray[Any], stored: RowFormat) -> npt.NDArray[Any]:
    """Returns rows as they are stored, of codes [n, D] in place of floats; of records, with their other columns."""
    if stored.dtype == "int4":
        return pack_nibbles(codes)
    if not isinstance(stored, RecordFormat):
        return codes
    found, first = np.zeros(len(rows), stored.file_dtype), 0
    for field, name in zip(stored.fields, stored.file_dtype.names or (), strict=False):
        if field.quantised:
            found[name] = codes[:, first : first + field.width].reshape(found[name].shape)
            first += field.width
        else:
            found[name] = rows[name]
    if bit_bytes := -(-stored.num_nullable // 8):  # what fills the last word may be more or less
        found[NULLS][:, :bit_bytes] = rows[NULLS][:, :bit_bytes]
    return found


class _Values:
    """Reads the numbers of a source's rows that are quantised: features, or embeddings of records.

    Attributes:
        width: D, the numbers of a row.
        may_be_null: [D] of embeddings, which are zeros then; zeros stay zeros, also of rows of later.
        first: the row that the last part begins with.
    """

    def __init__(self, source: RowSource, rows: RowFormat) -> None:
        self._source, self._rows, self.first = source, rows, 0
        self._embeddings: list[tuple[str, str, int]] = []  # (in the file, by the user, numbers)
        self.width = rows.num_features
        self.may_be_null = np.zeros(self.width, np.bool_)
        if isinstance(rows, RecordFormat):
            fields = [(name, each) for name, each in zip(rows.file_dtype.names or (), rows.fields, strict=False)
                      if each.kind == "embedding" and each.dtype == "float32"]  # fmt: skip
            self._embeddings = [(name, each.name, each.width) for name, each in fields]
            self.may_be_null = np.repeat(
                [each.null_bit is not None for _, each in fields], [each.width for _, each in fields]
            )
            self.width = len(self.may_be_null)

    def parts(self, advance: Any, first: int = 0) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.float32]]]:
        """Yields (rows as they are given, [some rows, D] of them) from row `first` on, all finite. Parts fit a
        processor's cache.

        Raises:
            InputError: one is not finite.
        """
        step, self.first = max(1, _PART_VALUES // self.width), first
        for chunk in self._source.chunks_from(first):
            for start in range(0, len(chunk), step):
                rows = chunk[start : start + step]
                part = self._numbers(rows)
                self.require(
                    np.isfinite(part),
                    part,
                    "finite numbers; replace them, e.g. with np.nan_to_num(features, nan=0, posinf=0, neginf=0)",
                )
                advance(len(part) * self._source.row_bytes)
                yield rows, part
                self.first += len(part)

    def _numbers(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        if self._embeddings:
            return np.concatenate([rows[name].reshape(len(rows), width) for name, _, width in self._embeddings], axis=1)
        return _as_float32(rows, self._rows)

    def called(self, column: int) -> int | str:
        """Returns what messages call a column: its number, or the name of an embedding with the number in that."""
        for _, name, width in self._embeddings:
            if column < width:
                return f"{name}[{column}]"
            column -= width
        return column

    def require(self, fits: npt.NDArray[np.bool_], part: npt.NDArray[np.float32], expected: str) -> None:
        """Raise InputError about the first value of `part`, the last one given, that does not fit."""
        if not fits.all():
            row, column = np.argwhere(~fits)[0].tolist()
            codes = self._source.codes
            whose = "`quantise` expects" if codes is None else f"the embeddings of {codes.manifest.path} are int8, of"
            raise InputError(
                f"{self._source.name}: found {part[row, column]:g} in row {self.first + row}, column "
                f"{self.called(column)}; {whose} {expected}"
            )

    def warn_of_beyond(self, counts: npt.NDArray[np.int64], codes: NodeSet) -> None:
        """Warn of embeddings with numbers beyond those that the codes of another graph reach, `counts` [D] of them."""
        first = 0
        for _, name, width in self._embeddings:
            if count := int(counts[first : first + width].sum()):
                warnings.warn(
                    f"{self._source.name}: {count} of {self._source.num_rows * width} numbers of {name!r} are beyond "
                    f"those that {codes.manifest.path} was quantised by, and become the nearest of these; if they are "
                    "many, quantise and train again with such rows",
                    DataWarning,
                    stacklevel=callers_level(),
                )
            first += width


def _as_float32(part: npt.NDArray[Any], rows: RowFormat) -> npt.NDArray[np.float32]:
    if rows.dtype == "bfloat16":
        return (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float32, copy=False)


def affine(low: Floats, high: Floats, dtype: str, called: Callable[[int], int | str] = int) -> Quantisation:
    """Returns the scales and zero points for columns that span [low, high], each [D].

    Raises:
        InputError: a column reaches so far that its codes would mean more than float32 holds; says what it is `called`.
    """
    first, last = _CODES[dtype]
    largest = np.maximum(np.abs(low), np.abs(high))
    step = np.maximum((high - low) / (last - first), largest * _FINEST_STEP)
    step = np.where(low == high, np.where(largest == 0, 1.0, largest), np.maximum(step, _SMALLEST_SCALE))
    scale = step.astype(np.float32)
    zero_point = (first - np.rint(low / scale)).astype(np.float32)
    with np.errstate(over="ignore"):
        reached = (np.array([[first], [last]], np.float32) - zero_point) * scale
    if not np.isfinite(reached).all():
        column = int((~np.isfinite(reached)).any(axis=0).argmax())
        raise InputError(
            f"features: column {called(column)} reaches {largest[column]:g}, too far for {dtype} in float32; divide it "
            "by 2"
        )
    return Quantisation(scale, zero_point)


def encode(part: npt.NDArray[np.float32], quantisation: Quantisation, dtype: str) -> npt.NDArray[Any]:
    """Returns the code nearest to each value of `part` [n, D]: int8, or uint8 from 0 to 15."""
    first, last = _CODES[dtype]
    codes = np.rint(part / quantisation.scale.astype(np.float64)) + quantisation.zero_point
    return np.clip(codes, first, last).astype(np.int8 if dtype == "int8" else np.uint8)


def _is_beyond(part: npt.NDArray[np.float32], quantisation: Quantisation, dtype: str) -> npt.NDArray[np.bool_]:
    """Returns [n, D] which values are farther than half a step from what the last code on their side means."""
    first, last = _CODES[dtype]
    places = part / quantisation.scale.astype(np.float64) + quantisation.zero_point
    return (places < first - 0.5 - _ROUNDED) | (places > last + 0.5 + _ROUNDED)


def pack_nibbles(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Returns [n, ceil(D / 2)] of `codes` [n, D]: an even column in the low four bits, the next one in the high
    ones."""
    packed = codes[:, ::2].copy()
    packed[:, : codes.shape[1] // 2] |= codes[:, 1::2] << 4
    return packed


def _to_float16(part: npt.NDArray[np.float32], values: _Values) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    values.require(np.abs(part) <= _MAX_HALF, part, f"at most {_MAX_HALF:g} for float16; use quantise='bfloat16'")
    half = part.astype(np.float16)
    return half, half.astype(np.float32)


def _to_bfloat16(part: npt.NDArray[np.float32], values: _Values) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Returns the upper half of a float32's bits, rounded to the nearest, to even where two are."""
    bits = np.ascontiguousarray(part).view(np.uint32)
    upper = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    found = (upper.astype(np.uint32) << 16).view(np.float32)
    values.require(np.isfinite(found), part, "less than float32's largest for bfloat16; divide the column by 2")
    return upper, found


class _Errors:
    """Means and deviations of columns, and how far their values were moved, over parts of some rows."""

    def __init__(self, count: int, sums: Floats) -> None:
        """Goes on after `count` rows with their `sums` [4, D], which it changes."""
        self._count = count
        # The mean, squares of distances from it, the sum and the largest of the absolute errors, each [D].
        self._mean, self._squares, self._sum, self._max = sums

    def add(self, part: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> None:
        """Takes `found` [n, D], which is what `part` comes back as."""
        exact = part.astype(np.float64)
        mean, count = exact.mean(axis=0), self._count + len(part)
        # Chan, Golub and LeVeque's update: no cancellation, however far the mean is from 0.
        shift = mean - self._mean
        self._squares += ((exact - mean) ** 2).sum(axis=0) + shift**2 * (self._count * len(part) / count)
        self._mean += shift * (len(part) / count)
        self._count = count
        error = np.abs(exact - found)
        self._sum += error.sum(axis=0)
        np.maximum(self._max, error.max(axis=0), out=self._max)

    def result(self, called: Callable[[int], int | str]) -> QuantisationError:
        """Returns the errors of all that was added, to columns that are `called` so."""
        deviation = np.sqrt(self._squares / max(self._count, 1))
        unit = np.where(deviation > 0, deviation, np.inf)
        return QuantisationError(self._sum / max(self._count, 1) / unit, self._max / unit, called)
