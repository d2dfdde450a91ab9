"""What a model says of some nodes or pairs, from sampled neighbourhoods as in training, or from all neighbours."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from diskgnn.errors import ConfigError
from diskgnn.formats.artifacts import HOPS, PACKED
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.rank_directories import ranks_in
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import kept_tables
from diskgnn.importers.ids.named_nodes import chosen_nodes, read_nodes
from diskgnn.importers.tables.table import TableColumns
from diskgnn.importers.tables.times import Moment
from diskgnn.inference.asked_times import (
    AskedTimes,
    SeedTimes,
    as_trained,
    is_temporal,
    prepared_times,
    trained_sampling,
)
from diskgnn.inference.asking import Asked, asked_of, classes_of, kinds_of, pair_model
from diskgnn.inference.hop_rows import HopRows, open_hops, require_segments
from diskgnn.inference.message_edges import AS_GIVEN, MessageEdges, trained_reverse_type, warn_of_held_out
from diskgnn.inference.neighbourhoods import SPLIT, Neighbourhoods
from diskgnn.inference.node_files import chosen_pairs, columns_of, read_times
from diskgnn.inference.output_folder import OutputFolder, check_output
from diskgnn.inference.prediction_files import check_suffix, check_what
from diskgnn.inference.predictions import rows_of_nodes, rows_of_pairs, write_nodes, write_pairs
from diskgnn.loading.hops_loader import HopsLoader
from diskgnn.loading.loader import Loader
from diskgnn.nn.block_models import BlockModel
from diskgnn.nn.hop_models import HopModel
from diskgnn.nn.relational_models import require_tables, require_time_unit
from diskgnn.nn.typed_models import TypedModel
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport, say
from diskgnn.sampling.timed_types import require_times_to_ignore
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.schema import NO_LABELS, ClassValue, EdgeType, edge_type_name
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.specs.targets import NodeTarget
from diskgnn.stores.locations import local
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.device import checked_device
from diskgnn.system.resources import Resources
from diskgnn.training.checkpoints import other_windows
from diskgnn.training.source_opening import open_loader
from diskgnn.units import seed_number
from diskgnn.work.runner import Work


@freed_memory_returned()
def predict(
    source: PathLike | Graph,
    out: PathLike,
    model: nn.Module | PathLike,
    *,
    nodes: npt.ArrayLike | PathLike | None = None,
    pairs: npt.ArrayLike | PathLike | None = None,
    columns: TableColumns | None = None,
    edge_type: EdgeType | str | None = None,
    what: str | None = None,
    message_edges: str = "train",
    hold_out_pairs: bool = False,
    node_type: str | None = None,
    split: str = SPLIT,
    fanouts: Fanouts | None = None,
    times: npt.ArrayLike | None = None,
    at: Moment | None = None,
    ignore_times: bool = False,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    seed: int = 0,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Write what a model says of some nodes, labelled or not, or how likely it finds pairs of nodes.

    Neighbourhoods are prepared and read as for training, beside `out`; what is said is in memory until it is written.
    For all nodes of a graph, `infer` moves far fewer bytes.

    Args:
        source: graph directory, or an opened one, whose nodes are given; or a packed directory, of which the seeds of
            `split` are taken as they were sampled; or a hops directory, for a model of hop features.
        out: the file to write: .npy [n, ...], or .parquet or .csv with the nodes or pairs beside the values, and with
            their times if each was given one; of a packed directory these are whole numbers like the graph's. Rows of
            a task have the id of their entity beside their number, and their own time unless `at` says another. CSV
            has a column for each number: logits_0, logits_1, ...
        model: what `diskgnn.train` left in a checkpoint directory; or any module that takes (blocks, x), as
            `diskgnn.train` takes it.
        nodes: [n] numbers of rows, or bool [N], or text or dates, which are ids of your own; or a file of ids, .npy or
            a table with a column `id`, which are your own where `source` is a graph that keeps some. `out` has them in
            this order. By default all, in ascending order.
        pairs: [n, 2] (source, destination) in place of nodes, for a model of links, or of pairs that have labels: what
            it says in this order. Or a file of ids as for `nodes`, of a table the columns `src` and `dst`; tables that
            are written have them so, too.
        columns: what columns of a table of `nodes` or `pairs` are called: `id`, or `src` and `dst`; and `time`, where
            times count: of a graph, for a model that was trained by times.
        edge_type: of the pairs; by default the one that the model was trained for.
        message_edges: of `pairs`: 'train' draws neighbourhoods as evaluation does, without the seed edges of valid and
            test of the graph and their reverses, so that these get the scores that `evaluate` counts; 'all' draws them
            from all edges, for pairs of the future.
        hold_out_pairs: draw none of the pairs themselves, nor their reverses: to score given seeds of a test split that
            are edges of the graph. Not for recommendations, where a user's known edges are among what is asked.
        what: 'logits' (by default), 'probabilities' (softmax of classes, sigmoid of several labels) or 'classes'. A
            model of links has 'embeddings' of nodes, the vectors that its decoder compares. Of pairs it has 'logits',
            the decoder's scores [n] float32, and 'probabilities', their sigmoid: likelihoods if it was trained with the
            loss 'bce'; after 'softmax' only their order means something.
        node_type: of `nodes`; by default the type that the model was trained for.
        split: of a packed or a hops directory; 'nodes' of one that was propagated to nodes.
        fanouts: neighbours drawn per layer, from the seeds outwards; by default all of them, in as many layers as the
            model has, or if it was trained by times as many as its evaluation drew.
        times: [n] of `nodes` or `pairs`, a whole number, a date or a timestamp for each: what is later is not drawn. A
            node may then be asked several times; rows are in the order given, and tables have a column `time` as it was
            given. The column `time` of a table is taken if the model was trained by times.
        at: one time for all of them: a whole number as the graph's times are, a date or a timestamp, also as text.
        ignore_times: draw what is later, too. A model that was trained with temporal='uniform' or 'last' needs times,
            `at` or this, unless it was trained at the nodes' own times: they are then asked at these, too. So does a
            module, which does not say how it was trained, on a graph with times. Of no other graph, and of a packed
            directory only where the model was trained by times, and its minibatches were drawn without.
        batch_size: nodes or pairs at a time.
        device: where the model computes.
        seed: of the draws.
        memory: what the whole process may use where `source` is a graph, in bytes or as '2GiB'. The largest minibatch
            and its activations are taken to fit, as are all outputs.
        disk: what files may take at any time, as '100GiB', what is prepared and the output included; what is free by
            default.
        threads: of preparing.
        overwrite: replace an existing `out`.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told of every stage, in place of the bars; see `diskgnn.progress`.

    Warns:
        DataWarning: vectors of `nodes` by a model for links are made with seed edges of valid and test, which training
            left out; or `pairs` are edges that neighbourhoods have.

    Raises:
        ConfigError: arguments or a model that cannot work, features that mean something else than in training, or less
            memory than it takes, with the figure.
        InputError, ArtifactError, OutputExistsError, DiskFullError: see `infer`.

    Example:
        >>> diskgnn.predict("graph", "new.parquet", "runs/sage", nodes=[7, 12], what="classes")
    """
    started, out, device = time.perf_counter(), local(out, "predict"), checked_device(device)
    seed = seed_number(seed)
    check_suffix(out)
    prepared, asked_times = _prepared_kind(source), AskedTimes(times, at, ignore_times)
    request = _Request(model, what, nodes, pairs, node_type, edge_type, columns or TableColumns(), asked_times)
    _refuse_pairs(request, MessageEdges(message_edges, hold_out_pairs))
    if prepared is None and split != SPLIT:
        raise ConfigError(f"split: only of a packed or a hops directory, found {split!r} of a graph; leave it out")
    if prepared is not None:
        _refuse_of_prepared(request, prepared, fanouts)
    if (times is not None) and nodes is None and pairs is None:
        raise ConfigError("times: expected the `nodes` or `pairs` that they are of, found none")
    request = replace(request, columns=columns_of(columns, timed=prepared is None, nodes=nodes, pairs=pairs))
    check_output(out, overwrite=overwrite, nodes=nodes, pairs=pairs)
    reporter = reporter_for(reporter, progress)
    folder = OutputFolder(out, "diskgnn.predict", overwrite=overwrite, resumable=False, disk=disk)
    with folder, ExitStack() as opened:
        if isinstance(source, Graph) or prepared is None:
            graph = as_trained(source if isinstance(source, Graph) else Graph.open(source), model)
            opened.enter_context(graph.manifest.copies_claimed_of(folder.disk))
            if ignore_times:
                require_times_to_ignore(graph)
            drawn = Neighbourhoods(
                folder, opened, fanouts, batch_size, device, seed, memory, disk, threads, reporter
            )  # fmt: skip
            if pairs is None:
                _predict_nodes(drawn, graph, request)
            else:
                _predict_pairs(drawn, graph, request, MessageEdges(message_edges, hold_out_pairs))
        else:
            loader = open_loader(source, split, device, None)
            opened.enter_context(loader)
            _predict_prepared(source, loader, split, request, folder, reporter)
    return StageReport("predict", time.perf_counter() - started, 0, out.stat().st_size)


