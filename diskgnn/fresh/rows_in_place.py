"""Decides if the rows of a window are packed, or stay in the graph and are read page by page as minibatches need them.

Packing reads stretches of the features once for all minibatches of the window, writes the rows and reads them back.
Rows that stay are read by many small requests, some of them for several minibatches, and by no copy: the disk may take
longer, the processor takes less.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from diskgnn._native import DIRECT_ALIGNMENT, READ_ALONG_BYTES, RowFile
from diskgnn.files import faults
from diskgnn.files.row_reading import GAP_BYTES
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.packing.row_sets import RowSet
from diskgnn.stores.locations import StoredPath

# What a request costs the disk beside its bytes, in bytes of a longer one (docs/PERFORMANCE.md).
_REQUEST_BYTES = 49 << 10
# Where the model computes on the same cores, what packing takes of them counts: the disk may be busy for so many times
# as long instead.
_MOST_DISK_TIME = 2


def stay_in_the_graph(
    row_sets: Sequence[RowSet], minibatch: SampledMinibatch, num_batches: int, *, computes_here: bool
) -> bool:
    """Returns True if the rows of a window of `num_batches` that are like `minibatch` better stay where they are."""
    files = [row_set.features for row_set in row_sets]
    if any(isinstance(each.path, StoredPath) or each.projection is not None for each in files):
        return False
    found = [_disk_bytes(row_set, minibatch, num_batches) for row_set in row_sets]
    in_place, packed = (sum(column) for column in zip(*found, strict=True)) if found else (0.0, 0.0)
    stay = in_place <= packed * (_MOST_DISK_TIME if computes_here else 1)
    return bool(faults.reading("fresh_epochs.by_reference", stay))


def _disk_bytes(row_set: RowSet, minibatch: SampledMinibatch, num_batches: int) -> tuple[float, float]:
    """Counts what a minibatch costs the disk, in bytes of long requests, if rows stay and if they are packed."""
    features = row_set.features
    rows = np.sort(row_set.needed(minibatch).astype(np.int64))
    begins = features.data_offset_bytes + rows * features.row_bytes
    first, last = begins // DIRECT_ALIGNMENT, (begins + features.row_bytes - 1) // DIRECT_ALIGNMENT
    most_gap = READ_ALONG_BYTES // DIRECT_ALIGNMENT
    before = np.concatenate([first[:1] - most_gap - 2, last[:-1]])
    gaps = first - before - 1  # pages between rows; -1 where both have a part of one
    requests = gaps > most_gap
    pages = int((last - np.maximum(first - 1, before)).sum()) + int(gaps[(gaps > 0) & ~requests].sum())
    in_place = pages * DIRECT_ALIGNMENT + int(np.count_nonzero(requests)) * _REQUEST_BYTES
    stretches = (len(rows[:1]) + int(np.count_nonzero(np.diff(begins // GAP_BYTES)))) * GAP_BYTES
    scan = min(features.num_bytes, num_batches * stretches) / num_batches
    return in_place, scan + 2 * len(rows) * features.row_bytes


def row_files(row_sets: Sequence[RowSet]) -> tuple[RowFile, ...]:
    """Returns [K] the files of the rows that stay, with the checksums of their pages.

    Raises:
        ArtifactError: the checksums are damaged.
    """
    return tuple(
        RowFile(
            path=os.fspath(row_set.features.local_path),
            data_offset=row_set.features.data_offset_bytes,
            row_bytes=row_set.row_bytes,
            num_rows=row_set.num_rows,
            checksums=row_set.data.feature_checksums,
        )
        for row_set in row_sets
    )
