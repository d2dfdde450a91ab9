"""The packer: graph/ + samples/ -> packed/, every minibatch's rows contiguous on disk in the order of training.

First each split's sequence is placed (see `placement`) and the extents' headers are written (`split_placer`), then
their rows (`row_packing`).
"""

from __future__ import annotations

import time
from contextlib import closing

from diskgnn._native import PageWriter
from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.packing.probes import probe_samples
from diskgnn.packing.row_packing import pack_rows
from diskgnn.packing.space import certain_bytes, most_packed_bytes
from diskgnn.packing.split_placer import Placed, SplitPlacer
from diskgnn.packing.tiers import TierRows
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.specs import CacheSpec, PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.disk_space import free_bytes, require_free_bytes
from diskgnn.storage.packed import PackedConfig, PackedSplit
from diskgnn.storage.read_engine import warn_if_no_io_uring
from diskgnn.storage.samples import Samples
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources


def pack(
    graph: PathLike | Graph,
    samples: PathLike | Samples,
    out: PathLike,
    *,
    cpu_cache: int | str,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    memory: int | str = "auto",
    keep_input_nodes: bool = False,
    threads: int | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> StageReport:
    """Place all rows and write the packed directory `out`, which is all that training reads.

    Args:
        graph: the graph directory that the samples were made from.
        samples: samples directory.
        out: the packed directory to write.
        cpu_cache: the cpu tier of the train sequence: bytes, '2GiB', or '10%' of all rows.
        static_cache: rows for the device and pinned tiers together; 'auto' is nothing without a GPU, and with one the
            least of half of its free memory, a quarter of the `memory` budget and 4 GiB.
        eval_cpu_cache: the cpu tier of each other sequence, in memory while evaluating; a quarter of `cpu_cache`.
        memory: budget for packing itself.
        keep_input_nodes: store each minibatch's node ids too, for `MiniBatch.input_nodes`.
        threads: packing threads; all cores by default.
        overwrite: replace an existing `out`.

    Raises:
        ConfigError: a cache or a budget that makes no sense.
        ArtifactError: samples made from another graph, damaged inputs.
        DiskFullError: the disk cannot hold the result; names the bytes missing. Refused before placing when a few
            minibatches say so for sure, otherwise after it, when the size is known exactly.
        OutputExistsError: `out` exists.

    Example:
        >>> diskgnn.pack("graph", "samples", "packed", cpu_cache="10%")
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    samples = samples if isinstance(samples, Samples) else Samples.open(samples)
    resources = Resources.of(memory, threads, reporter)
    cache = CacheSpec(cpu_cache, static_cache, eval_cpu_cache)
    tiers = TierRows.of(cache, graph.feature_file, resources.memory_bytes)
    return pack_samples(graph, samples, out, tiers, resources, keep_input_nodes=keep_input_nodes, overwrite=overwrite)


def pack_samples(
    graph: Graph,
    samples: Samples,
    out: PathLike,
    tiers: TierRows,
    resources: Resources,
    *,
    keep_input_nodes: bool = False,
    overwrite: bool = False,
    window_bytes: int | None = None,
) -> StageReport:
    """`pack`, once its arguments are nouns; `window_bytes` is that of `row_packing.pack_rows`."""
    started = time.perf_counter()
    if samples.manifest.source != {"format": artifacts.GRAPH, "digest": graph.manifest.digest}:
        raise ArtifactError(
            f"{samples.manifest.path} was sampled from another graph than {graph.manifest.path}; "
            f"run `diskgnn sample {graph.manifest.path} ...` again"
        )
    warn_if_no_io_uring()
    with (
        ArtifactWriter(out, artifacts.PACKED, config={}, source=samples.manifest, overwrite=overwrite) as writer,
        closing(PageWriter()) as pages,
    ):
        read_bytes = _require_space(writer, graph, samples, tiers, keep_input_nodes)
        placer = SplitPlacer(writer, pages, graph, samples, keep_input_nodes=keep_input_nodes, resources=resources)
        placed = placer.place_all(tiers)
        read_bytes += 2 * samples.manifest.total_bytes + placed.read_bytes  # to place, and to write the headers
        read_bytes += pack_rows(writer, pages, graph, placed, resources, window_bytes=window_bytes)
        if (quantisation := graph.feature_file.quantisation) is not None:
            writer.save_array(artifacts.QUANTISATION, quantisation.to_array())
        writer.config = _config(graph, samples, placed, keep_input_nodes).to_json()
        manifest = writer.publish()
    details: dict[str, int | float | str] = {}
    for split in placed.splits:
        details |= {f"{split.name}_requested_rows": split.rows.requested, f"{split.name}_disk_rows": split.rows.disk}
    return StageReport("pack", time.perf_counter() - started, read_bytes, manifest.total_bytes, details)


def _require_space(
    writer: ArtifactWriter, graph: Graph, samples: Samples, tiers: TierRows, keep_input_nodes: bool
) -> int:
    """Refuse what surely does not fit; bytes read. Only where sizes leave that open, a few minibatches are asked."""
    row_bytes = graph.feature_file.row_bytes
    if most_packed_bytes(samples, tiers, graph.indices.itemsize, row_bytes) <= free_bytes(writer.staging):
        return 0
    probes = {split: probe_samples(samples, split) for split in samples.splits}
    certain = certain_bytes(probes, tiers, row_bytes, keep_input_nodes)
    packed_bytes = max(certain.packed, samples.manifest.total_bytes)  # headers alone are as large
    require_free_bytes(writer.staging, packed_bytes, f"packing {writer.final}")
    return sum(samples.manifest.files[artifacts.shard_file(split, 0, 0)].bytes for split in probes)


def _config(graph: Graph, samples: Samples, placed: Placed, keep_input_nodes: bool) -> PackedConfig:
    """What the packed directory says of itself."""
    sampled = samples.config.spec
    splits = {}
    for split in placed.splits:
        size = samples.config.splits[split.name]
        splits[split.name] = PackedSplit(
            epochs=size.epochs,
            batches_per_epoch=size.batches_per_epoch,
            cpu_rows=len(split.next_cycle_slots),
            initial_rows=len(split.initial_cpu_nodes),
            rows=split.rows,
            max_inputs=int(split.index["num_inputs"].max()),
            max_header_bytes=int(split.index["header_bytes"].max()),
        )
    return PackedConfig(
        fanouts=sampled.fanouts_of("train"),
        eval_fanouts=sampled.fanouts_of("valid"),
        batch_size=sampled.batch_size,
        seed=sampled.seed,
        num_nodes=graph.num_nodes,
        num_classes=graph.num_classes,
        rows=graph.feature_file.rows,
        first_epoch=sampled.first_epoch,
        draws=sampled.draws,
        draw_period=sampled.draw_period,
        group_seeds=sampled.group_seeds,
        keep_input_nodes=keep_input_nodes,
        node_dtype=graph.indices.dtype.name,
        graph=graph.manifest.digest,
        num_static=len(placed.static_nodes),
        splits=splits,
    )
