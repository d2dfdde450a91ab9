"""The packer: graph/ + samples/ -> packed/, every minibatch's rows contiguous on disk in the order of training.

First each split's sequence is placed (see `placement`) and the extents' headers are written (`split_placer`), then
their rows (`row_packing`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import PageWriter, crc32c
from diskgnn.caches import CacheSpec
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import label_target
from diskgnn.packing.adopting import DamagedScratchError
from diskgnn.packing.memory_division import COPIES, for_packing, minibatch_bytes_of, scratch_memory_bytes
from diskgnn.packing.probes import probe_samples
from diskgnn.packing.row_packing import fits_disk, pack_rows
from diskgnn.packing.row_sets import RowSet, features_of, only_features, row_sets_of
from diskgnn.packing.sending import remove_stale, send_rows
from diskgnn.packing.space import certain_bytes, most_packed_bytes
from diskgnn.packing.split_placer import Placed, SplitPlacer
from diskgnn.packing.tiers import TierBudgets, Tiers
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.disk_space import DiskBudget, allocated_bytes, free_bytes, require_free_bytes
from diskgnn.storage.graph_config import TargetConfig
from diskgnn.storage.packed import Packed
from diskgnn.storage.packed_config import PackedConfig
from diskgnn.storage.pushing import published
from diskgnn.storage.read_engine import warn_if_no_io_uring
from diskgnn.storage.samples import Samples
from diskgnn.storage.seed_files import read_given, write_given
from diskgnn.storage.writer import ArtifactWriter, staging_of
from diskgnn.system.allocators import freed_memory_returned, pages_kept
from diskgnn.system.resources import Resources

_RECORDS = 1  # what they consist of: those of another version are not believed


@published(artifacts.PACKED)
@freed_memory_returned()
def pack(
    graph: PathLike | Graph,
    samples: PathLike | Samples,
    out: PathLike,
    *,
    cpu_cache: int | str,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    memory: int | str = "auto",
    disk: int | str | None = None,
    keep_input_nodes: bool = False,
    keep_edge_ids: bool = False,
    threads: int | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> StageReport:
    """Place all rows and write the packed directory `out`, which is all that training reads.

    Args:
        graph: the graph directory that the samples were made from.
        samples: samples directory.
        out: the packed directory to write.
        cpu_cache: the cpu tier of the train sequence: bytes, '2GiB', or '10%' of all rows. With the features of several
            types it is divided among them by what the next byte saves, and so is `static_cache`.
        static_cache: rows for the device and pinned tiers together; 'auto' is nothing without a GPU, and with one the
            least of half of its free memory, a quarter of the `memory` budget and 4 GiB.
        eval_cpu_cache: the cpu tier of each other sequence, in memory while evaluating; a quarter of `cpu_cache`.
        memory: budget for packing itself.
        disk: what files may take at any time, scratch included, as '100GiB'; what is free by default.
        keep_input_nodes: store each minibatch's node ids too, for `MiniBatch.input_nodes`. Those of node types without
            features are stored in any case.
        keep_edge_ids: store the ids of sampled edges, too, for `Block.edge_ids`; of samples that have their positions.
        threads: packing threads; all cores by default.
        overwrite: replace an existing `out`.

    Raises:
        ConfigError: a cache or a budget that makes no sense.
        ArtifactError: samples made from another graph, damaged inputs.
        DiskFullError: the disk cannot hold the result, or it is more than `disk`; names the bytes missing. Refused
            before placing when a few minibatches say so for sure, otherwise after it, when the size is known exactly.
        OutputExistsError: `out` exists.

    Example:
        >>> diskgnn.pack("graph", "samples", "packed", cpu_cache="10%")
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    samples = samples if isinstance(samples, Samples) else Samples.open(samples)
    budget = DiskBudget(disk, [staging_of(Path(out).resolve())])
    resources = replace(Resources.of(memory, threads, reporter), disk=budget)
    cache = CacheSpec(cpu_cache, static_cache, eval_cpu_cache)
    tiers = TierBudgets.of(cache, features_of(graph, samples.config), resources.memory_bytes)
    return pack_samples(
        graph, samples, out, tiers, resources,
        keep_input_nodes=keep_input_nodes, keep_edge_ids=keep_edge_ids, overwrite=overwrite,
    )  # fmt: skip


