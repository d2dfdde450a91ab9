"""Times in different units: seconds on one side, milliseconds, days or 20211231 on the other, mix without an error."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import read_array
from diskgnn.formats import artifacts
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_files import TypeData
from diskgnn.specs.null_times import is_missing
from diskgnn.specs.schema import EdgeType, type_words

_RUNS, _RUN_LENGTH = 16, 16  # of the times of a type, all over the file, that are looked at
# Seconds since 1970 are 1.6e9 today, days 2e4, years 2e3, milliseconds 1.6e12, and 20211231 is 2e7. Steps of a
# simulation may be anything, but then all are small.
_RATIO, _LEAST_SECONDS = 50, 1_000_000
_SINCE_1970 = (100_000_000, 10_000_000_000)  # seconds of 1973 to 2286
_NEAR = 1.5
# What numbers beside seconds since 1970 may be, and how many of them a second has.
_PER_SECOND = {"nanoseconds": 1e9, "microseconds": 1e6, "milliseconds": 1e3, "minutes": 1 / 60, "hours": 1 / 3600,
               "days": 1 / 86400, "weeks": 1 / 604800,
               "seconds that were divided by 1,000": 1e-3}  # fmt: skip


def warn_of_units(
    graph: Graph, reached: Collection[str | EdgeType], seed_times: Sequence[npt.NDArray[np.int64]]
) -> None:
    """Warns with `DataWarning` if times of seeds or types differ so much that their units must.

    Args:
        graph: what is sampled.
        reached: types with times, of which seeds draw.
        seed_times: those that were given, if any.
    """
    some = {type_words(each): some_times(_data_of(graph, each)) for each in reached}
    if seed_times:
        some["the seeds"] = np.concatenate(seed_times)
    found = {name: times[~is_missing(times)] for name, times in some.items()}
    medians = {name: float(np.median(times)) for name, times in found.items() if len(times)}
    sizes = {name: max(1.0, abs(median)) for name, median in medians.items()}
    if not sizes:
        return
    least, most = min(sizes, key=lambda name: sizes[name]), max(sizes, key=lambda name: sizes[name])
    if sizes[most] >= max(_LEAST_SECONDS, _RATIO * sizes[least]):
        warnings.warn(
            f"times of {most} are around {medians[most]:.0f}, those of {least} around {medians[least]:.0f}: they look "
            f"like different units{_fitting(most, least, found)}, and then seeds see what comes after them, or "
            "nothing. Dates and timestamps become seconds since 1970, whole numbers are taken as they are: give all as "
            "one or the other",
            DataWarning,
            stacklevel=callers_level(),
        )


def _fitting(most: str, least: str, times: Mapping[str, npt.NDArray[np.int64]]) -> str:
    """Returns which unit would make the times of one alike to the others', if these are seconds since 1970; else ""."""
    for seconds, other in ((least, most), (most, least)):
        of_seconds, of_other = float(np.median(times[seconds])), float(np.median(times[other]))
        if _SINCE_1970[0] <= of_seconds <= _SINCE_1970[1]:
            if _are_dates(times[other]):
                return f" (those of {other} are dates such as 20211231, beside seconds since 1970)"
            shares = {unit: of_other / of_seconds / each for unit, each in _PER_SECOND.items()}
            for unit, share in shares.items():
                if 1 / _NEAR <= share <= _NEAR:
                    return f" (those of {other} fit as {unit}, beside those of {seconds} as seconds since 1970)"
    return ""


def _are_dates(times: npt.NDArray[np.int64]) -> bool:
    """Returns True for whole numbers that are dates as 20211231."""
    years, months, days = times // 10_000, times // 100 % 100, times % 100
    parts = ((years, 1900, 2100), (months, 1, 12), (days, 1, 31))
    return all(bool(((least <= part) & (part <= most)).all()) for part, least, most in parts)


def _data_of(graph: Graph, each: str | EdgeType) -> TypeData:
    return graph.nodes[each] if isinstance(each, str) else graph.edges[each]


def some_times(data: TypeData) -> npt.NDArray[np.int64]:
    """Returns times from all over the file."""
    name = data.file(artifacts.TIMES)
    path, num_times = data.manifest.file(name), data.manifest.num_rows(name)
    # Without numpy.unique, which imports numpy.ma: `prepare` would have that loaded when it measures what it has.
    starts = sorted({*np.linspace(0, max(0, num_times - _RUN_LENGTH), _RUNS).astype(np.int64).tolist()})
    offset, length = npy_data_offset(path), min(_RUN_LENGTH, num_times)
    return np.concatenate([read_array(path, np.int64, length, offset + 8 * int(start)) for start in starts])
