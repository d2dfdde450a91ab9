"""The packer: graph/ + samples/ -> packed/, every minibatch's rows contiguous on disk in the order of training.

First each split's sequence is placed (see `placement`) and the extents' headers are written (`header_packing`), then
their rows (`row_packing`).
"""

from __future__ import annotations

import ctypes
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from diskgnn._native import PageWriter
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.packing.headers import SplitPlanner
from diskgnn.packing.rows import pack_rows
from diskgnn.packing.space import disk_need, most_packed_bytes, probe_samples
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.storage.row_reading import warn_if_no_io_uring
from diskgnn.storage.samples import Samples
from diskgnn.system.memory import memory_budget, thread_count
from diskgnn.units import parse_size

MAX_AUTO_STATIC_BYTES = 4 << 30
EVAL_SHARE = 4  # evaluation's cpu tier is this part of training's, unless given


def cache_rows(cache: int | str, row_bytes: int, num_nodes: int) -> int:
    """Rows that a cache holds: given in bytes, as '2GiB', or as a share of all rows, '10%'.

    Raises:
        ConfigError: neither a size nor a share.
    """
    if isinstance(cache, str) and cache.strip().endswith("%"):
        try:
            share = float(cache.strip()[:-1]) / 100
        except ValueError as error:
            raise ConfigError(f"expected a cache size such as 2GiB or 10%, found {cache!r}") from error
        if not 0 <= share <= 1:
            raise ConfigError(f"expected a share between 0% and 100%, found {cache!r}")
        return int(num_nodes * share)
    return min(parse_size(cache) // row_bytes, num_nodes)


def static_rows(static_cache: int | str, row_bytes: int, num_nodes: int, memory_bytes: int) -> int:
    """Rows that `static_cache` stands for.

    'auto' is 0 without a GPU; with one, the least of half of its free memory, a quarter of `memory_bytes` and 4 GiB.
    """
    if static_cache != "auto":
        return cache_rows(static_cache, row_bytes, num_nodes)
    if not _has_gpu_driver():
        return 0
    import torch

    if not torch.cuda.is_available():
        return 0
    auto_bytes = min(torch.cuda.mem_get_info()[0] // 2, memory_bytes // 4, MAX_AUTO_STATIC_BYTES)
    return min(auto_bytes // row_bytes, num_nodes)


def _has_gpu_driver() -> bool:
    """Whether it is worth importing torch, which takes seconds, to ask for GPUs."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()  # AMD's
    return True


def tier_rows(
    row_bytes: int,
    num_nodes: int,
    static_cache: int | str,
    cpu_cache: int | str,
    eval_cpu_cache: int | str | None,
    memory_bytes: int,
) -> tuple[int, int, int]:
    """Static rows, slots of the train split's cpu tier, and of each other split's; see `pack`.

    Raises:
        ConfigError: see `cache_rows`.
    """
    train_rows = cache_rows(cpu_cache, row_bytes, num_nodes)
    eval_rows = train_rows // EVAL_SHARE if eval_cpu_cache is None else cache_rows(eval_cpu_cache, row_bytes, num_nodes)
    return static_rows(static_cache, row_bytes, num_nodes, memory_bytes), train_rows, eval_rows


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
    """
    started = time.perf_counter()
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    samples = samples if isinstance(samples, Samples) else Samples.open(samples)
    if samples.manifest.source != {"format": artifacts.GRAPH, "digest": graph.manifest.digest}:
        raise ArtifactError(
            f"{samples.manifest.path} was sampled from another graph than {graph.manifest.path}; "
            f"run `diskgnn sample {graph.manifest.path} ...` again"
        )
    warn_if_no_io_uring()
    features, memory_bytes = graph.feature_file, memory_budget(memory)
    num_static, train_rows, eval_rows = tier_rows(
        features.row_bytes, graph.num_nodes, static_cache, cpu_cache, eval_cpu_cache, memory_bytes
    )
    threads = thread_count(threads)
    config: dict[str, Any] = {
        key: samples.manifest.config[key] for key in ("fanouts", "eval_fanouts", "batch_size", "seed")
    } | {key: graph.manifest.config[key] for key in ("num_nodes", "num_classes", "feature_dtype", "feature_width")}
    config |= {
        "first_epoch": samples.manifest.config.get("first_epoch", 0),  # older samples do not say
        "row_bytes": features.row_bytes,
        "keep_input_nodes": keep_input_nodes,
        "node_dtype": graph.indices.dtype.name,
        "graph": graph.manifest.digest,
    }
    shards = samples.manifest.files
    read_bytes = 2 * samples.manifest.total_bytes  # to place, and to write the headers
    with (
        ArtifactWriter(out, artifacts.PACKED, config=config, source=samples.manifest, overwrite=overwrite) as writer,
        closing(PageWriter()) as pages,
    ):
        cpu_rows = {split: train_rows if split == "train" else eval_rows for split in samples.splits}
        node_bytes = graph.indices.itemsize
        most_bytes = most_packed_bytes(samples, node_bytes, features.row_bytes, num_static, cpu_rows)
        if most_bytes > artifacts.free_bytes(writer.staging):
            probes = {split: probe_samples(samples, split, graph.num_nodes) for split in samples.splits}
            read_bytes += sum(shards[artifacts.shard_file(split, 0, 0)].bytes for split in probes)
            need = disk_need(probes, features.row_bytes, num_static, cpu_rows, keep_input_nodes)
            certain_bytes = max(need.certain_packed, samples.manifest.total_bytes)  # headers alone are as large
            artifacts.require_free_bytes(writer.staging, certain_bytes, f"packing {out}")
        planner = SplitPlanner(writer, pages, graph, samples, keep_input_nodes, reporter)
        plans = [planner.plan(split, num_static, cpu_rows[split]) for split in samples.splits]
        read_bytes += planner.read_bytes + pack_rows(
            writer, pages, graph, plans, planner.static_nodes, planner.needed, memory_bytes, threads, reporter
        )
        writer.config |= {"num_static": len(planner.static_nodes), "splits": {}}
        for plan in plans:
            writer.config["splits"][plan.split] = {
                **samples.manifest.config["splits"][plan.split],
                "cpu_rows": len(plan.wrap),
                "initial_rows": len(plan.initial_nodes),
                "rows": plan.counts,
                "max_inputs": int(plan.index["num_inputs"].max()),
                "max_header_bytes": int(plan.index["header_bytes"].max()),
            }
        manifest = writer.publish()
    return StageReport(
        "pack",
        time.perf_counter() - started,
        read_bytes,
        manifest.total_bytes,
        {f"{plan.split}_{name}_rows": plan.counts[name] for plan in plans for name in ("requested", "disk")},
    )
