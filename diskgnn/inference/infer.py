"""Rows of all nodes from a trained model: layer by layer over the whole graph, with all neighbours, from disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from diskgnn.engines.engine import open_engine
from diskgnn.errors import ConfigError
from diskgnn.files.disk_space import DiskBudget, file_bytes
from diskgnn.formats.verification import verify_file
from diskgnn.graph.graph import Graph
from diskgnn.importers.ids.named_nodes import chosen_nodes, read_nodes
from diskgnn.importers.tables.table import TableColumns
from diskgnn.inference.asked_times import as_trained, is_temporal, trained_sampling
from diskgnn.inference.asking import asked_of, classes_of, kinds_of
from diskgnn.inference.hop_rows import HopRows, infer_by_hops
from diskgnn.inference.message_edges import warn_of_held_out
from diskgnn.inference.minimum import minimum_bytes
from diskgnn.inference.network import Network, take_apart
from diskgnn.inference.node_files import columns_of
from diskgnn.inference.output_folder import OutputFolder, check_output
from diskgnn.inference.pass_schedule import InferencePlan, make_plan
from diskgnn.inference.passes import Execution, send_model
from diskgnn.inference.prediction_files import OutputFormat, check_suffix, output_bytes
from diskgnn.inference.row_writing import evaluating, write_rows
from diskgnn.inference.stored_windows import Rows
from diskgnn.nn.hop_models import HopModel
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.sampling.timed_types import require_times_to_ignore
from diskgnn.specs.schema import edge_type_name
from diskgnn.stores.locations import local
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.work.required_space import require_space
from diskgnn.work.work_folder import CONSUMED_BYTES

# What threads and allocators take beside what the plan counts.
_RESERVED_BYTES = 64 << 20
_ORDER_BYTES = 16  # of a node of those that are chosen: its place, and itself in ascending order


@freed_memory_returned()
def infer(
    graph: PathLike | Graph,
    out: PathLike,
    model: nn.Module | PathLike,
    *,
    what: str | None = None,
    node_type: str | None = None,
    nodes: npt.ArrayLike | PathLike | None = None,
    columns: TableColumns | None = None,
    ignore_times: bool = False,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    engine: str = "local",
    address: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Compute what a model says of all nodes, from all neighbours, and write it to a file.

    Layer by layer over files: features are read once, and nothing is read at random. What is written does not depend on
    memory, threads or interruptions. A killed run with the same arguments goes on; it has lost some seconds at most.

    Args:
        graph: graph directory, or an opened one; another one than the model was trained on will do if it has the types
            that the model takes, and features that mean the same (`convert(encoding_of=...)`).
        out: the file to write: .npy [N, ...], or .parquet or .csv with the nodes' ids beside the values. CSV has a
            column for each number: logits_0, logits_1, ...
        model: what `diskgnn.train` left in a checkpoint directory, which says what features meant; or a model that
            `make_model` or `make_typed_model` made; or a `diskgnn.models.BlockModel` of layers of your own,
            see docs/guide/infer.md.
        what: 'logits' (what the model returns, the default), 'probabilities', 'classes', or 'embeddings': the rows that
            enter the last layer, or the head of a model that has one. Of link prediction, where they are the default:
            the vectors that the decoder compares.
        node_type: whose rows; by default those of the type that the model was trained for.
        nodes: [n] numbers of rows, or bool [N], of those to write; or a file of ids, .npy or a table with a column
            `id`, which are your own where the graph keeps some. A .npy file has them in this order, a
            table in ascending order.
        columns: what the column `id` of a table of `nodes` is called, and how to read it. No other column counts.
        ignore_times: take all edges, also where the model was trained with temporal='uniform' or 'last', or does not
            say how it was trained, and the graph has times; `predict` with `at` draws as in training. Of no other
            graph.
        memory: what the whole process may use, in bytes or as '2GiB'; 'auto' is half of what is available.
        disk: what files may take at any time, as '100GiB', the output included; what is free by default.
        threads: to compute with; all cores by default.
        engine: 'local', this process; or 'ray', workers of a cluster that see graph and output at the same paths
            (docs/guide/cluster.md). The bytes are the same. `memory` and `threads` are then those of each worker, by
            default half of the smallest node and all of its cores.
        address: of a running Ray; None for the one that Ray finds by itself, or a new one on this machine.
        overwrite: replace an existing `out`.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told of every window of rows, in place of the bars; see `diskgnn.progress`.

    Returns:
        Its `details` have `minimum_bytes`: features once, rows between layers once out and once in, as narrow as they
        become, the output once; and what was moved of rows (`moved_bytes`) and of edges (`edge_bytes`).

    Warns:
        DataWarning: vectors of a model for links are made with seed edges of valid and test, which training left out.

    Raises:
        ConfigError: arguments or a model that cannot work, features that mean something else than in training, or less
            memory than it takes, with the figure.
        InputError: a file of nodes that cannot be read, or with ids that no node has.
        DiskFullError: less disk than it takes, with the figure.
        ArtifactError: the graph or the checkpoint is missing or damaged.
        OutputExistsError: `out` exists.
        UnavailableError: engine 'ray' without Ray.
        WorkerLostError: Ray lost workers again and again.

    Example:
        >>> diskgnn.infer("graph", "scores.parquet", "runs/sage", what="classes", memory="8GiB")
    """
    started = time.perf_counter()
    out = local(out, "infer")
    check_suffix(out)
    columns = columns_of(columns, timed=False, nodes=nodes)
    check_output(out, overwrite=overwrite, nodes=nodes)
    graph = as_trained(graph if isinstance(graph, Graph) else Graph.open(graph), model)
    if ignore_times:
        require_times_to_ignore(graph)
    asked = asked_of(
        graph.manifest.path, kinds_of(graph), model, what, node_type, classes_of(graph), graph.config.known_columns
    )  # fmt: skip
    node_set = graph.nodes[asked.node_type]
    if isinstance(nodes, str | os.PathLike):
        with graph.manifest.copies_claimed_of(DiskBudget(disk, ())):
            nodes = read_nodes(nodes, node_set, columns)
    chosen = chosen_nodes(nodes, node_set)
    if isinstance(asked.net, HopModel):
        if engine != "local":
            raise ConfigError(f"engine: a model of hop features is applied by this process, found {engine!r}")
        with evaluating(asked.net):
            rows = HopRows(
                graph, asked.node_type, asked.net, chosen, asked.before_last, ignore_times, memory, disk, threads,
                reporter_for(reporter, progress),
            )  # fmt: skip
            return infer_by_hops(rows, asked, out, overwrite=overwrite)
    with evaluating(asked.net):
        network = take_apart(asked.net, graph, node_type=asked.node_type, embeddings=asked.before_last)
    sampling = trained_sampling(model)
    if not ignore_times:
        _require_no_times(graph, network, sampling)
    content = OutputFormat(asked.what, asked.kind, network.out_columns, asked.classes)
    with open_engine(engine, address) as opened, evaluating(asked.net), ExitStack() as copying:
        reporter = reporter_for(reporter, progress)
        resources = opened.resources(memory, threads, reporter)
        held_bytes = 0 if opened.is_here else send_model(opened, network).held_bytes
        order_bytes = 0 if chosen is None else _ORDER_BYTES * len(chosen)
        reserved_bytes = _RESERVED_BYTES + order_bytes + held_bytes
        plan = make_plan(graph, network, resources, reserved_bytes, together=not opened.is_here)
        num_rows = node_set.num_nodes if chosen is None else len(chosen)
        folder = OutputFolder(out, _making(plan, chosen), overwrite=overwrite, resumable=True, disk=disk)
        copying.enter_context(graph.manifest.copies_claimed_of(folder.disk))
        written_bytes = output_bytes(content, num_rows, out.suffix, node_set)
        needed_bytes = plan.scratch_bytes + file_bytes(written_bytes)
        if disk is None:  # with a bound, what waits to be removed goes before anything is refused
            needed_bytes += min(CONSUMED_BYTES, plan.scratch_bytes)
        counted = {".parquet": ", its Parquet file counted as if it were not compressed,",
                   ".csv": ", its CSV file counted as long as it may become,"}  # fmt: skip
        what = f"inference{counted.get(out.suffix, '')}"
        require_space(folder, needed_bytes, what, exact=out.suffix == ".npy")
        warn_of_held_out(graph, sampling, network.edge_types, resources)
        _check_topology(plan, reporter)
        with folder:
            execution = Execution(plan, folder, _windows(plan, chosen), opened, resources)
            execution.run(partial(_write, execution, folder, content, chosen))
    num_asked = num_rows if chosen is None else len(np.unique(chosen))
    least_bytes = minimum_bytes(plan, num_asked) + out.stat().st_size
    return _report(plan, execution, least_bytes, time.perf_counter() - started)


