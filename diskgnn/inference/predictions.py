"""What a model says of the minibatches of a loader, in the order that was asked for, written to the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from diskgnn.batches.minibatch import AnyBatch, pairs_of
from diskgnn.errors import ConfigError
from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.graph.graph import Graph
from diskgnn.inference.asked_times import SeedTimes
from diskgnn.inference.asking import Asked
from diskgnn.inference.output_folder import OutputFolder
from diskgnn.inference.prediction_files import FiniteRows, OutputFormat, RowNames, TableWriter, ids_of, open_output
from diskgnn.inference.row_names import names_of
from diskgnn.loading.hops_loader import HopsLoader
from diskgnn.loading.loader import Loader
from diskgnn.nn.decoders import DotProduct
from diskgnn.nn.model_output import model_output
from diskgnn.progress.reporter import Reporter
from diskgnn.specs.schema import ClassValue, EdgeType

_ROWS_WRITTEN = 1 << 16  # at a time


def rows_of_nodes(
    asked: Asked, loader: Loader | HopsLoader, reporter: Reporter
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Returns the seeds of a loader [n], in its order, and what the model says of them [n, ...]."""
    seeds, rows = [], []
    for batch, found in _of_minibatches(asked.net, loader, reporter):
        if isinstance(found, Mapping) and asked.node_type not in found:
            raise ConfigError(
                f"node_type: the model was trained for {', '.join(found)}, and says nothing of {asked.node_type} nodes"
            )
        of_type = found[asked.node_type] if isinstance(found, Mapping) else found
        seeds.append(_copied(batch.seeds))
        rows.append(_copied(of_type.float()))
    return np.concatenate(seeds), np.concatenate(rows)


def write_nodes(
    folder: OutputFolder, asked: Asked, known: npt.NDArray[np.int64], values: npt.NDArray[np.float32],
    chosen: npt.NDArray[Any] | None, graph: Graph | None, times: SeedTimes | None = None, *, own_times: bool = False,
) -> None:  # fmt: skip
    """Write the rows of `chosen` nodes [n], in this order, or of all that are `known` in ascending order.

    A table has a column of `times` where there are some, or where rows of a task are asked at their own.

    Args:
        folder: of the output.
        asked: what the model was asked for.
        known, values: of whom it says what, see `rows_of_nodes`.
        chosen: nodes to write: the known ones as they are, or such as are known once.
        graph: that they are of, which may keep ids of the user's; None: nobody has it.
        times: of the known ones.
        own_times: they are asked at the times that they have in the graph.
    """
    places = np.argsort(known, kind="stable")
    if chosen is None:
        chosen = known[places]
    elif np.array_equal(chosen, known):  # some of them perhaps several times
        places = np.arange(len(known))
    else:
        places = _places_of(chosen, known, places)
    content, suffix = OutputFormat(asked.what, asked.kind, values.shape[1], asked.classes), folder.output.suffix
    columns, finite = dict[str, pa.Array | pa.ChunkedArray](), FiniteRows()
    if suffix != ".npy":
        columns |= names_of(graph, asked.node_type, chosen, own_times=own_times)
        columns |= {} if times is None else {"time": times.as_given.take(pa.array(places))}
    with (
        folder.publishing() as path,
        open_output(path, suffix, content, len(chosen), None, RowNames.of_rows(columns), folder.disk) as write,
    ):
        for first in range(0, len(chosen), _ROWS_WRITTEN):
            part = np.arange(first, min(first + _ROWS_WRITTEN, len(chosen)))
            rows_of_part = values[places[part]]
            finite.count(rows_of_part)
            write(content.of(rows_of_part), part)
    finite.warn()


def rows_of_pairs(
    net: nn.Module,
    edge_type: EdgeType,
    loader: Loader,
    kind: str,
    what: str,
    classes: tuple[ClassValue, ...] | None,
    reporter: Reporter,
) -> tuple[npt.NDArray[Any], Callable[[npt.NDArray[Any]], tuple[str, pa.Array]]]:
    """Returns `what` the model says of the pairs, [n] of links and [n, ...] of pairs with labels; and a function that
    makes a table's column of it.

    Raises:
        ConfigError: a model for links has several numbers for each pair.
    """
    decoder: Any = getattr(net, "decoder", None) or DotProduct()
    parts = []
    for batch, found in _of_minibatches(net, loader, reporter):
        pairs = pairs_of(batch)
        ends = (found[edge_type[0]], found[edge_type[2]]) if isinstance(found, Mapping) else (found, found)
        with torch.no_grad():
            scores = decoder(ends[0][pairs.src], ends[1][pairs.dst])
        parts.append(_copied(scores.float()))
    values, finite = np.concatenate(parts), FiniteRows()
    finite.count(values)
    finite.warn()
    if kind != "link":
        content = OutputFormat(what, kind, values.shape[1], classes)
        return content.of(values), content.column
    if values.ndim != 1:
        raise ConfigError(
            f"model: expected a score for each pair [n], found {list(values.shape)}; of pairs with labels, give the "
            "checkpoint, which says what they are"
        )
    if what == "probabilities":
        return torch.from_numpy(values).sigmoid().numpy(), lambda found: ("probability", pa.array(found))
    return values, lambda scores: ("score", pa.array(scores))


def write_pairs(
    folder: OutputFolder, graph: Graph, edge_type: EdgeType, pairs: npt.NDArray[Any], times: SeedTimes | None,
    values: npt.NDArray[Any], column: Callable[[npt.NDArray[Any]], tuple[str, pa.Array]],
) -> None:  # fmt: skip
    """Write `values` [n, ...] of `pairs` [n, 2]: in a table by a `column`, beside the ids of their nodes, and their
    times if each has one.
    """
    suffix = folder.output.suffix
    with folder.publishing() as path, ChecksummedFile(path, disk=folder.disk) as file:
        if suffix == ".npy":
            np.save(file, values)
        else:
            (_, src), (_, dst) = (ids_of(graph.nodes[edge_type[end]], pairs[:, end // 2]) for end in (0, 2))
            of_times, (name, rows) = {} if times is None else {"time": times.as_given}, column(values)
            table = pa.table({"src": src, "dst": dst, **of_times, name: rows})
            with TableWriter(file, suffix, table.schema) as writer:
                writer.write(table)


@torch.no_grad()
def _of_minibatches(net: nn.Module, loader: Loader | HopsLoader, reporter: Reporter) -> Iterator[tuple[AnyBatch, Any]]:
    """Yields each minibatch of the loader, and what the model returns."""
    net.to(loader.device).eval()
    with reporter.stage("predict", loader.num_batches, "minibatches") as advance:
        for batch in loader:
            yield batch, model_output(net, batch)
            advance(1)


def _copied(rows: Tensor) -> npt.NDArray[Any]:
    """Returns copies: a view of a minibatch's tensors would keep all of it."""
    return rows.cpu().numpy().copy()


def _places_of(
    chosen: npt.NDArray[Any], known: npt.NDArray[np.int64], order: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns where `chosen` nodes [n] stand in `known`, which is ascending in this `order`."""
    first = np.searchsorted(known, chosen, "left", sorter=order)
    after = np.searchsorted(known, chosen, "right", sorter=order)
    if (missing := chosen[first == after]).size:
        raise ConfigError(f"nodes: {missing[0]} is no seed of this split; give the graph that they are of")
    if (several := chosen[after - first > 1]).size:
        raise ConfigError(f"nodes: {several[0]} is a seed of this split several times; leave them out for all seeds")
    return order[first]
