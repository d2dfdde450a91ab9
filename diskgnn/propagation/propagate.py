"""`propagate`: hop features of seeds, P^k X for each operator P, computed once from disk.

A stage of four steps: the edges that hops need are written once; features are transposed into stripes of columns; each
panel of columns runs through all hops between two slices in memory; what was kept of them is put together to records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy.typing as npt

from diskgnn.errors import ConfigError, DiskFullError
from diskgnn.files.destination import Destination
from diskgnn.files.disk_space import DiskBudget, free_bytes
from diskgnn.files.traffic import Traffic
from diskgnn.formats import artifacts
from diskgnn.formats.hops_config import (
    MOST_HOPS,
    OPERATORS,
    VALUE_BYTES,
    FeatureSource,
    HopsConfig,
    Segment,
    segments_of_hops,
)
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.verification import verify_file
from diskgnn.graph.graph import Graph
from diskgnn.graph.held_out import HELD_OUT_SPLITS
from diskgnn.graph.type_data import NodeSet
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.propagation.hop_edges import HopEdges
from diskgnn.propagation.hop_features import hop_rows, load_what_views
from diskgnn.propagation.hop_paths import Path, end_of, parse_paths, path_name, paths_within, told_sizes
from diskgnn.propagation.hop_records import RecordFiles, RecordWriting, first_state, write_seeds
from diskgnn.propagation.hop_tree import HopTree
from diskgnn.propagation.needed_rows import find_rows
from diskgnn.propagation.panels import Panels
from diskgnn.propagation.propagation_plan import PropagationPlan, fixed_need, make_plan, sources_of
from diskgnn.propagation.record_order import WITHOUT_SPLITS, RecordOrder
from diskgnn.propagation.stripes import stripes_of, transpose
from diskgnn.sampling.timed_types import require_times_to_ignore
from diskgnn.specs.schema import edge_type_name, require_node_type
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Resources
from diskgnn.units import seed_number, whole_number
from diskgnn.work.publishing import published
from diskgnn.work.runner import Work
from diskgnn.work.writer import ArtifactWriter

_TYPED_HOPS = 2  # by default
_TYPED_OPERATOR = "mean"


@published(artifacts.HOPS)
@freed_memory_returned()
def propagate(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    hops: int | None = None,
    operators: str | Sequence[str] = "mean",
    target: str | None = None,
    paths: str | Sequence[str] | None = None,
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
    from these alone. In a graph with several types of nodes or edges it has x, then a segment for each path of edge
    types that ends at a type with features: their means along the path. What is written does not depend on memory,
    threads or interruptions.

    Args:
        graph: graph directory, or an opened one. A node type has features.
        out: the hops directory to write. A killed run with the same arguments goes on where it stopped.
        hops: how far, 1 to 255. In a typed graph 2 by default: records have all paths of so many edge types or fewer,
            which may be at most 32 paths.
        operators: of 'mean' (the mean of in-neighbours), 'symmetric' (D^-1/2 A D^-1/2) and 'gcn' (the same of A + I):
            several as a list, or as 'mean,symmetric'. A has the stored in-edges, with their weights; equal edges count
            as often as they are there. D has the in-degrees: the weights of in-edges, added up. Nodes without
            in-edges get zeros, and give zeros where rows are scaled by their degree. In a typed graph 'mean' alone.
        target: of a typed graph, the type of the nodes; by default the only one with a train split.
        paths: of a typed graph, these in place of all: ['author:writes', 'author:writes/institution:employs'], or as
            one text with commas between them. Steps lead from the seeds against the edges, and name the source and the
            edge type; where that is not ambiguous, the edge type's name is enough.
        nodes: 'all', or [n] numbers of rows, or bool [N], or a file of ids: .npy, or a table with a column `id`. By
            default the seeds of all splits, with their labels.
        seed: of the order of train records, 0 to 2^64 - 1. Same seed, same bytes.
        ignore_times: take all edges of a graph with times, also those that are later than a seed. Of no other graph.
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
        ConfigError: arguments that cannot work; times, or features of edges; in a graph of one type, seed edges that
            are held out; in a typed one, no path that ends at features, or too many, with their sizes; or less memory
            than it takes, with the figure.
        InputError: no seeds, or features that are NaN or infinite; names a node and how many there are.
        ArtifactError, OutputExistsError, DiskFullError: see `diskgnn.work.writer`.

    Example:
        >>> diskgnn.propagate("graph", "hops", hops=3, operators="mean,symmetric", memory="2GiB")
        >>> diskgnn.propagate("typed", "typed-hops", target="paper", hops=2)
    """
    started, out, told = time.perf_counter(), Destination.of(out), reporter_for(reporter, progress)
    graph, budget = graph if isinstance(graph, Graph) else Graph.open(graph), out.budget(disk)
    with graph.manifest.copies_claimed_of(budget):
        asked = Propagation.of(graph, hops, operators, target, paths, nodes, seed, ignore_times=ignore_times)
    resources = replace(asked.resources(out, memory, threads, told), disk=budget)
    writer = ArtifactWriter(
        out, artifacts.HOPS, config=asked.config.to_json(), source=asked.graph.manifest, overwrite=overwrite,
        resumable=True, disk=resources.disk,
    )  # fmt: skip
    traffic = Traffic()
    plan = asked.plan(resources, traffic)
    with asked.graph.manifest.copies_claimed_of(resources.disk), writer:
        Work(writer, "hops").run(lambda work: asked.write(work, writer, plan, resources, traffic))
        write_seeds(writer, asked.graph.nodes[asked.tree.target], asked.order, traffic)
        manifest = writer.publish()
    details: dict[str, int | float | str] = {
        "records": asked.order.num_records,
        "hops": asked.config.hops,
        "segments": ", ".join(segment.name for segment in asked.config.segments),
        "rows": ", ".join(str(len(each)) for each in plan.rows.sets),
        "edges": ", ".join(map(str, asked.edges(plan))),
        "panels": plan.num_panels,
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

    hops: int  # in effect: no path of a typed graph is longer
    operators: tuple[str, ...]
    segments: tuple[str, ...]  # of a record
    records: int
    record_bytes: int
    epoch_bytes: int  # of train records: an epoch reads them, where they do not stay in memory
    # Rows that are needed: of features, then of each hop. Of a typed graph, of each path that is computed, those that
    # only longer ones go through included.
    rows: tuple[int, ...]
    edges: tuple[int, ...]  # that each hop reads, once for a panel
    summed_edges: int  # in all
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
    hops: int | None = None,
    operators: str | Sequence[str] = "mean",
    target: str | None = None,
    paths: str | Sequence[str] | None = None,
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
    asked = Propagation.of(graph, hops, operators, target, paths, nodes, seed, ignore_times=ignore_times)
    resources = asked.resources(out, memory, threads, reporter_for(reporter, progress))
    plan = asked.plan(resources, Traffic())
    config = asked.config
    return PropagationEstimate(
        config.hops, config.operators, tuple(segment.name for segment in config.segments), asked.order.num_records,
        config.row_bytes, config.row_bytes * config.num_rows.get("train", 0), tuple(map(len, plan.rows.sets)),
        tuple(asked.edges(plan)), plan.num_summed_edges, plan.num_panels, plan.read_bytes, plan.written_bytes,
        plan.output_bytes, plan.disk_bytes, free_bytes(out.path.parent, DiskBudget(disk, [])), plan.memory_bytes,
    )  # fmt: skip


@dataclass(frozen=True)
class Propagation:
    """Arguments of `propagate`, checked."""

    graph: Graph
    tree: HopTree
    paths: Sequence[Path]  # that records have
    order: RecordOrder
    config: HopsConfig

    @staticmethod
    def of(
        graph: PathLike | Graph, hops: int | None, operators: str | Sequence[str], target: str | None, paths: object,
        nodes: object, seed: int, *, ignore_times: bool,
    ) -> Propagation:  # fmt: skip
        """Checks them.

        Raises:
            ConfigError, InputError: see `propagate`.
        """
        graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        found, seed = _checked_operators(operators), seed_number(seed)
        node_set = _seed_nodes(graph, target)
        found_paths = _checked_paths(graph, node_set.name, hops, paths, found)
        segments = _segments(graph, node_set.name, found_paths, found)
        tree = HopTree.of(found_paths, node_set.name, is_typed=graph.is_typed)
        _require_plain(graph, tree, ignore_times=ignore_times)
        order = RecordOrder.of(node_set, nodes, seed)
        sources = [graph.nodes[tree.nodes[root].node_type].config for root in tree.roots]
        columns = graph.config.known_columns
        config = HopsConfig(
            tree.hops, found, seed, order.chosen, node_set.name, node_set.num_nodes, hop_rows(node_set.config),
            None if order.chosen else node_set.config.target, segments,
            VALUE_BYTES * sum(segment.width for segment in segments), order.num_rows,
            columns=columns.get(node_set.name),
            others=tuple(
                FeatureSource(each.name, each.num_nodes, _features(graph, each.name), columns=columns.get(each.name))
                for each in sources if each.name != node_set.name
            ),
        )  # fmt: skip
        return Propagation(graph, tree, found_paths, order, config)

    def edges(self, plan: PropagationPlan) -> list[int]:
        """Returns how many edges each hop reads."""
        of_nodes = zip(self.tree.nodes, plan.rows.num_edges, strict=True)
        return [count for node, count in of_nodes if node.parent is not None]

    def resources(self, out: Destination, memory: int | str, threads: int | None, reporter: Reporter) -> Resources:
        """Returns the resources given, unless they are less than it takes whatever the rows that hops need.

        Raises:
            ConfigError: they are no size, or less than that. Nothing has been read then.
        """
        load_what_views(sources_of(self.graph, self.tree))
        resources = Resources.of(memory, threads, reporter, sending_bytes=out.sending_bytes)
        resources.within(fixed_need(self.graph, self.tree, self.order, self.config))
        return resources

    def plan(self, resources: Resources, traffic: Traffic) -> PropagationPlan:
        """Finds the rows that hops need, and decides on panels.

        Raises:
            SmallBudgetError, ArtifactError: see `make_plan` and `find_rows`.
        """
        rows = find_rows(self.tree, self.graph, self.order.all_nodes(), resources.reporter, traffic)
        return make_plan(self.graph, self.tree, self.order, self.config, rows, resources)

    def write(
        self, work: Work, writer: ArtifactWriter, plan: PropagationPlan, resources: Resources, traffic: Traffic
    ) -> None:
        """Runs the steps.

        Raises:
            InputError, ArtifactError, DiskFullError: see `propagate`.
        """
        told = resources.reporter
        files = RecordFiles.of(writer, self.config)
        if not work.is_finished("records"):
            self._require_space(work, plan, files)
        edges = HopEdges(
            work.shuffle("edges", "edges", HopEdges.num_partitions(plan.rows, plan.operators), keeps_places=True),
            self.graph, plan.rows, plan.operators, traffic, plan.pruning_threads,
        )  # fmt: skip
        steps = [f"transpose-{source.name}" for source in plan.sources]
        stripes = [
            work.shuffle(step, f"stripes-{source.name}", len(stripes_of(0, source.num_features)), keeps_places=True)
            for step, source in zip(steps, plan.sources, strict=True)
        ]
        kept = work.shuffle("panels", "kept", len(plan.windows), keeps_places=True)
        if not work.is_finished("edges"):
            for edge_type in plan.rows.sweeps:
                if (edge_set := self.graph.edges[edge_type]).config.has_weights:
                    weights = edge_set.file(artifacts.WEIGHTS)
                    verify_file(self.graph.manifest, weights, lambda size: traffic.add(edges=size))
        work.fold("edges", partial(edges.write, told), {"edge_types": 0, "nodes": 0})
        for step, source, shuffle in zip(steps, plan.sources, stripes, strict=True):
            transposing = partial(transpose, source.features, plan.rows.sets[source.root], shuffle, told, traffic)
            work.fold(step, transposing, {"windows": 0, "unusual": 0, "first_unusual": 0})
        panels = Panels(plan, self.order, stripes, edges, kept, traffic)
        # Each step writes the same when it is made again: those that follow go on.
        work.fold(
            "panels", partial(panels.write, told), {"sources": 0, "columns": 0}, consumes=(edges.shuffle, *stripes)
        )
        records = RecordWriting(files, self.config, plan.windows, kept, self.order, traffic)
        work.fold("records", partial(records.write, told), first_state(self.config), files=files.all, consumes=(kept,))

    def _require_space(self, work: Work, plan: PropagationPlan, files: RecordFiles) -> None:
        """Refuses what does not fit the disk.

        Raises:
            DiskFullError: names the bytes missing, and of several paths what each takes.
        """
        try:
            work.require_space(plan.disk_bytes, "propagating", files.all)
        except DiskFullError as error:
            if not self.tree.is_typed:
                raise
            sizes = told_sizes(self.graph, self.tree.target, self.paths)
            raise DiskFullError(
                f"{error} Each of {self.order.num_records} records has {sizes}: leave some out, with `paths`."
            ) from error


def segments_of(
    graph: Graph, *, hops: int | None = None, operators: str | Sequence[str] = _TYPED_OPERATOR,
    target: str | None = None, paths: str | Sequence[str] | None = None,
) -> tuple[Segment, ...]:  # fmt: skip
    """Returns the segments that records would have.

    Raises:
        ConfigError: see `propagate`.
    """
    found, node_type = _checked_operators(operators), _seed_nodes(graph, target).name
    return _segments(graph, node_type, _checked_paths(graph, node_type, hops, paths, found), found)


def _segments(
    graph: Graph, target: str, paths: Sequence[Path], operators: tuple[str, ...]
) -> tuple[Segment, ...]:  # fmt: skip
    if graph.is_typed:
        return tuple(Segment(path_name(path), _features(graph, end_of(path, target)).num_features) for path in paths)
    return segments_of_hops(operators, len(paths) - 1, _features(graph, target).num_features)


def _features(graph: Graph, node_type: str) -> RowFormat:
    """Returns the format of the rows that hops of a type begin with.

    Raises:
        ConfigError: it has no features.
    """
    if (rows := hop_rows(graph.nodes[node_type].config)) is None:
        raise ConfigError(f"{graph.manifest.path} has no features: make it again with `diskgnn convert` and name them")
    return rows


def _seed_nodes(graph: Graph, target: str | None) -> NodeSet:
    """Returns the nodes that seeds are of: of type `target`, or of the only one with a train split, or with a split."""
    if target is not None:
        require_node_type("target", target, graph.nodes)
        return graph.nodes[target]
    if len(graph.nodes) == 1:
        return next(iter(graph.nodes.values()))
    trained = [nodes for nodes in graph.nodes.values() if len(nodes.splits.get("train", ()))]
    found = trained or [nodes for nodes in graph.nodes.values() if any(map(len, nodes.splits.values()))]
    if len(found) != 1:
        raise ConfigError(
            f"target: expected the node type of the seeds, one of {', '.join(graph.nodes)}: "
            + (
                f"{' and '.join(nodes.name for nodes in found)} have a train split"
                if found
                else f"none of them has a train split; {WITHOUT_SPLITS}"
            )
        )
    return found[0]


def _checked_operators(operators: object) -> tuple[str, ...]:
    names = operators.split(",") if isinstance(operators, str) else operators
    found = [str(name).strip() for name in names] if isinstance(names, Sequence) else []
    if not found or len({*found}) < len(found) or not {*found} <= {*OPERATORS}:
        raise ConfigError(f"operators: expected different ones of {', '.join(OPERATORS)}, found {operators!r}")
    return tuple(found)


def _checked_paths(
    graph: Graph, target: str, hops: int | None, paths: object, operators: Sequence[str]
) -> Sequence[Path]:  # fmt: skip
    """Returns the paths that records have, of which the only ones are over the only edge type in a graph of one."""
    if paths is None:
        hops = _TYPED_HOPS if hops is None and graph.is_typed else whole_number("hops", cast(int, hops))
        if hops > MOST_HOPS:
            raise ConfigError(f"hops: expected at most {MOST_HOPS}, found {hops}")
    if not graph.is_typed:
        if paths is not None:
            raise ConfigError(f"paths: {graph.manifest.path} has one type of edges; give hops in place of paths")
        assert hops is not None
        (edge_type,) = graph.edges
        return [(edge_type,) * length for length in range(hops + 1)]
    if list(operators) != [_TYPED_OPERATOR]:
        raise ConfigError(
            f"operators: expected {_TYPED_OPERATOR} in a graph with several types of nodes or edges, found "
            f"{', '.join(operators)}"
        )
    if paths is None:
        assert hops is not None
        return paths_within(graph, target, hops)
    if hops is not None:
        raise ConfigError(f"hops: expected none beside paths, which say how far they lead; found {hops!r}")
    return parse_paths(graph, target, paths)


def _require_plain(graph: Graph, tree: HopTree, *, ignore_times: bool) -> None:
    """Refuses graphs of which whole neighbourhoods would be averaged as they are not meant."""
    path = graph.manifest.path
    if ignore_times:
        require_times_to_ignore(graph)
    used_nodes = {node.node_type: graph.nodes[node.node_type].config for node in tree.nodes}
    edge_types = {node.edge_type: graph.edges[node.edge_type].config for node in tree.nodes if node.parent is not None}

    def of(names: Iterable[str]) -> str:
        return f" of type {', '.join(names)}" if tree.is_typed else ""

    timed_edges = [edge_type_name(each) for each, config in edge_types.items() if config.has_times]
    timed_nodes = [each for each, config in used_nodes.items() if config.has_times]
    if not ignore_times and (timed_edges or timed_nodes):
        what = f"edges{of(timed_edges)}" if timed_edges else f"nodes{of(timed_nodes)}"
        raise ConfigError(
            f"ignore_times: {what} of {path} have times, and propagate takes all edges, also those that are later than "
            "a seed: `diskgnn prepare --temporal uniform` draws none of these; pass ignore_times=True to take all edges"
        )
    if featured := [edge_type_name(each) for each, config in edge_types.items() if config.rows is not None]:
        raise ConfigError(
            f"edges{of(featured)} of {path} have features, which propagate would leave out: `diskgnn prepare` draws "
            f"edges with theirs; or `diskgnn convert` again without them{', or name other paths' * tree.is_typed}"
        )
    held_out = [split for config in edge_types.values() for split in config.link_splits if split in HELD_OUT_SPLITS]
    if held_out and not tree.is_typed:  # in a typed graph they are what another task asks about
        raise ConfigError(
            f"{path} has seed edges of {' and '.join(held_out)}, and propagate does not leave those out that are edges "
            "of the graph: `diskgnn prepare` does; or `diskgnn convert` again without these seed edges"
        )
