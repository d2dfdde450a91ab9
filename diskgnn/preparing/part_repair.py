"""Files of a packed directory made again by placing its rows again: without packing what is whole.

Headers, indices and what the cpu tier starts with follow from all minibatches of a split, so it is sampled and placed.
What is written, and which rows of the features are read, goes with the damage.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from diskgnn.errors import ArtifactError, ReadError
from diskgnn.files import faults
from diskgnn.files.checked_files import sync
from diskgnn.formats import artifacts
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.packed import Packed
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import Damage, find_damage
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.part import Part, pack_part
from diskgnn.packing.static_choice import Nodes, choose_static_of_all
from diskgnn.packing.tiers import TierRows
from diskgnn.preparing.extent_repair import copy_bytes
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_plan
from diskgnn.specs.schema import SPLITS
from diskgnn.system.resources import Resources
from diskgnn.work.overwriting import replace_file
from diskgnn.work.seed_files import read_given
from diskgnn.work.writer import ArtifactWriter


def make_part_again(
    packed: Packed,
    damages: Sequence[Damage],
    graph: Graph,
    samples: Samples | None,
    scratch: Path,
    resources: Resources,
) -> None:
    """Replace the damaged files, and write damaged extents over, in place.

    Args:
        packed: the directory.
        damages: in any of its files.
        graph: that it was made from.
        samples: that it was made from, if they were kept.
        scratch: a folder for what is made, before it is compared.
        resources: what sampling and placing may spend.

    Raises:
        ArtifactError: the graph or the samples are damaged, or this diskgnn cannot make the same again.
        DiskFullError: there is no room for what is made, and for the samples if there are none.
    """
    all_of_them = _PartRepair(packed, damages)
    samples = samples or all_of_them.sampled(graph, scratch / "samples", resources)
    static_nodes = all_of_them.static_nodes(graph, samples)
    request = PackRequest(
        graph, samples, _tiers(packed.config), keep_input_nodes=packed.config.keep_input_nodes,
        static_nodes=static_nodes,
    )  # fmt: skip
    for repair in all_of_them.by_split():  # what a kill costs at most
        with ArtifactWriter(scratch / "packed", artifacts.PACKED, config={}, overwrite=True) as writer:
            pack_part(request, repair.part, writer, resources)
            for name, nodes in static_nodes.items():
                if (file := artifacts.static_nodes_file(name)) in repair.part.files:
                    writer.save_array(file, nodes)
            repair.take(writer)


class _PartRepair:
    """Says what has to be made again of a packed directory, and from what."""

    def __init__(self, packed: Packed, damages: Sequence[Damage]) -> None:
        self._packed, self._damages = packed, damages
        self.row_sets = [row_set.name for row_set in packed.config.row_sets]
        self._some: dict[str, Sequence[int]] = {}  # by split: the extents that are damaged, where others are whole
        damaged = {damage.file: damage for damage in damages}
        extents: dict[str, Sequence[int]] = {}
        whole: dict[str, Path] = {}
        for split, size in packed.config.splits.items():
            file, indices = artifacts.extents_file(split), {artifacts.index_file(split), artifacts.rows_file(split)}
            if file not in damaged:
                if not indices.isdisjoint(damaged):
                    whole[split] = packed.path / file
            elif damaged[file].extents:
                extents[split] = self._some[split] = damaged[file].extents
            else:
                extents[split] = range(size.num_batches)
        self.part = Part(frozenset(damaged), extents, whole)

    def by_split(self) -> Iterator[_PartRepair]:
        """Returns the same in parts: each split, and what is of none."""
        of_split: dict[str | None, list[Damage]] = {}
        for damage in self._damages:
            first, *_ = re.split("[-.]", damage.file)
            of_split.setdefault(first if first in self._packed.config.splits else None, []).append(damage)
        return (_PartRepair(self._packed, damages) for damages in of_split.values())

    def sampled(self, graph: Graph, path: Path, resources: Resources) -> Samples:
        """Returns samples of the splits that are needed: those that a killed repair made, if they are whole."""
        config, needed = self._packed.config, self._splits_needed()
        spec = replace(read_given(self._packed.manifest, config.samples.spec), splits=tuple(needed))
        plan = SamplingPlan(graph, spec)
        if not _is_sampled(path, plan):
            shutil.rmtree(path, ignore_errors=True)
            sample_plan(plan, path, resources)
        return Samples.open(path)

    def static_nodes(self, graph: Graph, samples: Samples) -> dict[str, Nodes]:
        """Returns by row set which rows are static, if anything that is wanted depends on that."""
        if (found := _static_nodes_of_ranks(self._packed)) is not None:
            return found
        if self._counts_accesses:
            return choose_static_of_all(graph, [samples], _tiers(self._packed.config))
        return {name: np.empty(0, np.int64) for name in self.row_sets}

    def take(self, writer: ArtifactWriter) -> None:
        """Put what `writer` has made into place, if it is what was there."""
        packed = self._packed
        some = {artifacts.extents_file(split) for split in self._some}
        for name in self.part.files - some:
            if writer.files.get(name) != packed.manifest.files[name]:
                raise _unlike(packed, name)
        for split, numbers in self._some.items():
            made, index = _index_in(writer, packed, split), packed.index(split)
            if not all(map(np.array_equal, made.parts[1:], index[numbers].parts[1:])):  # but the offsets
                raise _unlike(packed, artifacts.extents_file(split))
        faults.point("repair.made")
        for name in sorted(self.part.files - some):
            replace_file(writer.path(name), packed.path / name)
        sync(packed.path)
        for split, numbers in self._some.items():
            self._write_over(writer, split, numbers)

    def _write_over(self, writer: ArtifactWriter, split: str, numbers: Sequence[int]) -> None:
        """Write damaged extents over, in place: whatever a reader finds there meanwhile has its checksum."""
        made, index = _index_in(writer, self._packed, split), self._packed.index(split)
        name = artifacts.extents_file(split)
        with (self._packed.path / name).open("r+b") as target:
            for at, number in enumerate(numbers):
                first, num_bytes = int(made.extents["offset"][at]), int(made.extent_bytes[at])
                copy_bytes(writer.path(name), first, num_bytes, target.fileno(), int(index.extents["offset"][number]))
            os.fsync(target.fileno())

    def _splits_needed(self) -> list[str]:
        config = self._packed.config
        needed = {split for split in config.splits if self.part.wants_places(split, self.row_sets)}
        if self._counts_accesses and _static_nodes_of_ranks(self._packed) is None:
            needed.add(next(iter(config.splits)))
        smallest = min(config.splits, key=lambda split: config.splits[split].num_batches)
        return [split for split in config.splits if split in (needed or {smallest})]

    @property
    def _counts_accesses(self) -> bool:
        """Returns True if it matters which rows are static."""
        config = self._packed.config
        if not any(row_set.num_static for row_set in config.row_sets):
            return False
        is_wanted = any(artifacts.static_file(name) in self.part.files for name in self.row_sets)
        return is_wanted or any(self.part.wants_places(split, self.row_sets) for split in config.splits)


def _is_sampled(path: Path, plan: SamplingPlan) -> bool:
    """Returns True if samples that are whole are there, and have what `plan` would give."""
    try:
        manifest, damages = find_damage(path)
        samples = Samples(manifest)
    except (ArtifactError, ReadError):  # what a killed repair left is made again
        return False
    specs = (replace(config.spec, splits=()) for config in (samples.config, plan.config()))
    is_source = (manifest.source or {}).get("digest") == plan.graph.manifest.digest
    return not damages and is_source and next(specs) == next(specs) and set(plan.splits) <= set(samples.splits)


def _index_in(writer: ArtifactWriter, packed: Packed, split: str) -> ExtentIndex:
    """Returns the index of the extents that were made."""
    extents, rows = (np.load(writer.path(name(split))) for name in (artifacts.index_file, artifacts.rows_file))
    return ExtentIndex(extents, rows, packed.config.stored_row_bytes)


def _static_nodes_of_ranks(packed: Packed) -> dict[str, Nodes] | None:
    """Returns which rows are static, where several ranks have decided that together, as an undamaged one says it."""
    names = [row_set.name for row_set in packed.config.row_sets]
    if not any(artifacts.static_nodes_file(name) in packed.manifest.files for name in names):
        return None
    shard = packed.config.samples.spec.shard
    others = [packed.path.with_name(artifacts.rank_directory(rank, shard.world_size))
              for rank in range(shard.world_size)]  # fmt: skip
    for path in (packed.path, *others):
        with suppress(ArtifactError, ReadError):
            said_by = Packed.open(path)
            found = {name: said_by.static_nodes(name) for name in names}
            expected = [packed.manifest.files.get(artifacts.static_nodes_file(name)) for name in names]
            if expected == [said_by.manifest.files.get(artifacts.static_nodes_file(name)) for name in names]:
                return found
    raise ArtifactError(
        f"{packed.path} does not say any more which rows are static, and no other rank's directory is beside it: copy "
        f"one to {others[0] if others[0] != packed.path else others[-1]}"
    )


def _tiers(config: PackedConfig) -> list[TierRows]:
    """Returns [K] tiers that give each sequence the slots it has: fewer were asked for, or all rows fit in fewer."""
    found = []
    for number, row_set in enumerate(config.row_sets):
        slots = {split: sequence.row_sets[number].cpu_rows for split, sequence in config.splits.items()}
        found.append(TierRows(row_set.num_static, **{split: slots.get(split, 0) for split in SPLITS}))
    return found


def _unlike(packed: Packed, name: str) -> ArtifactError:
    return ArtifactError(f"{name} of {packed.path} cannot be made again by this diskgnn: prepare it again")
