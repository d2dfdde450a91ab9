"""Making again what is damaged of samples and of packed directories, and only that: equal to the byte.

All of it follows from the graph and what the manifest says. What is made again is compared with the manifest's
checksums before it replaces anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files.checked_files import sync
from diskgnn.files.destination import writing_alone
from diskgnn.files.own_files import require_own_folder
from diskgnn.files.write_errors import raise_write_error
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import Manifest, read_manifest
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import Damage, damaged_extents, find_damage, verify_file
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.preparing.extent_repair import ExtentRepair, can_be_made_alone
from diskgnn.preparing.part_repair import make_part_again
from diskgnn.preparing.preparing_need import require_memory
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import write_shards
from diskgnn.stores.locations import AnyPath, local
from diskgnn.system.allocators import freed_memory_returned, return_freed_memory
from diskgnn.system.resources import Resources
from diskgnn.work.overwriting import replace_file
from diskgnn.work.seed_files import given_files, read_given
from diskgnn.work.writer import ArtifactWriter


class LostError(ArtifactError):
    """Says that what is damaged of an artifact cannot be made again by itself."""


@freed_memory_returned()
def repair(
    path: AnyPath,
    *,
    graph: PathLike | Graph | None,
    samples: PathLike | None = None,
    resources: Resources,
) -> list[Damage]:
    """Make the damaged files and extents of a samples or packed directory again, in place; what was damaged.

    Shards of samples are sampled again one by one, and so are the minibatches of damaged extents whose headers are
    whole. For what else is damaged of a packed directory, each split that it is of is sampled and placed again, in a
    hidden directory beside it; only what is damaged is packed, and then replaced, split by split. Killed half-way, the
    next repair finds what is still damaged, and goes on with what was sampled for it.

    Args:
        path: the directory.
        graph: the graph that it was made from; compared with the digest that the directory says.
        samples: for a packed directory, the samples that it was made from, if they were kept.
        resources: what sampling and packing may spend.

    Raises:
        ConfigError: no graph was given and something is damaged, or its repair takes more memory; names the smallest
            budget that works.
        LostError: what is damaged cannot be made again.
        ArtifactError: the manifest is damaged, the directory was made from another graph or other samples, or these are
            damaged themselves.
        BusyError: another process is writing the same directory.
        DiskFullError: a packed directory does not fit beside it.
        UnreadableError: the disk failed below some files: what cannot be read may be whole, so nothing is made again.
        WriteError: the disk failed.
    """
    folder = read_manifest(local(path, "repairing")).folder.resolve()
    scratch = folder.with_name(f".{folder.name}.repair")
    with writing_alone(folder):
        require_own_folder(scratch)
        try:
            damages = _repair(path, graph, samples, scratch, resources)
        except (ArtifactError, ConfigError):
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        except OSError as error:
            raise_write_error(error, folder, "what was not replaced yet is damaged still: the next repair makes it")
            raise
        shutil.rmtree(scratch, ignore_errors=True)
        return damages


def _repair(
    path: AnyPath, given: PathLike | Graph | None, samples: PathLike | None, scratch: Path, resources: Resources
) -> list[Damage]:
    manifest, damages = find_damage(path, reporter=resources.reporter)
    if not damages:
        return []
    if manifest.format not in artifacts.REPAIRED:
        raise LostError(
            f"{manifest.path} is damaged ({', '.join(damage.file for damage in damages)}), and a {manifest.format!r} "
            f"cannot be repaired: `{artifacts.MADE_BY[manifest.format]}` it again"
        )
    if given is None:
        raise ConfigError(f"graph: expected the graph that {manifest.path} was made from, to repair it; found none")
    if lost := {damage.file for damage in damages} & set(given_files()):
        raise LostError(
            f"{manifest.path} is damaged in {', '.join(sorted(lost))}: seeds that were given, which do not follow from "
            f"the graph; `{artifacts.MADE_BY[manifest.format]}` it again"
        )
    graph = given if isinstance(given, Graph) else Graph.open(given)
    if manifest.format == artifacts.SAMPLES:
        _repair_samples(Samples(manifest), damages, graph, scratch, resources)
    else:
        _repair_packed(Packed(manifest), damages, graph, samples, scratch, resources)
    for damage in damages:
        _require_whole(manifest, damage)
    return damages


def _require_whole(manifest: Manifest, damage: Damage) -> None:
    """Read what was made again.

    Raises:
        ArtifactError: the disk does not keep what is written.
    """
    if not damage.extents:
        verify_file(manifest, damage.file)
        return
    packed = Packed(manifest)
    split = next(split for split in packed.config.splits if artifacts.extents_file(split) == damage.file)
    if again := list(damaged_extents(packed, split, damage.extents)):
        raise ArtifactError(
            f"{manifest.file(damage.file)} is damaged in its extents {again} again: the disk does not keep what is "
            f"written"
        )


def _repair_samples(
    samples: Samples, damages: Sequence[Damage], graph: Graph, scratch: Path, resources: Resources
) -> None:
    manifest, names = samples.manifest, [damage.file for damage in damages]
    _require_source(manifest, artifacts.GRAPH, graph.manifest.digest)
    plan = SamplingPlan(graph, read_given(manifest, samples.config.spec))
    making = {"shards of": manifest.digest}
    with ArtifactWriter(scratch / "samples", artifacts.SAMPLES, config=making, resumable=True) as writer:
        write_shards(writer, plan, resources, only=names)
        for name in names:
            if writer.files.get(name) != manifest.files[name]:
                raise LostError(f"{name} of {manifest.path} cannot be made again: sample it all again")
            replace_file(writer.path(name), manifest.folder / name)
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
    alone = [damage for damage in damages if can_be_made_alone(packed, damage)]
    others = [damage for damage in damages if damage not in alone]
    plan = SamplingPlan(graph, read_given(packed.manifest, packed.config.samples.spec))
    extents = ExtentRepair(packed, alone, plan, samples) if alone else None
    needs = [] if extents is None else [extents.need(resources)]
    if others:
        require_memory(plan, resources, *needs, samples=samples)
    if extents is not None:
        extents.make(scratch, resources)
        return_freed_memory()
    if others:
        make_part_again(packed, others, graph, samples, scratch, resources)


def _require_source(manifest: Manifest, format: str, digest: str) -> None:  # noqa: A002  (the manifest's word)
    expected = {"format": format, "digest": digest}
    if manifest.source != expected:
        raise ArtifactError(
            f"{manifest.path} was made from something else: expected {manifest.source}, found {expected}"
        )