@dataclass(frozen=True)
class _Request:
    """Says what is asked of which model: see `predict`."""

    model: nn.Module | PathLike
    what: str | None
    nodes: npt.ArrayLike | PathLike | None
    pairs: npt.ArrayLike | PathLike | None
    node_type: str | None
    edge_type: EdgeType | str | None
    columns: TableColumns
    times: AskedTimes

    def of_nodes(
        self, source: object, kinds: Mapping[str, str | None], classes: Mapping[str, tuple[ClassValue, ...] | None],
        known_columns: Mapping[str | EdgeType, tuple[FeatureColumn, ...] | None],
    ) -> Asked:  # fmt: skip
        """Returns the model with what it is asked of nodes, see `asked_of`: but rows before the last layer."""
        asked = asked_of(source, kinds, self.model, self.what, self.node_type, classes, known_columns)
        if asked.before_last:
            raise ConfigError("what: `predict` has no rows before the last layer; `infer` has")
        return asked


def _refuse_pairs(request: _Request, messages: MessageEdges) -> None:
    """Refuses nodes and pairs at once, and what is only for pairs.

    Raises:
        ConfigError: names the argument.
    """
    if request.pairs is not None and request.nodes is not None:
        raise ConfigError("pairs: expected nodes or pairs, found both")
    if request.pairs is None and messages != MessageEdges("train", hold_out_pairs=False):
        name = "hold_out_pairs" if messages.hold_out_pairs else "message_edges"
        raise ConfigError(f"{name}: only for pairs, found none; leave it out")