def pack_samples(
    graph: Graph,
    samples: Samples,
    out: PathLike,
    tiers: Tiers,
    resources: Resources,
    *,
    keep_input_nodes: bool = False,
    keep_edge_ids: bool = False,
    overwrite: bool = False,
    once: bool = False,
    by_reference: bool = False,
    window_bytes: int | None = None,
    unit_bytes: int | None = None,
    static_nodes: Mapping[str, npt.NDArray[np.int64]] | None = None,
    only_place: bool = False,
) -> StageReport:
    """`pack`, once its arguments are nouns. `tiers` are rows [K] where those of each row set are known.

    The sequences are to be repeated, or, if `once`, not: then their cpu tiers are empty at the start, and a killed run
    starts from the beginning. `by_reference` takes `once`, and leaves rows of extents where they are: see
    `storage.extents`. `window_bytes` is that of `row_packing.pack_rows`, `unit_bytes` that of `Pace`. By row set,
    `static_nodes` are those whose rows are to be static, where other samples had a say in that.

    With `only_place`, it ends where all rows have their places and all headers are written. The next call with the same
    arguments goes on from there, in whatever process.
    """
    started = time.perf_counter()
    if samples.manifest.source != {"format": artifacts.GRAPH, "digest": graph.manifest.digest}:
        raise ArtifactError(
            f"{samples.manifest.path} was sampled from another graph than {graph.manifest.path}; "
            f"run `diskgnn sample {graph.manifest.path} ...` again"
        )
    warn_if_no_io_uring()
    row_sets = row_sets_of(graph, samples.config)
    minibatch_bytes = minibatch_bytes_of(samples)
    resources = for_packing(
        sum(row_set.num_rows for row_set in row_sets), samples.config.splits, samples.config.spec.batch_size,
        minibatch_bytes, resources,
    )  # fmt: skip
    given = read_given(samples.manifest, samples.config.spec)
    target = label_target(graph, given.target)
    config = replace(
        _config(graph, samples, target, row_sets, keep_input_nodes=keep_input_nodes, keep_edge_ids=keep_edge_ids),
        by_reference=by_reference,
    )
    made_with = {"records": _RECORDS, "config": config.to_json(), "tiers": _tiers_json(tiers)}
    if static_nodes is not None:
        made_with["static"] = {name: crc32c(nodes.view(np.uint8)) for name, nodes in static_nodes.items()}
    chosen = None if static_nodes is None else [static_nodes[each.config.name] for each in row_sets]
    with ArtifactWriter(
        out,
        artifacts.PACKED,
        config=made_with,
        source=samples.manifest,
        overwrite=overwrite,
        resumable=not once,
        disk=resources.disk,
    ) as writer:
        if isinstance(tiers, TierBudgets) and tiers.static_is_auto:
            tiers = replace(tiers, static=writer.decided("static_cache", tiers.static))
        read_bytes = 0 if by_reference else _require_space(writer, graph, samples, tiers, keep_input_nodes)

        def place_and_pack() -> tuple[Placed, int | None]:
            write_given(writer, given)
            if writer.outbox is not None:
                remove_stale(writer, samples.splits)
            with closing(PageWriter()) as pages:
                placer = SplitPlacer(
                    writer, pages, graph, samples, config, row_sets, resources,
                    scratch_memory_bytes=scratch_memory_bytes(resources), once=once, unit_bytes=unit_bytes,
                    static_nodes=chosen,
                )  # fmt: skip
                with pages_kept(COPIES * minibatch_bytes):
                    placed = placer.place_all(tiers)
                if static_nodes is not None:
                    _write_static_nodes(writer, placed)
                if only_place:
                    pages.finish()
                    placer.record()
                    return placed, None
                if writer.outbox is not None and not fits_disk(writer, placed):
                    return placed, send_rows(writer, writer.outbox, pages, placed, resources, window_bytes)
                return placed, pack_rows(
                    writer, pages, placed, resources,
                    window_bytes=window_bytes, unit_bytes=unit_bytes, before_units=placer.record,
                )  # fmt: skip

        try:
            placed, rows_bytes = place_and_pack()
        except DamagedScratchError:
            writer.restart()
            placed, rows_bytes = place_and_pack()
        read_bytes += 2 * samples.manifest.total_bytes  # to place, and to write the headers
        read_bytes += placed.read_bytes
        if rows_bytes is None:
            return StageReport("place", time.perf_counter() - started, read_bytes, 0)
        read_bytes += rows_bytes
        writer.config = _placed_config(config, placed).to_json()
        manifest = writer.publish()
    seconds, details = time.perf_counter() - started, _details(Packed(manifest).config, placed)
    return StageReport("pack", seconds, read_bytes, manifest.total_bytes, details)


