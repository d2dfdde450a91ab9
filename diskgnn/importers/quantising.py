"""Features in fewer bits on their way into a graph directory: int8 and int4 with a scale per column, or half floats.

int8 and int4 take two passes over the features: the first finds what each column spans. The steps of a column divide
its span evenly (affine quantisation: Jacob et al., Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference, CVPR 2018). Memory is that of one chunk, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, InputError
from diskgnn.files.checked_files import load_npy
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.row_format import RowFormat
from diskgnn.importers.containers.rows import RowSource
from diskgnn.progress.reporter import Reporter
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.step_file import SavedArray
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

QUANTISED = ("int8", "int4", "float16", "bfloat16")
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}
_CODES = {"int8": (-128, 127), "int4": (0, 15)}
_MAX_HALF = float(np.finfo(np.float16).max)
_PART_VALUES = 1 << 16  # at a time, so that temporary arrays stay in the processor's cache
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

    def details(self) -> dict[str, int | float | str]:
        """For a `StageReport`: the mean over all columns, and the column with the largest mean."""
        worst = int(self.mean.argmax())
        return {
            "mean_error_in_deviations": float(self.mean.mean()),
            "worst_column": worst,
            "worst_column_mean_error_in_deviations": float(self.mean[worst]),
            "worst_column_max_error_in_deviations": float(self.max[worst]),
        }


def quantised_format(dtype: str, rows: RowFormat) -> RowFormat:
    """Returns the format of `rows` once they are stored as `dtype`.

    Raises:
        ConfigError: `dtype` is none of `QUANTISED`, or not narrower than they are.
    """
    if dtype not in QUANTISED:
        raise ConfigError(f"quantise: expected one of {', '.join(QUANTISED)}, found {dtype!r}")
    if _BITS[dtype] >= _BITS[rows.dtype]:
        raise ConfigError(
            f"quantise: expected something narrower than the features, which are {rows.dtype}, found {dtype!r}; "
            "leave it out"
        )
    return RowFormat(dtype, rows.num_features)


def write_quantised(
    writer: ArtifactWriter, node_type: str, source: RowSource, given: RowFormat, stored: RowFormat, reporter: Reporter
) -> QuantisationError:
    """Write the features in fewer bits; for int8 and int4 also what their codes mean.

    Args:
        writer: of the graph directory.
        node_type: names the files.
        source: [N, D], read once, or twice for int8 and int4.
        given: its format.
        stored: the format to write, from `quantised_format`.
        reporter: told about a stage for each pass, in bytes of `source`.

    Raises:
        InputError: NaN, infinite values, or values that `stored` does not reach; names the row and column.
    """
    values, features_file = _Values(source, given), node_file(artifacts.FEATURES, node_type)
    quantisation = None
    if stored.dtype in _CODES:
        shape = (2, given.num_features)
        codes = SavedArray(writer, node_file(artifacts.FEATURE_CODES, node_type), np.empty(shape, np.float32))

        def scan(state: State, output: Output) -> Generator[int, None, None]:
            with output.stage(reporter, "scan features", source.total_bytes, "B") as advance:
                for part in values.parts(advance, int(state["rows"])):
                    np.minimum(state["low"], part.min(axis=0), out=state["low"])
                    np.maximum(state["high"], part.max(axis=0), out=state["high"])
                    state["rows"] += len(part)
                    yield part.nbytes
            codes.array[:] = affine(state["low"], state["high"], stored.dtype).to_array()

        extremes = {"low": np.full(given.num_features, np.inf), "high": np.full(given.num_features, -np.inf)}
        Work(writer, features_file).run(lambda work: work.fold("scan", scan, {"rows": 0, **extremes}, files=[codes]))
        quantisation = Quantisation(*load_npy(codes.path)[0])

    file = ArrayFile(
        writer, features_file, stored.storage, source.num_rows, (stored.stored_columns,),
        node_file(artifacts.FEATURE_CHECKSUMS, node_type), may_stream=True,
    )  # fmt: skip

    def write(state: State, output: Output) -> Generator[int, None, None]:
        errors = _Errors(file.rows_written, state["errors"])
        with output.stage(reporter, "quantise features", source.total_bytes, "B") as advance:
            for part in values.parts(advance, file.rows_written):
                if quantisation is None:
                    bits, found = (_to_float16 if stored.dtype == "float16" else _to_bfloat16)(part, values)
                else:
                    codes = encode(part, quantisation, stored.dtype)
                    found = (codes.astype(np.float32) - quantisation.zero_point) * quantisation.scale
                    bits = pack_nibbles(codes) if stored.dtype == "int4" else codes
                errors.add(part, found)
                file.write(bits)
                yield bits.nbytes

    first = {"errors": np.zeros((4, given.num_features))}
    found = Work(writer, features_file).run(lambda work: work.fold("quantise", write, first, files=[file]))
    return _Errors(source.num_rows, found["errors"]).result()


class _Values:
    """The features as float32, in parts that fit a processor's cache; `first` is the row that the last part begins
    with."""

    def __init__(self, source: RowSource, rows: RowFormat) -> None:
        self._source, self._rows, self.first = source, rows, 0

    def parts(self, advance: Any, first: int = 0) -> Iterator[npt.NDArray[np.float32]]:
        """Yields [some rows, D] from row `first` on, all finite.

        Raises:
            InputError: one is not.
        """
        step, self.first = max(1, _PART_VALUES // self._rows.num_features), first
        for chunk in self._source.chunks_from(first):
            for start in range(0, len(chunk), step):
                part = _as_float32(chunk[start : start + step], self._rows)
                self.require(
                    np.isfinite(part),
                    part,
                    "finite numbers; replace them, e.g. with np.nan_to_num(features, nan=0, posinf=0, neginf=0)",
                )
                advance(len(part) * self._source.row_bytes)
                yield part
                self.first += len(part)

    def require(self, fits: npt.NDArray[np.bool_], part: npt.NDArray[np.float32], expected: str) -> None:
        """Raise InputError about the first value of `part`, the last one given, that does not fit."""
        if not fits.all():
            row, column = np.argwhere(~fits)[0].tolist()
            raise InputError(
                f"{self._source.name}: found {part[row, column]:g} in row {self.first + row}, column {column}; "
                f"`quantise` expects {expected}"
            )


def _as_float32(part: npt.NDArray[Any], rows: RowFormat) -> npt.NDArray[np.float32]:
    if rows.dtype == "bfloat16":
        return (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float32, copy=False)


def affine(low: Floats, high: Floats, dtype: str) -> Quantisation:
    """Scales and zero points for columns that span [low, high], each [D].

    Raises:
        InputError: a column reaches so far that its codes would mean more than float32 holds.
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
            f"features: column {column} reaches {largest[column]:g}, too far for {dtype} in float32; divide it by 2"
        )
    return Quantisation(scale, zero_point)


def encode(part: npt.NDArray[np.float32], quantisation: Quantisation, dtype: str) -> npt.NDArray[Any]:
    """Returns the code nearest to each value of `part` [n, D]: int8, or uint8 from 0 to 15."""
    first, last = _CODES[dtype]
    codes = np.rint(part / quantisation.scale.astype(np.float64)) + quantisation.zero_point
    return np.clip(codes, first, last).astype(np.int8 if dtype == "int8" else np.uint8)


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
        """`found` [n, D] is what `part` comes back as."""
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

    def result(self) -> QuantisationError:
        """Returns the errors of all that was added."""
        deviation = np.sqrt(self._squares / max(self._count, 1))
        unit = np.where(deviation > 0, deviation, np.inf)
        return QuantisationError(self._sum / max(self._count, 1) / unit, self._max / unit)