def _refuse_of_prepared(request: _Request, prepared: str, fanouts: Fanouts | None) -> None:
    """Refuses what a prepared directory cannot be asked.

    Raises:
        ConfigError: names the argument.
    """
    times = request.times
    refused: list[tuple[str, object]] = [
        ("pairs", request.pairs), ("fanouts", fanouts), ("times", times.times), ("at", times.at),
        ("columns: time", request.columns.time),
    ]  # fmt: skip
    if prepared == "hops":
        refused.append(("ignore_times", times.ignore_times or None))
    for name, value in refused:
        if value is not None:
            raise ConfigError(
                f"{name}: a {prepared} directory was made beforehand, and is taken as it is; leave it out, or give the "
                "graph that it was made from"
            )


def _predict_prepared(
    source: PathLike, loader: Loader | HopsLoader, split: str, request: _Request, folder: OutputFolder,
    reporter: Reporter,
) -> None:  # fmt: skip
    nodes, ignore_times, is_named = request.nodes, request.times.ignore_times, folder.final.suffix != ".npy"
    if isinstance(loader, Loader):
        _require_drawn_in_time(source, loader, trained_sampling(request.model), ignore_times=ignore_times)
    asked = request.of_nodes(source, _kinds_of(loader), _classes_of(loader), loader.schema.known_columns)
    require_segments(asked.net, loader.schema, source)
    require_tables(asked.net, loader.schema.tables, source)
    if loader.schema.timed is not None:
        require_time_unit(asked.net, loader.schema.time_unit, source)
    given = read_nodes(nodes, None, request.columns) if isinstance(nodes, str | os.PathLike) else nodes
    found = rows_of_nodes(asked, loader, reporter)
    if is_named:
        say(reporter, lambda: (
            f"rows are named by the numbers of their nodes: {source} keeps no ids of yours; `predict` of the "
            "graph that it was made from writes these"
        ))  # fmt: skip
    times_of_seeds = None
    if is_named and isinstance(loader, Loader):
        times_of_seeds = prepared_times(loader.sequence.packed, split, found[0], reporter)
    write_nodes(folder, asked, *found, None if given is None else np.asarray(given), None, times_of_seeds)


