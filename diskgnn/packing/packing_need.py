"""Computes how much memory packing needs apart from windows of features. It is known before anything is placed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from diskgnn.files.traffic import Traffic
from diskgnn.formats.feature_scan import WINDOWS_IN_MEMORY
from diskgnn.formats.samples import Samples
from diskgnn.formats.samples_config import SamplesConfig, given_arrays
from diskgnn.graph.graph import Graph
from diskgnn.packing.accesses import num_ranges
from diskgnn.packing.kept_numbers import KeptNumbers, kept_files
from diskgnn.packing.row_packing import MIN_WINDOW_BYTES
from diskgnn.packing.row_sets import features_of
from diskgnn.packing.split_labels import label_row_bytes
from diskgnn.packing.stored_ints import BUFFER_BYTES, INT_BYTES
from diskgnn.specs.targets import Target
from diskgnn.system.resources import Need, Resources

_PAGES_BYTES = 16 << 20  # of `PageWriter`
_NODE_BYTES = 6  # of each row of all row sets: a count or a place, whether it is needed
_BATCH_BYTES = 1024  # of each minibatch, at least: its bounds by ranges of nodes, its records in indices
_BOUNDS_BYTES = 128  # of its bounds in one row set, beside 8 for each range
_LABEL_BYTES = 24  # of each seed of a split, beside its y, while labels are read
_LEAST_BYTES = 2 * WINDOWS_IN_MEMORY * MIN_WINDOW_BYTES
# Of minibatches whose kept numbers are looked up together, whatever the budget: this part of the numbers, or so much.
# So 200 bytes are read for each number, or a large file is read for hundreds of thousands of them.
_GROUP_PART, _LEAST_GROUP_BYTES = 4, 32 << 20
COPIES = 8  # of a minibatch: read, sorted, placed, encoded
_SEED_BYTES = 4  # of a minibatch's arrays, at least


def packing_need(
    graph: Graph, samples: SamplesConfig, target: Target, minibatch_bytes: int, *, labels_are_held: bool = False
) -> Need:
    """Returns what packing takes, apart from windows of features that are larger than the smallest.

    Args:
        graph: the graph that is sampled.
        samples: config of the samples that are packed.
        target: the target of the samples, with the arrays that were given.
        minibatch_bytes: bytes of the arrays of a large minibatch, without labels.
        labels_are_held: the labels of the splits are in memory already, and are counted there.
    """
    sizes = samples.splits.values()
    rows = [features.num_rows for features in features_of(graph, samples)]
    num_rows = sum(rows)
    batch_bytes = max(_BATCH_BYTES, sum(_BOUNDS_BYTES + 8 * num_ranges(each) for each in rows))
    seeds_at_once = min(samples.spec.batch_size, minibatch_bytes // _SEED_BYTES)  # there may be fewer than asked for
    taken_bytes = _PAGES_BYTES + num_rows * _NODE_BYTES + sum(size.num_batches for size in sizes) * batch_bytes
    files = kept_files(graph, samples)
    taken_bytes += BUFFER_BYTES * bool(files)
    taken_bytes += sum(given.nbytes for arrays in given_arrays(target).values() for given in arrays.values())
    if not labels_are_held:
        taken_bytes += labels_bytes(graph, target, max(size.batches_per_epoch for size in sizes) * seeds_at_once)
    if samples.layout.times:  # beside ids of at least 4 bytes
        minibatch_bytes += minibatch_bytes * INT_BYTES // 4
    minibatch_bytes += seeds_at_once * label_row_bytes(graph, target)
    return Need(
        "to pack",
        shared_bytes=taken_bytes + COPIES * minibatch_bytes,
        least_bytes=least_placing_bytes(files.values()),
        unit_bytes=2 * minibatch_bytes + 4 * num_rows // num_ranges(num_rows),
    )


def labels_bytes(graph: Graph, target: Target, num_seeds: int) -> int:
    """Returns the memory that reading `SplitLabels` of `num_seeds` takes: 0 if there are no labels, or if they were
    given.
    """
    row_bytes = label_row_bytes(graph, target)
    return num_seeds * (_LABEL_BYTES + row_bytes) if row_bytes and "labels" not in given_arrays(target) else 0


def scratch_memory_bytes(resources: Resources, group_bytes: int) -> int:
    """Returns how much placing may keep in memory instead of in scratch files, given what `packing_need` leaves, and
    beside `KeptNumbers.group_bytes`.

    Windows of features are not in memory yet at that time. The rest is left for slots of the cpu tier.
    """
    return max(0, _placing_bytes(resources) * 3 // 4 - group_bytes)


def kept_numbers_within(
    resources: Resources, graph: Graph, samples: SamplesConfig, traffic: Traffic
) -> tuple[KeptNumbers, Resources]:
    """Opens the numbers of `graph` that headers keep. Returns them and the resources that are left.

    Raises:
        ArtifactError: they are loaded, and damaged.
    """
    files = kept_files(graph, samples)
    loaded, group_bytes = loaded_and_group(files, resources)
    numbers = KeptNumbers(graph, samples, loaded=loaded, group_bytes=group_bytes, traffic=traffic)
    return numbers, resources.less(sum(files[name] for name in loaded))


def loaded_and_group(files: Mapping[str, int], resources: Resources) -> tuple[set[str], int]:
    """Returns which of the `kept_files` are loaded, and `KeptNumbers.group_bytes` for the others.

    Beside what minibatches take at least whose numbers are not loaded, a file is loaded if at least half of the memory
    is left then. Those minibatches get a quarter of what is left, if that is more.

    Args:
        files: what each takes in memory, in bytes.
        resources: at least `least_placing_bytes` of memory.
    """
    loaded, others, left_bytes = set[str](), dict(files), _placing_bytes(resources)
    for name, num_bytes in files.items():
        if num_bytes <= (left_bytes - _least_group_bytes(others.values())) // 2:
            loaded.add(name)
            left_bytes -= others.pop(name)
    return loaded, max(_least_group_bytes(others.values()), left_bytes // 4)


def least_placing_bytes(file_bytes: Collection[int]) -> int:
    """Returns what packing takes at least apart from what `packing_need` counts by itself: windows of features, and
    minibatches whose numbers are looked up in files of `file_bytes`.
    """
    return _LEAST_BYTES + _least_group_bytes(file_bytes)


def _least_group_bytes(file_bytes: Collection[int]) -> int:
    return min(sum(file_bytes) // _GROUP_PART, _LEAST_GROUP_BYTES)


def _placing_bytes(resources: Resources) -> int:
    return max(0, resources.memory_bytes - _LEAST_BYTES)


def minibatch_bytes_of(samples: Samples) -> int:
    """Returns the mean bytes of a minibatch's arrays, of the split where these are largest."""
    return max(
        samples_bytes(samples, split) // max(1, size.num_batches) for split, size in samples.config.splits.items()
    )


def samples_bytes(samples: Samples, split: str) -> int:
    """Returns the bytes of all minibatches of a split."""
    return sum(entry.bytes for name, entry in samples.manifest.files.items() if name.startswith(f"{split}-"))
