"""Damaged extents made again one by one, at a cost that goes with the damage.

Where the header of an extent is whole, its addresses say which of the rows that its minibatch needs come from disk.
The minibatch is drawn again, which says whose rows these are, and they are read from the graph.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c, crc32c_of_remainder, scatter_rows
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import write_at
from diskgnn.files.file_reading import fill, opened
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.feature_scan import WINDOWS_IN_MEMORY, scan_needed_rows
from diskgnn.formats.minibatch_checks import checked_header
from diskgnn.formats.packed import Packed
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import Damage
from diskgnn.packing.packing_need import COPIES, minibatch_bytes_of
from diskgnn.packing.row_sets import RowSet, row_sets_of
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.sampling.sample import sample_a_few
from diskgnn.sampling.sample_units import damage_named
from diskgnn.sampling.sampling_need import sampling_need
from diskgnn.system.resources import Need, Resources

_WINDOW_BYTES = 4 << 20  # of the features, which are read for one extent after the other
_COPY_BYTES = 4 << 20


def can_be_made_alone(packed: Packed, damage: Damage) -> bool:
    """Returns True if `damage` is in extents whose headers are whole, and only there."""
    if not damage.extents:
        return False
    split = _split_of(packed, damage)
    index, path = packed.index(split), packed.path / damage.file
    try:
        with opened(path) as descriptor:
            return all(_header(descriptor, path, index, number) is not None for number in damage.extents)
    except ArtifactError:
        return False


class ExtentRepair:
    """Makes damaged extents of a packed directory again, of whose headers nothing else is needed.

    Args:
        packed: the directory.
        damages: that `can_be_made_alone`, at least one.
        plan: that it was sampled by.
        samples: that it was made from, if they were kept.
    """

    def __init__(
        self, packed: Packed, damages: Sequence[Damage], plan: SamplingPlan, samples: Samples | None
    ) -> None:  # fmt: skip
        self._packed, self._damages, self._plan, self._samples = packed, damages, plan, samples
        self._row_sets = row_sets_of(plan.graph, packed.config.samples)

    def need(self, resources: Resources) -> Need:
        """Returns what it takes to draw minibatches, or to read them, beside the rows of one."""
        splits = [_split_of(self._packed, damage) for damage in self._damages]
        extent_bytes = max(int(self._packed.index(split).extent_bytes.max()) for split in splits)
        most_rows = max(row_set.num_rows for row_set in self._row_sets)
        taken_bytes = WINDOWS_IN_MEMORY * _WINDOW_BYTES + extent_bytes + most_rows
        if self._samples is not None:
            return Need("to repair extents", taken_bytes + COPIES * minibatch_bytes_of(self._samples))
        sampling = sampling_need(self._plan, resources.less(taken_bytes))
        return replace(sampling, what="to repair extents", shared_bytes=taken_bytes + sampling.shared_bytes)

    def make(self, scratch: Path, resources: Resources) -> None:
        """Write the damaged extents over, in place: whatever a reader finds there meanwhile has its checksum.

        Args:
            scratch: a folder for one extent at a time.
            resources: memory for the topology, or a part of it, and for a window of the features.

        Raises:
            ArtifactError: the graph or the samples are damaged, or an extent cannot be made again.
            ConfigError: too little memory; names the smallest budget that works.
        """
        resources = resources.within(self.need(resources))
        for damage in self._damages:
            self._make(damage, scratch, resources)

    def _make(self, damage: Damage, scratch: Path, resources: Resources) -> None:
        packed = self._packed
        split = _split_of(packed, damage)
        index, path = packed.index(split), packed.path / damage.file
        scratch.mkdir(parents=True, exist_ok=True)
        minibatches = self._minibatches(split, damage.extents, resources)
        reporter = resources.reporter
        with (
            reporter.stage("repair extents", len(damage.extents), "extents") as advance,
            damage_named(self._plan.graph),
            closing(minibatches),
            opened(path) as source,
            path.open("r+b") as target,
        ):
            for number, minibatch in zip(damage.extents, minibatches, strict=True):
                made = scratch / "extent"
                header = _header(source, path, index, number)
                assert header is not None
                made.write_bytes(header)
                num_bytes = int(index.extent_bytes[number])
                os.truncate(made, num_bytes)
                nodes = _disk_nodes(packed, split, index, number, header, self._row_sets, minibatch)
                (((start, *_), *parts),) = index[[number]].parts.by_extent()
                for part, of_part, row_set in zip(parts, nodes, self._row_sets, strict=True):
                    if _write_rows(made, part.offset - start, of_part, row_set, resources.threads) != part.crc32c:
                        raise _unlike(packed, split, number)
                copy_bytes(made, 0, num_bytes, target.fileno(), start)
                advance(1)
            os.fsync(target.fileno())

    def _minibatches(
        self, split: str, numbers: Sequence[int], resources: Resources
    ) -> Generator[SampledMinibatch, None, None]:
        """Yields the minibatches of some extents, read or drawn again."""
        if self._samples is not None:
            for number in numbers:
                with closing(self._samples.read(split, first=number)) as found:
                    yield next(found)
            return
        plan = self._plan
        per_epoch = plan.sizes[split].batches_per_epoch

        def planned() -> Iterator[PlannedMinibatch]:
            for number in numbers:
                epoch, position = divmod(number, per_epoch)
                yield plan.minibatches(split, plan.prepared_epochs(split)[epoch])[position]

        yield from sample_a_few(plan, planned(), resources)


def _split_of(packed: Packed, damage: Damage) -> str:
    return next(split for split in packed.config.splits if artifacts.extents_file(split) == damage.file)


def _header(descriptor: int, path: Path, index: ExtentIndex, number: int) -> bytearray | None:
    """Returns the bytes of a header, if they are what was written."""
    ((part, *_),) = index[[number]].parts.by_extent()
    content = fill(descriptor, part.offset, bytearray(part.num_bytes), path)
    return content if crc32c(content) == part.crc32c else None


def _disk_nodes(
    packed: Packed,
    split: str,
    index: ExtentIndex,
    number: int,
    content: bytearray,
    row_sets: Sequence[RowSet],
    minibatch: SampledMinibatch,
) -> list[npt.NDArray[np.int64]]:
    """Returns [K] each [R]: whose rows the extent has, in its order."""
    layout = packed.config.header_layout()
    header = checked_header(np.frombuffer(content, np.uint8), layout, index.rows[number])
    found = []
    for k, row_set in enumerate(row_sets):
        slots = packed.config.splits[split].row_sets[k].cpu_rows
        rows = header.rows[k].addresses - (packed.config.row_sets[k].num_static + slots)
        wanted, on_disk = row_set.needed(minibatch), rows >= 0
        if len(wanted) != len(rows) or np.count_nonzero(on_disk) != index.rows[number, k]["num_rows"]:
            raise _unlike(packed, split, number)
        nodes = np.empty(np.count_nonzero(on_disk), np.int64)
        nodes[rows[on_disk]] = wanted[on_disk]
        found.append(nodes)
    return found


def _write_rows(path: Path, offset: int, nodes: npt.NDArray[np.int64], row_set: RowSet, threads: int) -> int:
    """Writes the rows of ascending `nodes` from byte `offset` of a file on, and returns their CRC-32C."""
    needed: npt.NDArray[np.bool_] = np.zeros(row_set.num_rows, np.bool_)
    needed[nodes] = True
    remainder, first = 0, 0
    scan = scan_needed_rows(row_set.features, row_set.data.feature_checksums, needed, _WINDOW_BYTES)
    with closing(scan) as windows, path.open("r+b") as file:
        for window in windows:
            rows = np.arange(first, first + len(window.nodes))
            remainder ^= scatter_rows(
                file.fileno(), offset, len(nodes), rows, window.places(window.nodes), window.data, row_set.row_bytes,
                threads,
            )  # fmt: skip
            first += len(window.nodes)
    return crc32c_of_remainder(remainder, len(nodes) * row_set.row_bytes)


def copy_bytes(path: Path, first: int, num_bytes: int, target: int, offset: int) -> None:
    """Write so many bytes of a file, from `first` on, to `offset` of the descriptor `target`."""
    with opened(path) as source:
        for start in range(first, first + num_bytes, _COPY_BYTES):
            piece = fill(source, start, bytearray(min(_COPY_BYTES, first + num_bytes - start)), path)
            write_at(target, offset + start - first, piece)


def _unlike(packed: Packed, split: str, number: int) -> ArtifactError:
    return ArtifactError(
        f"extent {number} of {split!r} of {packed.path} cannot be made again from this graph: prepare it again"
    )
