"""Making again what is damaged of samples and of packed directories, and only that: equal to the byte.

All of it follows from the graph and what the manifest says. What is made again is compared with the manifest's
checksums before it replaces anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ConfigError, ReadError
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack_request
from diskgnn.packing.request import PackRequest
from diskgnn.packing.tiers import TierRows
from diskgnn.paths import PathLike
from diskgnn.preparing.extent_repair import can_be_made_alone, make_extents_alone
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_plan, write_shards
from diskgnn.schema import SPLITS
from diskgnn.storage import artifacts
from diskgnn.storage.checked_files import sync
from diskgnn.storage.locks import alone
from diskgnn.storage.manifest import Manifest, read_manifest
from diskgnn.storage.object_stores import AnyPath, local
from diskgnn.storage.packed import Packed
from diskgnn.storage.packed_config import PackedConfig
from diskgnn.storage.samples import Samples
from diskgnn.storage.seed_files import read_given
from diskgnn.storage.verification import Damage, find_damage, verify_artifact
from diskgnn.storage.write_errors import raise_write_error
from diskgnn.storage.writer import ArtifactWriter, staging_of
from diskgnn.system.resources import Resources


def repair(
    path: AnyPath,
    *,
    graph: PathLike | Graph | None,
    samples: PathLike | None = None,
    resources: Resources,
) -> list[Damage]:
    """Make the damaged files and extents of a samples or packed directory again, in place; what was damaged.

    Shards of samples are sampled again one by one, and so are the minibatches of damaged extents whose headers are
    whole. If a packed directory is damaged elsewhere, everything is sampled and packed again in a hidden directory
    beside it, which takes the time and the space of `prepare`; then what is damaged is replaced. Killed half-way, the
    next repair finds what is still damaged.

    Args:
        path: the directory.
        graph: the graph that it was made from; compared with the digest that the directory says.
        samples: for a packed directory, the samples that it was made from, if they were kept.
        resources: what sampling and packing may spend.

    Raises:
        ConfigError: no graph was given and something is damaged.
        ArtifactError: the manifest is damaged, the directory is of a kind that cannot be made again, it was made from
            another graph or other samples, or these are damaged themselves.
        BusyError: another process is writing the same directory.
        DiskFullError: a packed directory does not fit beside it.
        WriteError: the disk failed.
    """
    folder = read_manifest(local(path, "repairing")).folder.resolve()
    scratch = folder.with_name(f".{folder.name}.repair")
    busy = f"another process is writing {folder} now; wait for it or stop it"
    with alone(staging_of(folder).with_suffix(".lock"), folder, busy):
        try:
            return _repair(path, graph, samples, scratch, resources)
        except OSError as error:
            raise_write_error(error, folder, "what was not replaced yet is damaged still: the next repair makes it")
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # that of a run that was killed, too


def _repair(
    path: AnyPath, given: PathLike | Graph | None, samples: PathLike | None, scratch: Path, resources: Resources
) -> list[Damage]:
    manifest, damages = find_damage(path, reporter=resources.reporter)
    if not damages:
        return []
    if manifest.format not in (artifacts.SAMPLES, artifacts.PACKED):
        raise ArtifactError(
            f"{manifest.path} is damaged ({', '.join(damage.file for damage in damages)}), and a {manifest.format!r} "
            f"cannot be repaired: `{artifacts.MADE_BY[manifest.format]}` it again"
        )
    if given is None:
        raise ConfigError(f"graph: expected the graph that {manifest.path} was made from, to repair it; found none")
    graph = given if isinstance(given, Graph) else Graph.open(given)
    if manifest.format == artifacts.SAMPLES:
        _repair_samples(Samples(manifest), damages, graph, scratch, resources)
        verify_artifact(manifest.path, reporter=resources.reporter)
    else:
        _repair_packed(Packed(manifest), damages, graph, samples, scratch, resources)
    return damages


def _repair_samples(
    samples: Samples, damages: Sequence[Damage], graph: Graph, scratch: Path, resources: Resources
) -> None:
    manifest, names = samples.manifest, [damage.file for damage in damages]
    _require_source(manifest, artifacts.GRAPH, graph.manifest.digest)
    plan = SamplingPlan(graph, read_given(manifest, samples.config.spec))
    with ArtifactWriter(scratch / "samples", artifacts.SAMPLES, config={}, overwrite=True) as writer:
        write_shards(writer, plan, resources, only=names)
        for name in names:
            if writer.files.get(name) != manifest.files[name]:
                raise ArtifactError(f"{name} of {manifest.path} cannot be made again: sample it all again")
            _replace(writer.path(name), manifest.folder / name)
    sync(manifest.folder)


def _repair_packed(
    packed: Packed,
    damages: Sequence[Damage],
    graph: Graph,
    given: PathLike | None,
    scratch: Path,
    resources: Resources,
) -> None:
    if packed.config.graph != graph.manifest.digest:
        raise ArtifactError(f"{packed.path} was made from another graph than {graph.manifest.path}")
    samples = None if given is None else Samples.open(given)
    if samples is not None:
        _require_source(packed.manifest, artifacts.SAMPLES, samples.manifest.digest)
    if all(can_be_made_alone(packed, damage) for damage in damages):
        for damage in damages:
            make_extents_alone(packed, damage, graph, samples, scratch, resources)
        return
    if samples is None:
        plan = SamplingPlan(graph, read_given(packed.manifest, packed.config.samples.spec))
        sample_plan(plan, scratch / "samples", resources, overwrite=True)
        samples = Samples.open(scratch / "samples")
        _require_source(packed.manifest, artifacts.SAMPLES, samples.manifest.digest)
    _replace_from(_packed_again(packed, graph, samples, scratch / "packed", resources), packed, damages)
    verify_artifact(packed.path, reporter=resources.reporter)


def _packed_again(packed: Packed, graph: Graph, samples: Samples, out: Path, resources: Resources) -> Packed:
    """All of it, beside it."""
    config = packed.config
    request = PackRequest(
        graph, samples, _tiers(config), keep_input_nodes=config.keep_input_nodes, keep_edge_ids=config.keep_edge_ids,
        static_nodes=_static_nodes(packed),
    )  # fmt: skip
    pack_request(request, out, resources, overwrite=True)
    made = Packed.open(out)
    if made.digest != packed.digest:
        raise ArtifactError(f"{packed.path} cannot be made again by this diskgnn: prepare it again")
    return made


def _replace_from(made: Packed, packed: Packed, damages: Sequence[Damage]) -> None:
    """Take what is damaged from `made`, which is equal to what `packed` was."""
    for damage in damages:
        if damage.extents:
            _copy_extents(made, packed, damage)
        else:
            _replace(made.path / damage.file, packed.path / damage.file)
    sync(packed.path)


def _static_nodes(packed: Packed) -> dict[str, npt.NDArray[np.int64]] | None:
    """Which rows are static, where several ranks have decided that together: as one of them says it, undamaged."""
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


def _require_source(manifest: Manifest, format: str, digest: str) -> None:  # noqa: A002  (the manifest's word)
    expected = {"format": format, "digest": digest}
    if manifest.source != expected:
        raise ArtifactError(
            f"{manifest.path} was made from something else: expected {manifest.source}, found {expected}"
        )


def _tiers(config: PackedConfig) -> list[TierRows]:
    """[K] tiers that give each sequence the slots it has: fewer were asked for, or all rows fit in fewer."""
    found = []
    for number, row_set in enumerate(config.row_sets):
        slots = {split: sequence.row_sets[number].cpu_rows for split, sequence in config.splits.items()}
        found.append(TierRows(row_set.num_static, **{split: slots.get(split, 0) for split in SPLITS}))
    return found


def _replace(made: Path, damaged: Path) -> None:
    sync(made)
    if damaged.is_dir():
        shutil.rmtree(damaged)
    made.replace(damaged)


def _copy_extents(made: Packed, packed: Packed, damage: Damage) -> None:
    """Write the damaged extents over: in place, since whatever a reader finds there meanwhile has its checksum."""
    split = next(split for split in packed.config.splits if artifacts.extents_file(split) == damage.file)
    index = made.index(split)
    offsets, lengths = index.extents["offset"].tolist(), index.extent_bytes.tolist()
    with (made.path / damage.file).open("rb") as source, (packed.path / damage.file).open("r+b") as target:
        for number in damage.extents:
            source.seek(offsets[number])
            target.seek(offsets[number])
            target.write(source.read(lengths[number]))
        target.flush()
        os.fsync(target.fileno())
