"""Damaged extents made again one by one, at a cost that goes with the damage.

Where the header of an extent is whole, its addresses say which of the rows that its minibatch needs come from disk.
The minibatch is drawn again, which says whose rows these are, and they are read from the graph.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c, crc32c_of_remainder, scatter_rows
from diskgnn.errors import ArtifactError, ReadError
from diskgnn.graph.graph import Graph
from diskgnn.packing.row_sets import RowSet, row_sets_of
from diskgnn.sampling.plan import PlannedMinibatch, SamplingPlan
from diskgnn.sampling.sample import damage_named, sample_a_few
from diskgnn.storage import artifacts
from diskgnn.storage.extents import ExtentIndex
from diskgnn.storage.feature_scan import scan_needed_rows
from diskgnn.storage.file_reading import fill, opened
from diskgnn.storage.header_checks import checked_header
from diskgnn.storage.packed import Packed
from diskgnn.storage.samples import SampledMinibatch, Samples
from diskgnn.storage.seed_files import read_given
from diskgnn.storage.verification import Damage
from diskgnn.system.resources import Resources

_WINDOWS_PART = 8  # of the memory budget, for one window of the features
_COPY_BYTES = 4 << 20


def can_be_made_alone(packed: Packed, damage: Damage) -> bool:
    """Whether `damage` is in extents whose headers are whole, and only there."""
    if not damage.extents:
        return False
    split = _split_of(packed, damage)
    index, path = packed.index(split), packed.path / damage.file
    try:
        with opened(path) as descriptor:
            return all(_header(descriptor, path, index, number) is not None for number in damage.extents)
    except (ArtifactError, ReadError):
        return False


def make_extents_alone(
    packed: Packed, damage: Damage, graph: Graph, samples: Samples | None, scratch: Path, resources: Resources
) -> None:
    """Write the damaged extents over, in place: whatever a reader finds there meanwhile has its checksum.

    Args:
        packed: the directory.
        damage: `can_be_made_alone`.
        graph: that it was made from.
        samples: that it was made from, if they were kept.
        scratch: a folder for one extent at a time.
        resources: memory for the topology, or a part of it, and for a window of the features.

    Raises:
        ArtifactError: the graph or the samples are damaged, or an extent cannot be made again.
    """
    split = _split_of(packed, damage)
    index, path, row_sets = packed.index(split), packed.path / damage.file, row_sets_of(graph, packed.config.samples)
    scratch.mkdir(parents=True, exist_ok=True)
    minibatches = _minibatches(packed, split, damage.extents, graph, samples, resources)
    reporter = resources.reporter
    with (
        reporter.stage("repair extents", len(damage.extents), "extents") as advance,
        damage_named(graph),
        closing(minibatches),
        opened(path) as source,
        path.open("r+b") as target,
    ):
        for number, minibatch in zip(damage.extents, minibatches, strict=True):
            made = scratch / "extent"
            header = _header(source, path, index, number)
            assert header is not None
            made.write_bytes(header)
            os.truncate(made, int(index.extent_bytes[number]))
            nodes = _disk_nodes(packed, split, index, number, header, row_sets, minibatch)
            for k, row_set in enumerate(row_sets):
                record: Any = index.rows[number, k]
                if _write_rows(made, int(record["rows_offset"]), nodes[k], row_set, resources) != record["rows_crc32c"]:
                    raise _unlike(packed, split, number)
            copy_bytes(made, 0, int(index.extent_bytes[number]), target.fileno(), int(index.extents["offset"][number]))
            advance(1)
        os.fsync(target.fileno())


def _split_of(packed: Packed, damage: Damage) -> str:
    return next(split for split in packed.config.splits if artifacts.extents_file(split) == damage.file)


def _header(descriptor: int, path: Path, index: ExtentIndex, number: int) -> bytearray | None:
    """The bytes of a header, if they are what was written."""
    part = next(index.parts(number))
    content = fill(descriptor, int(index.extents["offset"][number]), bytearray(part.num_bytes), path)
    return content if crc32c(content) == part.crc32c else None


def _minibatches(
    packed: Packed, split: str, numbers: Sequence[int], graph: Graph, samples: Samples | None, resources: Resources
) -> Generator[SampledMinibatch, None, None]:
    """Those of some extents, read or drawn again."""
    if samples is not None:
        for number in numbers:
            with closing(samples.read(split, first=number)) as found:
                yield next(found)
        return
    plan = SamplingPlan(graph, read_given(packed.manifest, packed.config.samples.spec))
    per_epoch = plan.sizes[split].batches_per_epoch

    def planned() -> Iterator[PlannedMinibatch]:
        for number in numbers:
            epoch, position = divmod(number, per_epoch)
            yield plan.minibatches(split, plan.prepared_epochs(split)[epoch])[position]

    yield from sample_a_few(plan, planned(), resources)


def _disk_nodes(
    packed: Packed,
    split: str,
    index: ExtentIndex,
    number: int,
    content: bytearray,
    row_sets: Sequence[RowSet],
    minibatch: SampledMinibatch,
) -> list[npt.NDArray[np.int64]]:
    """[K] each [R]: whose rows the extent has, in its order."""
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


def _write_rows(path: Path, offset: int, nodes: npt.NDArray[np.int64], row_set: RowSet, resources: Resources) -> int:
    """Write the rows of ascending `nodes` from byte `offset` of a file on; their CRC-32C."""
    needed: npt.NDArray[np.bool_] = np.zeros(row_set.num_rows, np.bool_)
    needed[nodes] = True
    remainder, first = 0, 0
    window_bytes = resources.memory_bytes // _WINDOWS_PART
    scan = scan_needed_rows(row_set.features, row_set.data.feature_checksums, needed, window_bytes)
    with closing(scan) as windows, path.open("r+b") as file:
        for window in windows:
            rows = np.arange(first, first + len(window.nodes))
            remainder ^= scatter_rows(
                file.fileno(), offset, len(nodes), rows, window.places(window.nodes), window.data, row_set.row_bytes,
                resources.threads,
            )  # fmt: skip
            first += len(window.nodes)
    return crc32c_of_remainder(remainder, len(nodes) * row_set.row_bytes)


def copy_bytes(path: Path, first: int, num_bytes: int, target: int, offset: int) -> None:
    """Write so many bytes of a file, from `first` on, to `offset` of the descriptor `target`."""
    with opened(path) as source:
        for start in range(first, first + num_bytes, _COPY_BYTES):
            view = memoryview(fill(source, start, bytearray(min(_COPY_BYTES, first + num_bytes - start)), path))
            while view:
                written = os.pwrite(target, view, offset)
                view, offset = view[written:], offset + written


def _unlike(packed: Packed, split: str, number: int) -> ArtifactError:
    return ArtifactError(
        f"extent {number} of {split!r} of {packed.path} cannot be made again from this graph: prepare it again"
    )