def _write_static_nodes(writer: ArtifactWriter, placed: Placed) -> None:
    """Say which rows are static: other directories have the same, and their readers may share them in memory."""
    for row_set, nodes in zip(placed.row_sets, placed.static_nodes, strict=True):
        if len(nodes):
            writer.save_array(artifacts.static_nodes_file(row_set.config.name), nodes)


def _tiers_json(tiers: Tiers) -> Any:
    """What was asked for, not what it came to on this machine at this moment."""
    if not isinstance(tiers, TierBudgets):
        return [asdict(rows) for rows in tiers]
    return asdict(tiers) | ({"static": "auto"} if tiers.static_is_auto else {})


def _details(config: PackedConfig, placed: Placed) -> dict[str, int | float | str]:
    """Where rows come from; how the cpu tier was divided among row sets, beside an even division of the same bytes."""
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


def _require_space(
    writer: ArtifactWriter,
    graph: Graph,
    samples: Samples,
    tiers: Tiers,
    keep_input_nodes: bool,
) -> int:
    """Refuse what surely does not fit; bytes read. Only where sizes leave that open, a few minibatches are asked."""
    if (features := only_features(graph, samples.config)) is None or writer.outbox is not None:
        return 0
    row_bytes = features.row_bytes
    rows = tiers.rows_of(features) if isinstance(tiers, TierBudgets) else tiers[0]
    taken_bytes = allocated_bytes(writer.staging)  # by a run that was killed
    most_bytes = most_packed_bytes(samples, rows, graph.id_dtype.itemsize, row_bytes)
    if most_bytes - taken_bytes <= free_bytes(writer.staging, writer.disk):
        return 0
    probes = {split: probe_samples(samples, split) for split, size in samples.config.splits.items() if size.num_batches}
    certain = certain_bytes(probes, rows, row_bytes, keep_input_nodes)
    packed_bytes = max(certain.packed, samples.manifest.total_bytes)  # headers alone are as large
    require_free_bytes(writer.staging, packed_bytes - taken_bytes, f"packing {writer.final}", disk=writer.disk)
    return sum(samples.manifest.files[artifacts.shard_file(split, 0, 0)].bytes for split in probes)


def _config(
    graph: Graph,
    samples: Samples,
    target: TargetConfig | None,
    row_sets: Sequence[RowSet],
    *,
    keep_input_nodes: bool,
    keep_edge_ids: bool,
) -> PackedConfig:
    """What the packed directory says of itself, as far as it is known before placing.

    Raises:
        ConfigError: the samples lack what is to be kept.
    """
    config = samples.config
    if keep_edge_ids and set(config.layout.positions) != set(config.num_edges):
        raise ConfigError("keep_edge_ids: expected samples with the positions of all edges; sample again with them")
    return PackedConfig(
        samples=config,
        target=target,
        node_dtypes=tuple(
            np.dtype(np.int32 if num_nodes < 1 << 31 else np.int64).name for num_nodes in config.num_nodes.values()
        ),
        row_sets=tuple(row_set.config for row_set in row_sets),
        keep_input_nodes=keep_input_nodes,
        keep_edge_ids=keep_edge_ids,
        graph=graph.manifest.digest,
        splits={},
    )


def _placed_config(config: PackedConfig, placed: Placed) -> PackedConfig:
    """`config`, with what placing has found."""
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
