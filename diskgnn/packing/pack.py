"""Packs a graph and its samples: every minibatch's rows become contiguous on disk, in the order of training.

First the sequence of each split is placed (see `placement`) and the headers of its extents are written
(`split_placer`). Then `row_packing` writes the rows.
"""

from __future__ import annotations

import time
from dataclasses import replace

from diskgnn.files.destination import Destination
from diskgnn.files.read_engine import warn_if_no_io_uring
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack_folder import STAGE
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.pack_run import PackRun
from diskgnn.packing.placed import Placed
from diskgnn.packing.probes import probe_samples
from diskgnn.packing.row_packing import RowPacking, pack_rows
from diskgnn.packing.row_sets import features_of, only_features
from diskgnn.packing.sending import send_rows
from diskgnn.packing.space import certain_bytes, most_packed_bytes
from diskgnn.packing.split_placer import SplitPlacer
from diskgnn.packing.tiers import TierBudgets
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.specs.caches import DEFAULT_CPU_CACHE, CacheSpec
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Resources
from diskgnn.work.publishing import published
from diskgnn.work.required_space import require_space, spare_bytes
from diskgnn.work.runner import Work
from diskgnn.work.writer import ArtifactWriter


@published(artifacts.PACKED)
@freed_memory_returned()
def pack(
    graph: PathLike | Graph,
    samples: PathLike | Samples,
    out: PathLike,
    *,
    cpu_cache: int | str = DEFAULT_CPU_CACHE,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    memory: int | str = "auto",
    disk: int | str | None = None,
    keep_input_nodes: bool = False,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Places all rows and writes the packed directory `out`, which is all that training reads.

    Args:
        graph: the graph directory that the samples were made from.
        samples: samples directory.
        out: the packed directory to write.
        cpu_cache, static_cache, eval_cpu_cache, memory, threads, keep_input_nodes: as `prepare` takes them.
        disk: what files may take at any time, scratch included, as '100GiB'; what is free by default.
        overwrite: replace an existing `out`.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about every stage, in place of the bars; see `diskgnn.progress`.

    Raises:
        ConfigError: a cache or a budget that makes no sense.
        ArtifactError: samples made from another graph, damaged inputs.
        DiskFullError: the disk cannot hold the result, or it is more than `disk`; names the bytes missing. It is raised
            before placing if a few minibatches prove it, otherwise after placing, when the size is known exactly.
        OutputExistsError: `out` exists.

    Example:
        >>> diskgnn.pack("graph", "samples", "packed", cpu_cache="10%")
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    samples = samples if isinstance(samples, Samples) else Samples.open(samples)
    out, told = Destination.of(out), reporter_for(reporter, progress)
    resources = Resources.of(memory, threads, told, sending_bytes=out.sending_bytes)
    resources = replace(resources, disk=out.budget(disk))
    cache = CacheSpec(cpu_cache, static_cache, eval_cpu_cache)
    tiers = TierBudgets.of(cache, features_of(graph, samples.config), resources)
    request = PackRequest(graph, samples, tiers, keep_input_nodes=keep_input_nodes)
    claimed = [each.manifest.copies_claimed_of(resources.disk) for each in (graph, samples)]
    with claimed[0], claimed[1]:
        return pack_request(request, out, resources, overwrite=overwrite)


def pack_request(
    request: PackRequest,
    out: PathLike,
    resources: Resources,
    *,
    overwrite: bool = False,
) -> StageReport:
    """Packs a checked request. Continues after `place_request` if that ran before."""
    started, run = time.perf_counter(), PackRun.of(request, resources)

    def place_and_pack(work: Work) -> Placed:
        with run.placing(work, writer) as placer:
            placed = _place_all(placer, request)
            packing = RowPacking(placer.folder, placed)
            if writer.outbox is not None and not packing.fits_disk():
                assert not request.by_reference
                send_rows(packing, writer.outbox)
            else:
                pack_rows(packing)
            return placed

    with _writer(run, out, overwrite=overwrite) as writer:
        _refuse_disk(run, writer)
        placed = Work(writer, STAGE).run(place_and_pack)
        writer.config = _placed_config(run.config, placed).to_json()
        manifest = writer.publish()
    details = _details(Packed(manifest).config, placed)
    seconds = time.perf_counter() - started
    return StageReport("pack", seconds, run.traffic.read_bytes, manifest.total_bytes, details)


def place_request(request: PackRequest, out: PathLike, resources: Resources, *, overwrite: bool = False) -> StageReport:
    """Does the first half of `pack_request`: places the rows and writes the headers.

    `pack_request` goes on from there, in this or in another process.
    """
    assert not request.once  # nothing is gone on with
    started, run = time.perf_counter(), PackRun.of(request, resources)

    def place(work: Work) -> None:
        with run.placing(work, writer) as placer:
            _place_all(placer, request)

    with _writer(run, out, overwrite=overwrite) as writer:
        _refuse_disk(run, writer)
        Work(writer, STAGE).run(place)
    return StageReport("place", time.perf_counter() - started, run.traffic.read_bytes, 0)


def _writer(run: PackRun, out: PathLike, *, overwrite: bool) -> ArtifactWriter:
    warn_if_no_io_uring()
    request = run.request
    return ArtifactWriter(
        out,
        artifacts.PACKED,
        config=request.made_with(run.config),
        source=request.samples.manifest,
        overwrite=overwrite,
        resumable=not request.once,
        durable=not request.once,
        disk=run.resources.disk,
    )


def _place_all(placer: SplitPlacer, request: PackRequest) -> Placed:
    """Places every split. Records which rows are static, where others have the same, and readers may share them."""
    placed = placer.placed([placer.place(split) for split in request.samples.splits])
    for row_set, nodes in zip(placed.row_sets, placed.static_nodes, strict=True):
        if request.static_nodes is not None and len(nodes):
            placer.folder.writer.save_array(artifacts.static_nodes_file(row_set.config.name), nodes)
    return placed


def _details(config: PackedConfig, placed: Placed) -> dict[str, int | float | str]:
    """Returns where rows come from, and how the cpu tier was divided among row sets, beside an even division of the
    same bytes.
    """
    details: dict[str, int | float | str] = {}
    for split, found in config.splits.items():
        details |= {f"{split}_requested_rows": found.rows.requested, f"{split}_disk_rows": found.rows.disk}
        if (division := placed.divisions.get(split)) is None:
            continue
        for row_set, rows in zip(config.row_sets, found.row_sets, strict=True):
            details[f"{split}_cpu_rows_of_{row_set.name}"] = rows.cpu_rows
        details[f"{split}_disk_row_bytes"] = division.read_bytes
        details[f"{split}_disk_row_bytes_divided_evenly"] = division.even_read_bytes
    return details


def _refuse_disk(run: PackRun, writer: ArtifactWriter) -> None:
    """Refuses what certainly does not fit.

    A few minibatches are read only if the sizes of the inputs leave it open.
    """
    graph, samples, tiers = run.request.graph, run.request.samples, run.request.tiers
    if run.request.by_reference or writer.outbox is not None:
        return
    if (features := only_features(graph, samples.config)) is None:
        return
    row_bytes = features.row_bytes
    rows = tiers.rows_of(features) if isinstance(tiers, TierBudgets) else tiers[0]
    if spare_bytes(writer, most_packed_bytes(samples, rows, graph.id_dtype.itemsize, row_bytes)) >= 0:
        return
    probes = {split: probe_samples(samples, split) for split, size in samples.config.splits.items() if size.num_batches}
    run.traffic.add(read=sum(samples.manifest.files[artifacts.shard_file(split, 0, 0)].bytes for split in probes))
    certain = certain_bytes(probes, rows, row_bytes, run.request.keep_input_nodes)
    packed_bytes = max(certain.packed, samples.manifest.total_bytes)  # headers alone are as large
    require_space(writer, packed_bytes, f"packing {writer.final}")


def _placed_config(config: PackedConfig, placed: Placed) -> PackedConfig:
    """Returns `config` with the sizes that placing has found."""
    sizes = config.samples.splits
    return replace(
        config,
        row_sets=tuple(
            replace(row_set, num_static=len(nodes))
            for row_set, nodes in zip(config.row_sets, placed.static_nodes, strict=True)
        ),
        splits={
            split.name: split.config(sizes[split.name].epochs, sizes[split.name].batches_per_epoch)
            for split in placed.splits
        },
    )
