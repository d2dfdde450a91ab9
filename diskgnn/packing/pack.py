"""Packs a graph and its samples: every minibatch's rows become contiguous on disk, in the order of training.

First the sequence of each split is placed (see `placement`) and the headers of its extents are written
(`split_placer`). Then `row_packing` writes the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from diskgnn._native import PageWriter
from diskgnn.files.destination import Destination
from diskgnn.files.read_engine import warn_if_no_io_uring
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import label_target
from diskgnn.packing.file_sizes import sizes_with_records
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.packing_need import COPIES, edge_ids_within, minibatch_bytes_of, packing_need
from diskgnn.packing.placed import STAGE, Placed
from diskgnn.packing.probes import probe_samples
from diskgnn.packing.row_packing import pack_rows
from diskgnn.packing.row_sets import features_of, only_features
from diskgnn.packing.sending import send_rows
from diskgnn.packing.space import certain_bytes, most_packed_bytes
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.split_placer import SplitPlacer
from diskgnn.packing.tiers import TierBudgets
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.specs.caches import DEFAULT_CPU_CACHE, CacheSpec
from diskgnn.system.allocators import freed_memory_returned, pages_kept
from diskgnn.system.resources import Resources
from diskgnn.work.publishing import published
from diskgnn.work.required_space import require_space, spare_bytes
from diskgnn.work.runner import Work
from diskgnn.work.seed_files import read_given, write_given
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
        cpu_cache: the cpu tier of the train sequence: bytes, '2GiB', or '10%' of all rows. With the features of several
            types it is divided among them by what the next byte saves, and so is `static_cache`.
        static_cache: rows for the device and pinned tiers together; 'auto' is nothing without a GPU, and with one the
            least of half of its free memory, a quarter of the `memory` budget and 4 GiB.
        eval_cpu_cache: the cpu tier of each other sequence, in memory while evaluating; a quarter of `cpu_cache` by
            default.
        memory: budget for packing itself.
        disk: what files may take at any time, scratch included, as '100GiB'; what is free by default.
        keep_input_nodes: store each minibatch's node ids too, for `MiniBatch.input_nodes`. Those of node types without
            features are stored in any case.
        threads: packing threads; all cores by default.
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
    return pack_request(request, out, resources, overwrite=overwrite)


def pack_request(
    request: PackRequest,
    out: PathLike,
    resources: Resources,
    *,
    overwrite: bool = False,
    window_bytes: int | None = None,
) -> StageReport:
    """Packs a checked request. Continues after `place_request` if that ran before.

    `window_bytes` is passed on to `row_packing.pack_rows`.
    """
    started = time.perf_counter()

    def write_rows(placing: _Placing) -> int:
        writer, pages, placed = placing.writer, placing.pages, placing.placed
        if writer.outbox is not None and not _fits_disk(writer, placed):
            assert not request.by_reference
            return send_rows(placing.work, writer, writer.outbox, pages, placed, placing.resources, window_bytes)
        return pack_rows(placing.work, writer, pages, placed, placing.resources, window_bytes=window_bytes)

    run = _Run(request, resources)
    with run.writer(out, overwrite=overwrite) as writer:
        placed, read_bytes = run.placed(writer, write_rows)
        writer.config = _placed_config(run.config, placed).to_json()
        manifest = writer.publish()
    details = _details(Packed(manifest).config, placed)
    return StageReport("pack", time.perf_counter() - started, read_bytes, manifest.total_bytes, details)


def place_request(request: PackRequest, out: PathLike, resources: Resources, *, overwrite: bool = False) -> StageReport:
    """Does the first half of `pack_request`: places the rows and writes the headers.

    `pack_request` goes on from there, in this or in another process.
    """
    assert not request.once  # nothing is gone on with
    started = time.perf_counter()

    run = _Run(request, resources)
    with run.writer(out, overwrite=overwrite) as writer:
        _, read_bytes = run.placed(writer, lambda _: 0)
    return StageReport("place", time.perf_counter() - started, read_bytes, 0)


@dataclass(frozen=True)
class _Placing:
    """A packed directory that is being written, whose rows all have their places."""

    work: Work
    writer: ArtifactWriter
    pages: PageWriter
    resources: Resources
    placed: Placed


class _Run:
    """One run for a request. It may go on with what an earlier run has done."""

    def __init__(self, request: PackRequest, resources: Resources) -> None:
        self._request = request
        warn_if_no_io_uring()
        samples = request.samples
        self._minibatch_bytes = minibatch_bytes_of(samples)
        self._given = read_given(samples.manifest, samples.config.spec)
        self._resources = resources.within(packing_need(
            request.graph, samples.config, self._given.target, self._minibatch_bytes,
            labels_are_held=request.labels is not None,
        ))  # fmt: skip
        self.config = request.config(label_target(request.graph, self._given.target))

    def writer(self, out: PathLike, *, overwrite: bool) -> ArtifactWriter:
        return ArtifactWriter(
            out,
            artifacts.PACKED,
            config=self._request.made_with(self.config),
            source=self._request.samples.manifest,
            overwrite=overwrite,
            resumable=not self._request.once,
            durable=not self._request.once,
            disk=self._resources.disk,
        )

    def placed(self, writer: ArtifactWriter, go_on: Callable[[_Placing], int]) -> tuple[Placed, int]:
        """Places all rows, then calls `go_on`. Returns what was placed, and the bytes read by both.

        What a killed run left is made again if it is damaged.
        """
        request = self._request
        read_bytes = 0 if request.by_reference else _refuse_disk(writer, request)
        read_bytes += 2 * request.samples.manifest.total_bytes  # to place, and to write the headers
        placed, more_bytes = Work(writer, STAGE).run(partial(self._place, writer, go_on))
        return placed, read_bytes + placed.read_bytes + more_bytes

    def _place(self, writer: ArtifactWriter, go_on: Callable[[_Placing], int], work: Work) -> tuple[Placed, int]:
        request = self._request
        edge_ids, resources = edge_ids_within(self._resources, request.graph, self.config.samples)
        write_given(writer, self._given)
        with closing(PageWriter()) as pages, work.scratch("tails") as tails:
            placer = SplitPlacer(
                work, writer, pages, tails, request, self.config, resources, static_nodes=request.chosen_static,
                labels=request.labels or partial(SplitLabels.of, request.graph, self._given.target), edge_ids=edge_ids,
            )  # fmt: skip
            with pages_kept(COPIES * self._minibatch_bytes):
                placed = placer.place_all()
            if request.static_nodes is not None:
                _write_static_nodes(writer, placed)
            return placed, go_on(_Placing(work, writer, pages, resources, placed))


def _write_static_nodes(writer: ArtifactWriter, placed: Placed) -> None:
    """Records which rows are static: other directories have the same, and their readers may share them in memory."""
    for row_set, nodes in zip(placed.row_sets, placed.static_nodes, strict=True):
        if len(nodes):
            writer.save_array(artifacts.static_nodes_file(row_set.config.name), nodes)


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


def _fits_disk(writer: ArtifactWriter, placed: Placed) -> bool:
    """Returns True if the whole directory has room here at once."""
    writer.disk.look()
    return spare_bytes(writer, sizes_with_records(placed)) >= 0


def _refuse_disk(writer: ArtifactWriter, request: PackRequest) -> int:
    """Refuses what certainly does not fit. Returns the bytes read.

    A few minibatches are read only if the sizes of the inputs leave it open.
    """
    graph, samples, tiers = request.graph, request.samples, request.tiers
    if (features := only_features(graph, samples.config)) is None or writer.outbox is not None:
        return 0
    row_bytes = features.row_bytes
    rows = tiers.rows_of(features) if isinstance(tiers, TierBudgets) else tiers[0]
    if spare_bytes(writer, most_packed_bytes(samples, rows, graph.id_dtype.itemsize, row_bytes)) >= 0:
        return 0
    probes = {split: probe_samples(samples, split) for split, size in samples.config.splits.items() if size.num_batches}
    certain = certain_bytes(probes, rows, row_bytes, request.keep_input_nodes)
    packed_bytes = max(certain.packed, samples.manifest.total_bytes)  # headers alone are as large
    require_space(writer, packed_bytes, f"packing {writer.final}")
    return sum(samples.manifest.files[artifacts.shard_file(split, 0, 0)].bytes for split in probes)


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
