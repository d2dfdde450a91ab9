"""`prepare`: sample and pack in one call."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diskgnn.engines.engine import Engine, LocalEngine, open_engine
from diskgnn.engines.telling import NamedReporter
from diskgnn.errors import ArtifactError, BusyError, OutputExistsError, callers_level
from diskgnn.files import faults
from diskgnn.files.destination import Destination, staging_of
from diskgnn.files.disk_space import JOURNAL, DiskBudget, free_bytes, require_free_bytes
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack_request
from diskgnn.packing.probes import probe_by_sampling
from diskgnn.packing.row_sets import only_features
from diskgnn.packing.space import certain_bytes, most_disk_bytes
from diskgnn.paths import PathLike
from diskgnn.preparing.estimate import disk_forecast
from diskgnn.preparing.packing_tasks import pack_by_tasks
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.preparing.preparing_need import require_memory
from diskgnn.preparing.rank_folders import preparing_alone, unfinished_ranks
from diskgnn.preparing.repair import LostError, repair
from diskgnn.preparing.static_sets import with_one_static_set
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport, say
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_plan
from diskgnn.specs.caches import DEFAULT_CPU_CACHE, CacheSpec
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.sampling import SamplingOptions, SamplingSpec
from diskgnn.stores.locations import local
from diskgnn.system.allocators import freed_memory_returned, return_freed_memory
from diskgnn.units import format_size, whole_number
from diskgnn.work.overwriting import refuse_inside_artifact
from diskgnn.work.publishing import published
from diskgnn.work.required_space import missing_bytes
from diskgnn.work.writer import ArtifactWriter

if TYPE_CHECKING:
    from typing_extensions import Unpack


@published(artifacts.PACKED)
@freed_memory_returned()
@takes_options(SamplingOptions, SamplingSpec)
def prepare(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    cpu_cache: int | str = DEFAULT_CPU_CACHE,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    keep_input_nodes: bool = False,
    samples: PathLike | None = None,
    ranks: int = 1,
    engine: str = "local",
    address: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
    **sampling: Unpack[SamplingOptions],
) -> list[StageReport]:
    """Make the packed directory `out`, ready to train from: `diskgnn.sample`, then `diskgnn.pack`.

    The samples are scratch, beside `out`, unless `samples` says otherwise. A run that fails or is interrupted keeps
    what was sampled and warns where; the same arguments go on with it, and make again what was damaged meanwhile.

    Args:
        graph: graph directory, or an opened one.
        out: the packed directory to write.
        sampling: `fanouts`, `batch_size`, `epochs` and what else `SamplingSpec` says of minibatches.
        cpu_cache: the cpu tier of the train sequence: bytes, '2GiB', or '10%' of all rows. With the features of several
            types it is divided among them by what the next byte saves, and so is `static_cache`.
        static_cache: rows for the device and pinned tiers together, alike; 'auto' is nothing without a GPU, and with
            one the least of half of its free memory, a quarter of the `memory` budget and 4 GiB.
        eval_cpu_cache: the cpu tier of each other sequence, in memory while evaluating; a quarter of `cpu_cache` by
            default.
        memory: budget in bytes or as '2GiB'; 'auto' means half of what is available.
        disk: what files may take at any time, samples and scratch included, as '100GiB'; what is free by default. A
            directory that `overwrite` replaces does not count, of several ranks it does. Engine 'ray' makes ranks at
            the same time, and each keeps to an equal part of what is left.
        threads: all cores by default.
        keep_input_nodes: store each minibatch's node ids too, for `MiniBatch.input_nodes`. Those of node types without
            features are stored in any case.
        samples: a directory to keep the samples in.
        ranks: processes that will train together, on one machine or on several. Of more than 1, `out` and `samples` are
            folders with a directory for each rank, `rank-0-of-4` and so on: rank r of W has the minibatches r, r + W,
            r + 2 W, ... of each epoch, so that step t of all ranks is minibatches t W to t W + W - 1 of one.
            `batch_size` and the cpu tiers are those of each rank. Static rows are the same in all ranks; those of one
            machine share them in memory. Ranks that are there, made with the same arguments, are done.
        engine: 'local', this process; or 'ray', workers of a cluster that see graph and output at the same paths
            (docs/guide/cluster.md). The bytes are the same. `memory` and `threads` are then those of each worker, by
            default half of the smallest node and all of its cores.
        address: of a running Ray; None for the one that Ray finds by itself, or a new one on this machine.
        overwrite: replace `out`, never samples that are kept.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about every stage, in place of the bars; see `diskgnn.progress`.

    Returns:
        The reports of both stages, of each rank in turn.

    Raises:
        ConfigError, InputError, ArtifactError, OutputExistsError, DiskFullError: see both. What samples and packed data
            surely do not fit, a disk or `disk`, is refused before sampling. What would exceed `disk` later ends then.
        UnavailableError: engine 'ray' without Ray.
        WorkerLostError: Ray lost workers again and again.

    Example:
        >>> diskgnn.prepare("graph", "packed", fanouts=[10, 10], batch_size=1024, epochs=4, cpu_cache="10%")
    """
    spec = SamplingSpec.of(**sampling)
    cache, ranks = CacheSpec(cpu_cache, static_cache, eval_cpu_cache), whole_number("ranks", ranks)
    plan = SamplingPlan(graph if isinstance(graph, Graph) else Graph.open(graph), spec)
    with plan.graph.manifest.copies_claimed_of(DiskBudget(disk, ())):
        plan.warn()
    kept = None if samples is None else local(samples, "keeping samples").absolute()
    refuse_inside_artifact(out := Destination.of(out))
    if kept is not None:
        refuse_inside_artifact(kept, "samples")
    with open_engine(engine, address) as opened:
        told = reporter_for(reporter, progress)
        resources = opened.resources(memory, threads, told, out.sending_bytes)
        request = PrepareRequest.of(plan, cache, resources, out, samples=kept, keep_input_nodes=keep_input_nodes)
        budget = DiskBudget(disk, request.written(ranks))
        request = replace(request, resources=replace(resources, disk=budget))
        with plan.graph.manifest.copies_claimed_of(budget):
            return prepare_ranks(request, ranks, opened, overwrite=overwrite)


def prepare_ranks(request: PrepareRequest, ranks: int, engine: Engine, *, overwrite: bool = False) -> list[StageReport]:
    """Prepares so many ranks, once the arguments of `prepare` are checked."""
    if ranks == 1:
        return prepare_request(request, engine, overwrite=overwrite)
    request.plan.hold_out(request.resources.reporter)
    num_batches = next(iter(request.plan.sizes.values())).batches_per_epoch  # of train, if it is there
    if num_batches < ranks:
        warnings.warn(
            f"ranks: an epoch has {num_batches} minibatches, so {ranks - num_batches} of {ranks} ranks will have none "
            f"and train on nothing; pass ranks={num_batches} at most, or a smaller `batch_size`",
            stacklevel=callers_level(),
        )
    with unfinished_ranks(request, ranks, overwrite=overwrite) as unfinished:
        sampled: list[StageReport] = []
        if request.tiers.static:
            sampled = _each(engine, unfinished, lambda each: sample_request(each, engine, overwrite=overwrite))
            unfinished = with_one_static_set(request, unfinished)
        return sampled + _each(engine, unfinished, lambda each: prepare_request(each, engine, overwrite=overwrite))


def _each(
    engine: Engine, requests: Sequence[PrepareRequest], prepare: Callable[[PrepareRequest], list[StageReport]]
) -> list[StageReport]:
    """Returns what `prepare` reports of each request, in order. What are made at the same time share out the disk
    budget."""
    if len(requests) > 1 and not engine.is_here:
        disks = requests[0].resources.disk.divided([each.written(1) for each in requests])
        lock = threading.Lock()
        requests = [_beside_others(each, disk, lock) for each, disk in zip(requests, disks, strict=True)]
    return [report for reports in engine.each(requests, prepare) for report in reports]


def _beside_others(request: PrepareRequest, disk: DiskBudget, lock: threading.Lock) -> PrepareRequest:
    reporter = NamedReporter(request.resources.reporter, request.out.name, lock)
    return replace(request, resources=replace(request.resources, reporter=reporter, disk=disk))


def sample_request(request: PrepareRequest, engine: Engine, *, overwrite: bool = False) -> list[StageReport]:
    """Does the first half of `prepare_request`, which then goes on with it."""
    with _ready(request, overwrite=overwrite):
        return _sample(request, engine)


def prepare_request(
    request: PrepareRequest, engine: Engine | None = None, *, overwrite: bool = False
) -> list[StageReport]:
    """Prepares one directory, once the arguments of `prepare` are checked."""
    engine = engine or LocalEngine()
    with _ready(request, overwrite=overwrite):
        reports = _sample(request, engine)
        return_freed_memory()
        reports.append(_pack(request, engine, overwrite=overwrite))
        faults.point("prepare.packed")
        shutil.rmtree(request.scratch, ignore_errors=True)
    return reports


@contextmanager
def _ready(request: PrepareRequest, *, overwrite: bool) -> Iterator[None]:
    """Makes sure that nobody else prepares this, and that nothing says that it cannot be done. What is done stays
    if the block fails."""
    with preparing_alone(request.out):
        request.resources.disk.look()
        try:
            # Refuse before hours of sampling, not after.
            ArtifactWriter(request.destination, artifacts.PACKED, config={}, overwrite=overwrite)
        except OutputExistsError:
            _remove_stale_scratch(request)
            raise
        require_memory(request.plan, request.resources)
        with _saying_what_is_kept(request):
            yield


def _sample(request: PrepareRequest, engine: Engine) -> list[StageReport]:
    """Make the samples, or what is damaged of those that are there and are scratch."""
    plan, path, resources = request.plan, request.samples_path, request.resources
    if request.is_sampled():
        if request.samples is not None:
            return []
        with suppress(LostError):
            repair(path, graph=request.graph, resources=resources)
            return []
    if request.samples is None:
        shutil.rmtree(path, ignore_errors=True)  # those of other settings
    elif path.exists() and _is_samples(path):
        raise OutputExistsError(
            f"{path} holds samples of another graph or of other settings, which are kept: choose another `samples`, or "
            f"remove that directory"
        )
    plan.hold_out(resources.reporter)
    _refuse_disk(request)
    say(resources.reporter, lambda: disk_forecast(request))
    return [sample_plan(plan, path, resources, engine=engine)]


def _pack(request: PrepareRequest, engine: Engine, *, overwrite: bool) -> StageReport:
    if not engine.is_here:
        return pack_by_tasks(engine, request, overwrite=overwrite)
    to_pack = request.packing(Samples.open(request.samples_path))
    return pack_request(to_pack, request.destination, request.resources, overwrite=overwrite)


def _is_samples(path: Path) -> bool:
    try:
        return read_manifest(path).format == artifacts.SAMPLES
    except ArtifactError:
        return False


def _remove_stale_scratch(request: PrepareRequest) -> None:
    """Removes the scratch of a run that was killed when it had published the output. What a run with `overwrite` goes
    on with stays.
    """
    path = request.scratch / "samples"
    with suppress(ArtifactError):
        packed = read_manifest(request.out)
        try:
            samples = read_manifest(path)
            is_stale = packed.source == {"format": samples.format, "digest": samples.digest}
        except ArtifactError:
            is_stale = path.exists()  # damaged, so that nobody can go on with it
        if is_stale:
            shutil.rmtree(request.scratch, ignore_errors=True)


@contextmanager
def _saying_what_is_kept(request: PrepareRequest) -> Iterator[None]:
    """When preparing ends early, warn of the hidden directories that hold what was sampled and packed."""
    try:
        yield
    except BusyError:  # another process is at work there
        raise
    except BaseException:
        samples = request.scratch if request.samples is None else staging_of(request.samples)
        sizes = {"sampled": (samples, _bytes_in(samples)), "packed": (out := staging_of(request.out), _bytes_in(out))}
        kept = [f"what was {done} is kept in {path} ({format_size(size)})"
                for done, (path, size) in sizes.items() if size]  # fmt: skip
        with suppress(OSError):
            request.scratch.rmdir()  # if nothing is in it
        if kept:
            warnings.warn(
                f"{', and '.join(kept)}: the same command goes on with it; to give it up, remove that",
                stacklevel=callers_level(),
            )
        raise


def _bytes_in(folder: Path) -> int:
    """Returns the bytes of all that a run would go on with, not of what only says that it began."""
    files = (path for path in folder.glob("**/*") if path.is_file() and path.name != JOURNAL)
    return sum(path.stat().st_size for path in files)


def _refuse_disk(request: PrepareRequest) -> None:
    """Refuse what surely does not fit. Only where the fanouts leave that open, a few minibatches are asked.

    What an earlier run left half-done is reused or replaced, so it counts as free.

    Raises:
        DiskFullError: names the bytes missing.
    """
    plan, keep_input_nodes = request.plan, request.keep_input_nodes
    if (features := only_features(request.graph, plan.config())) is None:
        return
    tiers = request.tiers.rows_of(features)
    out, samples, disk = request.out, request.samples_path, request.resources.disk
    most_bytes = most_disk_bytes(plan, tiers, keep_input_nodes)
    if most_bytes <= min(free_bytes(out.parent, disk), free_bytes(samples.parent)):
        return
    probes = probe_by_sampling(plan, request.resources)
    certain = certain_bytes(probes, tiers, features.row_bytes, keep_input_nodes)
    is_sent = request.destination.target is not None  # then it is here a part at a time
    packed_bytes = 0 if is_sent else max(0, missing_bytes(staging_of(out), certain.packed))
    samples_bytes = max(0, missing_bytes(staging_of(samples), certain.samples))
    both = f"preparing {out}, samples included,"
    disk.require(packed_bytes + samples_bytes, both)
    if _device(out) == _device(samples):
        require_free_bytes(out.parent, packed_bytes + samples_bytes, both)
    else:
        require_free_bytes(samples.parent, samples_bytes, f"sampling {samples}")
        require_free_bytes(out.parent, packed_bytes, f"packing {out}")


def _device(path: Path) -> int:
    """Returns the file system that `path` is on, or will be."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
