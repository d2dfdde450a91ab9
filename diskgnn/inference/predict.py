"""What a model says of some nodes or pairs, from sampled neighbourhoods as in training, or from all neighbours."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.inference.asking import Asked, asked_of, chosen_nodes, fanouts_of, kinds_of, pair_model
from diskgnn.inference.minibatch_memory import predicting_bytes
from diskgnn.inference.node_files import read_nodes, read_pairs
from diskgnn.inference.outputs import IdColumn, OutputFormat, check_suffix, ids_of, open_output
from diskgnn.inference.scratch import Scratch, check_output
from diskgnn.loading.loader import Loader
from diskgnn.paths import PathLike
from diskgnn.preparing.memory_needs import require_memory
from diskgnn.preparing.prepare import prepare
from diskgnn.progress import SILENT, Reporter, StageReport, say, stages_of
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.schema import NO_LABELS, EdgeType, edge_type_name
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.sampling import SamplingOptions, SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target
from diskgnn.storage.artifacts import PACKED
from diskgnn.storage.checked_files import ChecksummedFile
from diskgnn.storage.manifest import read_manifest
from diskgnn.storage.object_stores import local
from diskgnn.storage.ranks import ranks_in
from diskgnn.system.allocators import freed_memory_returned, return_freed_memory
from diskgnn.system.device import checked_device
from diskgnn.system.resources import Resources
from diskgnn.training.decoders import DotProduct
from diskgnn.training.model_output import model_output
from diskgnn.training.models import BlockModel
from diskgnn.training.typed_models import TypedModel

_SPLIT = "test"  # what seeds are prepared as: not shuffled
_ROWS_WRITTEN = 1 << 16  # at a time


@freed_memory_returned()
def predict(
    source: PathLike | Graph,
    out: PathLike,
    model: nn.Module | PathLike,
    *,
    nodes: npt.ArrayLike | PathLike | None = None,
    pairs: npt.ArrayLike | PathLike | None = None,
    edge_type: EdgeType | str | None = None,
    what: str | None = None,
    node_type: str | None = None,
    split: str = _SPLIT,
    fanouts: Fanouts | None = None,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    seed: int = 0,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> StageReport:
    """Write what a model says of some nodes, labelled or not, or how likely it finds pairs of nodes.

    Neighbourhoods are prepared and read as for training, beside `out`; what is said is in memory until it is written.
    For all nodes of a graph, `infer` moves far fewer bytes.

    Args:
        source: graph directory, or an opened one, whose nodes are given; or a packed directory, of which the seeds of
            `split` are taken as they were sampled.
        out: the file to write: .npy [n, ...], or .parquet with the nodes beside the values.
        model: what `diskgnn.train` left in a checkpoint directory; or any module that takes (blocks, x), as
            `diskgnn.train` takes it.
        nodes: [n] numbers of rows, or bool [N]; or a file of ids, .npy or a table with a column `id`, which are your
            own where `source` is a graph that keeps some. By default all. A .npy file has them in this order, Parquet
            in ascending order.
        pairs: [n, 2] (source, destination) in place of nodes, for a model of links, or of pairs that have labels: what
            it says in this order. Or a file of ids as for `nodes`, of a table the columns `src` and `dst`.
        edge_type: of the pairs; by default the one that the model was trained for.
        what: 'logits' (by default), 'probabilities' or 'classes'; of a model of link prediction the vectors of nodes,
            'embeddings'.
        node_type: of `nodes`; by default the type that the model was trained for.
        split: of a packed directory.
        fanouts: neighbours drawn per layer, from the seeds outwards; by default all of them, in as many layers as the
            model has.
        batch_size: nodes or pairs at a time.
        device: where the model computes.
        seed: of the draws.
        memory: what the whole process may use where `source` is a graph, in bytes or as '2GiB'. The largest minibatch
            and its activations are taken to fit, as are all outputs.
        disk: what files may take at any time, as '100GiB', what is prepared and the output included; what is free by
            default.
        threads: of preparing.
        overwrite: replace an existing `out`.
        reporter: told of every stage.

    Raises:
        ConfigError: arguments or a model that cannot work, or less memory than it takes, with the figure.
        InputError, ArtifactError, OutputExistsError, DiskFullError: see `infer`.

    Example:
        >>> diskgnn.predict("graph", "new.parquet", "runs/sage", nodes=[7, 12], what="classes")
    """
    started, out, device = time.perf_counter(), local(out, "predict"), checked_device(device)
    check_suffix(out)
    check_output(out, overwrite=overwrite)
    if pairs is not None and nodes is not None:
        raise ConfigError("pairs: expected nodes or pairs, found both")
    if not isinstance(source, Graph) and ranks_in(source):
        raise ConfigError(
            f"{source} holds a directory for each rank, which has its part of the nodes only: give the graph that they "
            "were made from, or a packed directory prepared without `--ranks`"
        )
    is_packed = not isinstance(source, Graph) and read_manifest(source).format == PACKED
    if is_packed and (pairs is not None or fanouts is not None):
        raise ConfigError("pairs, fanouts: a packed directory has its own; give the graph that it was made from")
    making = ["diskgnn.predict", uuid.uuid4().hex]
    with Scratch(out, making, overwrite=overwrite, disk=disk) as scratch, ExitStack() as opened:
        opened.callback(scratch.discard)

        def prepared(graph: Graph, net: nn.Module, target: Target, *outputs: int) -> Loader:
            sampling = SamplingOptions(
                fanouts=fanouts_of(net, fanouts), batch_size=batch_size, target=target, seed=seed
            )  # fmt: skip
            plan = SamplingPlan(graph, SamplingSpec.of(**sampling))
            resources, needed_bytes = Resources.of(memory, threads, reporter), predicting_bytes(plan, net, *outputs)
            require_memory(plan, resources, lambda: resources.within("to predict", needed_bytes))
            prepare(
                graph, scratch.folder / "packed", cpu_cache=0, static_cache=0, memory=memory, disk=disk,
                threads=threads, reporter=stages_of(reporter), **sampling,
            )  # fmt: skip
            scratch.disk.look()
            return_freed_memory()
            return opened.enter_context(Loader(scratch.folder / "packed", _SPLIT, device=device))

        if is_packed:
            assert not isinstance(source, Graph)
            loader = opened.enter_context(Loader(source, split, device=device))
            asked = _asked(source, _kinds_of(loader), model, what, node_type)
            if isinstance(nodes, str | os.PathLike):
                nodes = read_nodes(nodes, None)
            _write_nodes(scratch, asked, loader, None if nodes is None else np.asarray(nodes), None, reporter)
        elif pairs is None:
            graph = source if isinstance(source, Graph) else Graph.open(source)
            asked = _asked(graph.manifest.path, kinds_of(graph), model, what, node_type)
            node_set = graph.nodes[asked.node_type]
            if isinstance(nodes, str | os.PathLike):
                nodes = read_nodes(nodes, node_set)
            chosen = chosen_nodes(nodes, node_set.num_nodes)
            if nodes is None and fanouts is None and isinstance(asked.net, BlockModel | TypedModel):
                say(reporter, lambda: "for all nodes, `diskgnn infer` is faster by far: it computes layer by layer")
            seeds = np.arange(node_set.num_nodes) if chosen is None else np.unique(chosen)
            loader = prepared(graph, asked.net, NodeTarget(asked.node_type, seeds={_SPLIT: seeds}), len(seeds))
            _write_nodes(scratch, asked, loader, chosen, node_set, reporter)
        else:
            graph = source if isinstance(source, Graph) else Graph.open(source)
            net, found, kind = pair_model(graph, model, edge_type)
            if isinstance(pairs, str | os.PathLike):
                pairs = read_pairs(pairs, graph.nodes.get(found[0]), graph.nodes.get(found[2]))
            loader = prepared(
                graph, net, LinkTarget(found, eval_negatives=0, seeds={_SPLIT: pairs}), len(np.asarray(pairs)), 1
            )
            values, columns = _of_pairs(net, found, loader, kind, what, reporter)
            _write_pairs(scratch, graph, found, np.asarray(pairs), values, columns)
    return StageReport("predict", time.perf_counter() - started, 0, out.stat().st_size)


def _asked(
    source: object,
    kinds: Mapping[str, str | None],
    model: nn.Module | PathLike,
    what: str | None,
    node_type: str | None,
) -> Asked:
    asked = asked_of(source, kinds, model, what, node_type)
    if asked.before_last:
        raise ConfigError("what: `predict` has no rows before the last layer; `infer` has")
    return asked


def _kinds_of(loader: Loader) -> dict[str, str | None]:
    schema = loader.schema
    if not isinstance(schema.target, str):
        raise ConfigError(
            f"source: its minibatches are of {edge_type_name(schema.target)} pairs; give the graph and pairs"
        )
    return {schema.target: None if schema.target_kind == NO_LABELS else schema.target_kind}


@torch.no_grad()
def _outputs(net: nn.Module, loader: Loader, reporter: Reporter) -> Iterator[tuple[AnyMiniBatch, Any]]:
    """Each minibatch of the loader, and what the model returns."""
    net.to(loader.device).eval()
    with reporter.stage("predict", loader.num_batches, "minibatches") as advance:
        for batch in loader:
            yield batch, model_output(net, batch)
            advance(1)


def _write_nodes(
    scratch: Scratch, asked: Asked, loader: Loader, chosen: npt.NDArray[Any] | None, nodes: NodeSet | None,
    reporter: Reporter,
) -> None:  # fmt: skip
    """Write the rows of `chosen` nodes [n], or of all seeds: as often as each is one, and in this order."""
    seeds, rows = [], []
    for batch, found in _outputs(asked.net, loader, reporter):
        of_type = found[asked.node_type] if isinstance(found, Mapping) else found
        # Copies: a view of a minibatch's tensors would keep all of it.
        seeds.append(np.array(batch.seeds.cpu()))
        rows.append(np.array(of_type.float().cpu()))
    known, values = np.concatenate(seeds), np.concatenate(rows)
    del seeds, rows
    places = np.argsort(known, kind="stable")
    if chosen is None:
        chosen = known[places]
    else:
        places = _places_of(chosen, known, places)
    content = OutputFormat(asked.what, asked.kind, values.shape[1])
    if is_table := scratch.output.suffix == ".parquet":
        by_node = np.argsort(chosen, kind="stable")
        chosen, places = chosen[by_node], places[by_node]
    with (
        scratch.publishing() as path,
        (nodes and is_table and nodes.user_ids) or nullcontext() as ids,
        open_output(
            path, scratch.output.suffix, content, len(chosen), None, ids and IdColumn(ids), scratch.disk
        ) as write,
    ):
        for first in range(0, len(chosen), _ROWS_WRITTEN):
            part = slice(first, first + _ROWS_WRITTEN)
            write(content.of(values[places[part]]), chosen[part])


def _places_of(
    chosen: npt.NDArray[Any], known: npt.NDArray[np.int64], order: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Where `chosen` nodes [n] stand in `known`, which is ascending in this `order`."""
    first = np.searchsorted(known, chosen, "left", sorter=order)
    after = np.searchsorted(known, chosen, "right", sorter=order)
    if (missing := chosen[first == after]).size:
        raise ConfigError(
            f"nodes: {missing[0]} is no seed of this split; give the graph in place of the packed directory"
        )
    if (several := chosen[after - first > 1]).size:
        raise ConfigError(f"nodes: {several[0]} is a seed of this split several times; leave them out for all seeds")
    return order[first]