def _prepared_kind(source: PathLike | Graph) -> str | None:
    """Returns 'packed' or 'hops' if the source is such a directory; otherwise it is a graph.

    Raises:
        ConfigError: it is a folder of several ranks'.
    """
    if isinstance(source, Graph):
        return None
    if ranks_in(source):
        raise ConfigError(
            f"{source} holds a directory for each rank, which has its part of the nodes only: give the graph that they "
            "were made from, or a packed directory that was prepared for one process"
        )
    return {PACKED: "packed", HOPS: "hops"}.get(read_manifest(source).format)


def _predict_nodes(drawn: Neighbourhoods, graph: Graph, request: _Request) -> None:
    nodes, columns, times = request.nodes, request.columns, request.times
    asked = request.of_nodes(graph.manifest.path, kinds_of(graph), classes_of(graph), graph.config.known_columns)
    require_tables(asked.net, kept_tables(graph), graph.manifest.path)
    require_time_unit(asked.net, graph.config.time_unit, graph.manifest.path)
    node_set = graph.nodes[asked.node_type]
    chosen = chosen_nodes(read_nodes(nodes, node_set, columns) if isinstance(nodes, str | os.PathLike) else nodes,
                          node_set)  # fmt: skip
    if isinstance(asked.net, HopModel):
        _predict_by_hops(drawn, graph, asked, chosen, columns, times)
        return
    sampling = trained_sampling(request.model)
    takes_all = drawn.fanouts is None and (times.ignore_times or not is_temporal(sampling))
    if nodes is None and takes_all and isinstance(asked.net, BlockModel | TypedModel):
        say(drawn.reporter, lambda: "for all nodes, `diskgnn infer` is faster by far: it computes layer by layer")
    warn_of_held_out(graph, sampling, graph.edges, Resources.of(drawn.memory, drawn.threads, drawn.reporter))
    of_table = _times_of("nodes", nodes, graph, columns, sampling)
    seeds = np.arange(node_set.num_nodes) if chosen is None else chosen
    spec = drawn.spec(asked.net, None if times.ignore_times else sampling)
    draws = times.draws(graph, sampling, spec, NodeTarget(asked.node_type), len(seeds), of_table, drawn.reporter)
    target = (
        # A node may be asked at several times. Who asks twice is answered twice: `SplitArrays` are not warned of.
        NodeTarget(asked.node_type, SplitArrays.of("nodes", {SPLIT: seeds}), {SPLIT: draws.by_seed.counted})
        if draws.by_seed
        else NodeTarget(asked.node_type, {SPLIT: np.unique(seeds)})
    )
    loader = drawn.loader(graph, asked.net, target, draws)
    found = rows_of_nodes(asked, loader, drawn.reporter)
    write_nodes(
        drawn.folder, asked, *found, chosen, graph, draws.by_seed, own_times=draws.at is None and draws.by_seed is None
    )  # fmt: skip


def _times_of(
    name: str, table: object, graph: Graph, columns: TableColumns, sampling: Mapping[str, Any] | None
) -> SeedTimes | None:  # fmt: skip
    """Returns the times of a table for a model that was trained by times; None: it has none, or they do not count.

    Raises:
        ConfigError: the column was named, and does not count.
    """
    if is_temporal(sampling):
        return read_times(name, table, graph.config.time_unit, columns)
    if columns.time is not None:
        raise ConfigError(
            "columns: time: expected a checkpoint that was trained by times, found another one; leave it out"
        )
    return None


