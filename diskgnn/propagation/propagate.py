"""`propagate`: hop features of seeds, P^k X for each operator P, computed once from disk.

A stage of four steps: the edges that hops need are written once; features are transposed into stripes of columns; each
panel of columns runs through all hops between two slices in memory; what was kept of them is put together to records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.files.destination import Destination
from diskgnn.files.disk_space import DiskBudget, free_bytes
from diskgnn.files.traffic import Traffic
from diskgnn.formats import artifacts
from diskgnn.formats.hops_config import MOST_HOPS, OPERATORS, VALUE_BYTES, HopsConfig, segments_of
from diskgnn.formats.verification import verify_file
from diskgnn.graph.graph import Graph
from diskgnn.graph.held_out import HELD_OUT_SPLITS
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.propagation.hop_edges import HopEdges
from diskgnn.propagation.hop_records import RecordFiles, first_state, write_records, write_seeds
from diskgnn.propagation.needed_rows import find_rows
from diskgnn.propagation.panels import Panels
from diskgnn.propagation.propagation_plan import PropagationPlan, fixed_need, make_plan
from diskgnn.propagation.record_order import RecordOrder
from diskgnn.propagation.stripes import stored_columns, transpose
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Resources
from diskgnn.units import seed_number, whole_number
from diskgnn.work.publishing import published
from diskgnn.work.runner import Work
from diskgnn.work.writer import ArtifactWriter


@published(artifacts.HOPS)
@freed_memory_returned()
def propagate(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    hops: int,
    operators: str | Sequence[str] = "mean",
    nodes: npt.ArrayLike | PathLike | None = None,
    seed: int = 0,
    ignore_times: bool = False,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Average the features of whole neighbourhoods, hop by hop, and write what seeds get: the hops directory `out`.

    The record of a seed has its features x, then Px, P²x, ... for each operator P. Models such as SGC and SIGN learn
    from these alone. What is written does not depend on memory, threads or interruptions.

    Args:
        graph: graph directory, or an opened one, with one type of nodes, which have features, and one of edges.
        out: the hops directory to write. A killed run with the same arguments goes on where it stopped.
        hops: how far, 1 to 255.
        operators: of 'mean' (the mean of in-neighbours), 'symmetric' (D^-1/2 A D^-1/2) and 'gcn' (the same of A + I):
            several as a list, or as 'mean,symmetric'. A has the stored in-edges, with their weights; equal edges count
            as often as they are there. D has the in-degrees: the weights of in-edges, added up. Nodes without
            in-edges get zeros, and give zeros where rows are scaled by their degree.
        nodes: 'all', or [n] numbers of rows, or bool [N], or a file of ids: .npy, or a table with a column `id`. By
            default the seeds of all splits, with their labels.
        seed: of the order of train records, 0 to 2^64 - 1. Same seed, same bytes.
        ignore_times: take all edges of a graph with times, also those that are later than a seed.
        memory: what the whole process may use, in bytes or as '2GiB'; 'auto' is half of what is available. It takes at
            least 4 bytes for each row that the first hop needs and 4 for each that it makes, 8 of a node at most,
            beside buffers; with more of it, edges are read less often.
        disk: what files may take at any time, as '100GiB', scratch included; what is free by default.
        threads: to compute with; all cores by default.
        overwrite: replace an existing `out`.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about every step, in place of the bars; see `diskgnn.progress`.

    Returns:
        Its `details` have the rows and edges of each hop, and the bytes and memory that were predicted.

    Raises:
        ConfigError: arguments that cannot work; a graph with types, times, features of edges, or seed edges that are
            held out; or less memory than it takes, with the figure.
        InputError: no seeds, or features that are NaN or infinite; names a node and how many there are.
        ArtifactError, OutputExistsError, DiskFullError: see `diskgnn.work.writer`.

    Example:
        >>> diskgnn.propagate("graph", "hops", hops=3, operators="mean,symmetric", memory="2GiB")
    """
    started, out, told = time.perf_counter(), Destination.of(out), reporter_for(reporter, progress)
    asked = Propagation.of(graph, hops, operators, nodes, seed, ignore_times=ignore_times)
    resources = replace(asked.resources(out, memory, threads, told), disk=out.budget(disk))
    writer = ArtifactWriter(
        out, artifacts.HOPS, config=asked.config.to_json(), source=asked.graph.manifest, overwrite=overwrite,
        resumable=True, disk=resources.disk,
    )  # fmt: skip
    traffic = Traffic()
    plan = asked.plan(resources, traffic)
    with writer:
        Work(writer, "hops").run(lambda work: asked.write(work, writer, plan, resources, traffic))
        write_seeds(writer, asked.nodes, asked.order, traffic)
        manifest = writer.publish()
    details: dict[str, int | float | str] = {
        "records": asked.order.num_records,
        "rows": ", ".join(str(len(each)) for each in plan.rows.sets),
        "edges": ", ".join(map(str, plan.rows.num_edges[1:])),
        "panels": len(plan.panels),
        "predicted_read_bytes": plan.read_bytes,
        "predicted_written_bytes": plan.written_bytes,
        "memory_bytes": plan.memory_bytes,
        "disk_bytes": plan.disk_bytes,
        "record_bytes": asked.config.row_bytes,
        "output_bytes": manifest.total_bytes,
    }
    seconds = time.perf_counter() - started
    return StageReport("propagate", seconds, traffic.read_bytes, traffic.written_bytes, details)


