"""What packing needs of memory, whatever the features take: known before anything is placed."""

from __future__ import annotations

from collections.abc import Mapping

from diskgnn.packing.accesses import num_ranges
from diskgnn.packing.row_packing import MIN_WINDOW_BYTES
from diskgnn.storage.feature_scan import WINDOWS_IN_MEMORY
from diskgnn.storage.samples import Samples
from diskgnn.storage.samples_config import SequenceSize
from diskgnn.system.resources import Resources

_PAGES_BYTES = 16 << 20  # of `PageWriter`
_NODE_BYTES = 6  # of each row of all row sets: a count or a place, whether it is needed
_BATCH_BYTES = 1024  # of each minibatch: its bounds by ranges of nodes, its records in indices
_LABEL_BYTES = 40  # of each seed of the largest split, while labels are read
_LEAST_BYTES = 2 * WINDOWS_IN_MEMORY * MIN_WINDOW_BYTES
COPIES = 8  # of a minibatch: read, sorted, placed, encoded
_SEED_BYTES = 4  # of a minibatch's arrays, at least


def for_packing(
    num_rows: int, sizes: Mapping[str, SequenceSize], batch_size: int, minibatch_bytes: int, resources: Resources
) -> Resources:
    """What packing may spend, with as many threads as have room.

    Args:
        num_rows: of all row sets.
        sizes: of the splits.
        batch_size: seeds of a minibatch.
        minibatch_bytes: of the arrays of a large one.
        resources: what it is given.

    Raises:
        ConfigError: it needs more; names the smallest budget that works.
    """
    num_batches = sum(size.num_batches for size in sizes.values())
    seeds_at_once = min(batch_size, minibatch_bytes // _SEED_BYTES)  # there may be fewer than were asked for
    seeds = max(size.batches_per_epoch for size in sizes.values()) * seeds_at_once
    taken_bytes = _PAGES_BYTES + num_rows * _NODE_BYTES + num_batches * _BATCH_BYTES + seeds * _LABEL_BYTES
    return resources.within(
        "to pack",
        taken_bytes + COPIES * minibatch_bytes,
        least_bytes=_LEAST_BYTES,
        thread_bytes=2 * minibatch_bytes + 4 * num_rows // num_ranges(num_rows),
    )


def scratch_memory_bytes(resources: Resources) -> int:
    """What placing may keep in memory instead of in scratch files, of what `for_packing` says: windows of features are
    not there yet. The rest is for slots."""
    return max(0, resources.memory_bytes - _LEAST_BYTES) * 3 // 4


def minibatch_bytes_of(samples: Samples) -> int:
    """Of the arrays of a minibatch, on average in the split that has the largest."""
    return max(
        sum(entry.bytes for name, entry in samples.manifest.files.items() if name.startswith(f"{split}-"))
        // max(1, size.num_batches)
        for split, size in samples.config.splits.items()
    )  # fmt: skip