def _of_pairs(
    net: nn.Module, edge_type: EdgeType, loader: Loader, kind: str, what: str | None, reporter: Reporter
) -> tuple[npt.NDArray[Any], Callable[[npt.NDArray[Any]], tuple[str, pa.Array]]]:
    """The scores [n] of links, or `what` [n, ...] of pairs with labels; and what makes a table's column of that."""
    decoder: Any = getattr(net, "decoder", None) or DotProduct()
    parts = []
    for batch, found in _outputs(net, loader, reporter):
        assert batch.pairs is not None
        ends = (found[edge_type[0]], found[edge_type[2]]) if isinstance(found, Mapping) else (found, found)
        with torch.no_grad():
            scores = decoder(ends[0][batch.pairs.src], ends[1][batch.pairs.dst])
        parts.append(np.array(scores.float().cpu()))
    values = np.concatenate(parts)
    if kind == "link":
        return values, lambda scores: ("score", pa.array(scores))
    content = OutputFormat(what or "logits", kind, values.shape[1])
    return content.of(values), content.column


def _write_pairs(
    scratch: Scratch, graph: Graph, edge_type: EdgeType, pairs: npt.NDArray[Any], values: npt.NDArray[Any],
    column: Callable[[npt.NDArray[Any]], tuple[str, pa.Array]],
) -> None:  # fmt: skip
    with scratch.publishing() as path, ChecksummedFile(path, disk=scratch.disk) as file:
        if scratch.output.suffix == ".npy":
            np.save(file, values)
        else:
            sources, destinations = (ids_of(graph.nodes[edge_type[end]], pairs[:, end // 2]) for end in (0, 2))
            name, rows = column(values)
            table = pa.table({"source": sources, "destination": destinations, name: rows})
            pq.write_table(table, file, compression="zstd")