def _require_no_times(graph: Graph, network: Network, sampling: Mapping[str, Any] | None) -> None:
    """Refuse a model that has never seen the future where all edges count, whenever they were."""
    if sampling is not None and not is_temporal(sampling):
        return
    timed = [edge_type for edge_type in network.edge_types
             if graph.edges[edge_type].config.has_times or graph.nodes[edge_type[0]].config.has_times]  # fmt: skip
    if timed:
        trained = "does not say how it was trained" if sampling is None else (
            f"was trained with temporal={sampling['temporal']!r}")  # fmt: skip
        raise ConfigError(
            f"infer takes all edges, later ones, too, while the model {trained}, and edges of "
            f"{edge_type_name(timed[0])} have times: `diskgnn predict --at TIME`, or with times of the seeds, draws as "
            "in training; or pass ignore_times=True to take all edges"
        )


def _windows(plan: InferencePlan, chosen: npt.NDArray[np.int64] | None) -> list[int] | None:
    return None if chosen is None else np.unique(chosen // plan.window_rows).tolist()


def _making(plan: InferencePlan, chosen: npt.NDArray[np.int64] | None) -> list[Any]:
    """Returns what the rows between layers depend on, and how they lie in files."""
    return [
        "diskgnn.inference", 1, plan.graph.manifest.digest, plan.network.digest, plan.window_rows,
        [repr(each) for each in plan.passes], _windows(plan, chosen), *plan.graph.left_out,
    ]  # fmt: skip


def _check_topology(plan: InferencePlan, reporter: Reporter) -> None:
    files = [file for each in plan.network.edge_types for file in plan.graph.edges[each].topology_files]
    manifest = plan.graph.manifest
    with reporter.stage("check the topology", sum(manifest.files[name].bytes for name in files), "B") as advance:
        for name in files:
            verify_file(manifest, name, advance)


def _write(
    execution: Execution,
    folder: OutputFolder,
    content: OutputFormat,
    chosen: npt.NDArray[np.int64] | None,
    windows: Iterator[tuple[int, int, Rows]],
) -> None:
    plan = execution.plan
    node_set = plan.graph.nodes[plan.network.node_type]
    rows = ((np.arange(first, last), rows) for first, last, rows in windows)
    execution.traffic.add(written=write_rows(folder, node_set, content, chosen, rows))


def _report(plan: InferencePlan, execution: Execution, least_bytes: int, seconds: float) -> StageReport:
    layers = len(plan.network.layers)
    records, traffic = execution.records, execution.traffic
    by_layer = [sum(each.seconds for each in records if min(each.layer, layers - 1) == k) for k in range(layers)]
    return StageReport("infer", seconds, traffic.read_bytes, traffic.written_bytes, {
        "seconds_per_layer": ", ".join(f"{found:.1f}" for found in by_layer),
        "panels": ", ".join(str(len(panels)) for panels in plan.panels),
        "minimum_bytes": least_bytes,
        "moved_bytes": traffic.read_bytes + traffic.written_bytes - traffic.edge_bytes,
        "edge_bytes": traffic.edge_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "memory_bytes": plan.memory_bytes,
    })  # fmt: skip