@dataclass(frozen=True)
class PropagationEstimate:
    """Figures of a `propagate` with the same arguments: counted, but for pages and headers of files."""

    hops: int
    operators: tuple[str, ...]
    records: int
    record_bytes: int
    epoch_bytes: int  # of train records: an epoch reads them, where they do not stay in memory
    rows: tuple[int, ...]  # of features, then of each hop, that are needed
    edges: tuple[int, ...]  # that each hop reads, once for a panel
    panels: int
    read_bytes: int
    written_bytes: int
    output_bytes: int
    disk_bytes: int  # at most at any time, scratch and output
    free_disk_bytes: int  # or the disk space given
    memory_bytes: int  # that it would use


def estimate_propagation(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    hops: int,
    operators: str | Sequence[str] = "mean",
    nodes: npt.ArrayLike | PathLike | None = None,
    seed: int = 0,
    ignore_times: bool = False,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> PropagationEstimate:
    """Counts what `propagate` with the same arguments would take. Edges are read once for each hop; nothing is written.

    Raises:
        ConfigError, InputError, ArtifactError: as `propagate`.
    """
    out = Destination.of(out)
    asked = Propagation.of(graph, hops, operators, nodes, seed, ignore_times=ignore_times)
    resources = asked.resources(out, memory, threads, reporter_for(reporter, progress))
    plan = asked.plan(resources, Traffic())
    return PropagationEstimate(
        asked.config.hops, asked.config.operators, asked.order.num_records, asked.config.row_bytes,
        asked.config.row_bytes * asked.config.num_rows.get("train", 0), tuple(map(len, plan.rows.sets)),
        tuple(plan.rows.num_edges[1:]), len(plan.panels), plan.read_bytes, plan.written_bytes, plan.output_bytes,
        plan.disk_bytes, free_bytes(out.path.parent, DiskBudget(disk, [])), plan.memory_bytes,
    )  # fmt: skip


@dataclass(frozen=True)
class Propagation:
    """Arguments of `propagate`, checked."""

    graph: Graph
    nodes: NodeSet
    edges: EdgeSet
    order: RecordOrder
    config: HopsConfig

    @staticmethod
    def of(
        graph: PathLike | Graph, hops: int, operators: str | Sequence[str], nodes: object, seed: int, *,
        ignore_times: bool,
    ) -> Propagation:  # fmt: skip
        """Checks them.

        Raises:
            ConfigError, InputError: see `propagate`.
        """
        graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        found, hops, seed = _checked_operators(operators), whole_number("hops", hops), seed_number(seed)
        if hops > MOST_HOPS:
            raise ConfigError(f"hops: expected at most {MOST_HOPS}, found {hops}")
        node_set, edges, features = graph.only_nodes("propagate"), graph.only_edges("propagate"), graph.feature_file
        _require_plain(node_set, edges, ignore_times=ignore_times)
        order = RecordOrder.of(node_set, nodes, seed)
        segments = segments_of(found, hops, features.rows.num_features)
        config = HopsConfig(
            hops, found, seed, order.chosen, node_set.name, node_set.num_nodes, features.rows,
            None if order.chosen else node_set.config.target, segments,
            VALUE_BYTES * sum(segment.width for segment in segments), order.num_rows, columns=node_set.config.columns,
        )  # fmt: skip
        return Propagation(graph, node_set, edges, order, config)

    def resources(self, out: Destination, memory: int | str, threads: int | None, reporter: Reporter) -> Resources:
        """Returns the resources given, unless they are less than it takes whatever the rows that hops need.

        Raises:
            ConfigError: they are no size, or less than that. Nothing has been read then.
        """
        resources = Resources.of(memory, threads, reporter, sending_bytes=out.sending_bytes)
        resources.within(fixed_need(self.nodes, self.edges, self.order, self.config))
        return resources

    def plan(self, resources: Resources, traffic: Traffic) -> PropagationPlan:
        """Finds the rows that hops need, and decides on panels.

        Raises:
            SmallBudgetError, ArtifactError: see `make_plan` and `find_rows`.
        """
        rows = find_rows(self.edges, self.order.all_nodes(), self.config.hops, resources.reporter, traffic)
        return make_plan(self.nodes, self.edges, self.order, self.config, rows, resources)

    def write(
        self, work: Work, writer: ArtifactWriter, plan: PropagationPlan, resources: Resources, traffic: Traffic
    ) -> None:
        """Runs the steps.

        Raises:
            InputError, ArtifactError, DiskFullError: see `propagate`.
        """
        told, features = resources.reporter, self.nodes.feature_file
        assert features is not None
        files = RecordFiles.of(writer, self.config)
        work.require_space(plan.disk_bytes, "propagating", files.all)
        edges = HopEdges(
            work.shuffle("edges", "edges", HopEdges.num_partitions(plan.rows.hops, plan.operators)), self.edges,
            plan.rows, plan.operators, traffic,
        )  # fmt: skip
        stripes = work.shuffle("transpose", "stripes", len(stored_columns(features.rows)))
        kept = work.shuffle("panels", "kept", len(plan.windows))
        if self.edges.config.has_weights and not work.is_finished("edges"):
            verify_file(self.nodes.manifest, self.edges.file(artifacts.WEIGHTS), lambda size: traffic.add(edges=size))
        work.fold("edges", partial(edges.write, told), {"nodes": 0})
        transposing = partial(transpose, self.nodes, plan.rows.sets[0], stripes, told, traffic)
        work.fold("transpose", transposing, {"windows": 0, "unusual": 0, "first_unusual": 0})
        panels = Panels(plan, self.order, features, stripes, edges, kept, traffic)
        work.fold(
            "panels", partial(panels.write, told), {"columns": 0}, after=["edges", "transpose"],
            consumes=(edges.shuffle, stripes),
        )  # fmt: skip
        writing = partial(write_records, files, self.config, plan.windows, kept, self.order, told, traffic)
        work.fold(
            "records", writing, first_state(self.config), files=files.all, after=["panels"], consumes=(kept,)
        )  # fmt: skip


def _checked_operators(operators: object) -> tuple[str, ...]:
    names = operators.split(",") if isinstance(operators, str) else operators
    found = [str(name).strip() for name in names] if isinstance(names, Sequence) else []
    if not found or len({*found}) < len(found) or not {*found} <= {*OPERATORS}:
        raise ConfigError(f"operators: expected different ones of {', '.join(OPERATORS)}, found {operators!r}")
    return tuple(found)


def _require_plain(nodes: NodeSet, edges: EdgeSet, *, ignore_times: bool) -> None:
    """Refuses graphs of which whole neighbourhoods would be averaged as they are not meant."""
    path, config = edges.manifest.path, edges.config
    if not ignore_times and (config.has_times or nodes.config.has_times):
        raise ConfigError(
            f"ignore_times: {'edges' if config.has_times else 'nodes'} of {path} have times, and propagate takes all "
            "edges, also those that are later than a seed: `diskgnn prepare --temporal uniform` draws none of these; "
            "pass ignore_times=True to take all edges"
        )
    if config.rows is not None:
        raise ConfigError(
            f"edges of {path} have features, which propagate would leave out: `diskgnn prepare` draws edges with "
            "theirs; or `diskgnn convert` again without them"
        )
    if held_out := [split for split in config.link_splits if split in HELD_OUT_SPLITS]:
        raise ConfigError(
            f"{path} has seed edges of {' and '.join(held_out)}, and propagate does not leave those out that are edges "
            "of the graph: `diskgnn prepare` does; or `diskgnn convert` again without these seed edges"
        )