def _predict_by_hops(
    drawn: Neighbourhoods, graph: Graph, asked: Asked, chosen: npt.NDArray[np.int64] | None,
    columns: TableColumns, times: AskedTimes,
) -> None:  # fmt: skip
    assert isinstance(asked.net, HopModel)
    refused = ("fanouts", drawn.fanouts), ("times", times.times), ("at", times.at), ("columns: time", columns.time)
    for name, given in refused:
        if given is not None:
            raise ConfigError(f"{name}: a model of hop features takes whole neighbourhoods; leave it out")
    rows = HopRows(
        graph, asked.node_type, asked.net, chosen, False, times.ignore_times, drawn.memory, drawn.disk, drawn.threads,
        drawn.reporter,
    )  # fmt: skip

    def stage(work: Work) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        with rows.propagated(work).reading() as path, open_hops(path, drawn.device) as loader:
            return rows_of_nodes(asked, loader, drawn.reporter)

    found = Work(drawn.folder, "predict").run(stage)
    write_nodes(drawn.folder, asked, *found, chosen, graph, own_times=True)


def _predict_pairs(drawn: Neighbourhoods, graph: Graph, request: _Request, messages: MessageEdges) -> None:
    assert request.pairs is not None
    times, (net, found, kind, classes) = request.times, pair_model(graph, request.model, request.edge_type)
    require_tables(net, kept_tables(graph), graph.manifest.path)
    require_time_unit(net, graph.config.time_unit, graph.manifest.path)
    what = request.what or "logits"
    check_what(what, kind, of_pairs=True)
    chosen = chosen_pairs(request.pairs, graph.nodes.get(found[0]), graph.nodes.get(found[2]), request.columns)
    sampling = trained_sampling(request.model)
    messages = replace(messages, reverse_edge_type=trained_reverse_type(sampling, graph, found))
    target = messages.target(graph, found, chosen)
    of_table = _times_of("pairs", request.pairs, graph, request.columns, sampling)
    spec = drawn.spec(net, None if times.ignore_times else sampling)
    draws = times.draws(graph, sampling, spec, target, len(chosen), of_table, drawn.reporter)
    loader = drawn.loader(graph, net, target, draws, 1, AS_GIVEN)
    values, column = rows_of_pairs(net, found, loader, kind, what, classes, drawn.reporter)
    write_pairs(drawn.folder, graph, found, chosen, draws.by_seed, values, column)


def _require_drawn_in_time(
    source: object, loader: Loader, sampling: Mapping[str, Any] | None, *, ignore_times: bool
) -> None:
    """Refuse to ask a model that was trained by times about minibatches that were drawn without, unless it is said."""
    if ignore_times and not is_temporal(sampling):
        raise ConfigError("ignore_times: only for a checkpoint that was trained by times; leave it out")
    if ignore_times and is_temporal(loader.sampling):
        raise ConfigError(f"ignore_times: the minibatches of {source} were drawn by their times; leave it out")
    if sampling is not None and is_temporal(sampling) and not is_temporal(loader.sampling) and not ignore_times:
        raise ConfigError(
            f"ignore_times: the model was trained with temporal={sampling['temporal']!r}, and the minibatches of "
            f"{source} were drawn whatever their times are: prepare them by times (`diskgnn prepare --temporal "
            f"{sampling['temporal']}`), give the graph and a time (`diskgnn predict GRAPH --at TIME`), or pass "
            "ignore_times=True"
        )
    if sampling is not None and is_temporal(sampling) and not ignore_times:
        assert loader.sampling is not None
        if told := other_windows(sampling, loader.sampling):
            raise ConfigError(
                f"source: the model was trained with {told[0]}, and the minibatches of {source} were drawn with "
                f"{told[1]}: prepare them as those that it was trained on, or ask about the graph"
            )


def _classes_of(loader: Loader | HopsLoader) -> dict[str, tuple[ClassValue, ...] | None]:
    return {loader.schema.target: loader.schema.classes} if isinstance(loader.schema.target, str) else {}


def _kinds_of(loader: Loader | HopsLoader) -> dict[str, str | None]:
    schema = loader.schema
    if not isinstance(schema.target, str):
        raise ConfigError(
            f"source: its minibatches are of {edge_type_name(schema.target)} pairs; give the graph and pairs"
        )
    return {schema.target: None if schema.target_kind == NO_LABELS else schema.target_kind}
