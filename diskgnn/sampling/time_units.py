"""Times in different units: seconds on one side, milliseconds, days or 20211231 on the other, mix without an error."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import read_array
from diskgnn.formats import artifacts
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_files import TypeData
from diskgnn.sampling.timed_types import type_words
from diskgnn.specs.null_times import is_missing
from diskgnn.specs.schema import EdgeType

_RUNS, _RUN_LENGTH = 16, 16  # of the times of a type, all over the file, that are looked at
# Seconds since 1970 are 1.6e9 today, days 2e4, years 2e3, milliseconds 1.6e12, and 20211231 is 2e7. Steps of a
# simulation may be anything, but then all are small.
_RATIO, _LEAST_SECONDS = 50, 1_000_000


def warn_of_units(
    graph: Graph, reached: Collection[str | EdgeType], seed_times: Sequence[npt.NDArray[np.int64]]
) -> None:
    """Warns with `DataWarning` if times of seeds or types differ so much that their units must.

    Args:
        graph: what is sampled.
        reached: types with times that draws reach.
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
            "like different units, and then seeds see what comes after them, or nothing. Dates and timestamps become "
            "seconds since 1970, whole numbers are taken as they are: give all as one or the other",
            DataWarning,
            stacklevel=callers_level(),
        )


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
