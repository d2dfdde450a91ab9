"""Tells whether numbers of training are finite, and what the features hold where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from diskgnn.batches.batch_source import BatchSource
from diskgnn.formats.packed import Packed
from diskgnn.formats.value_counts import ValueCounts
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import edge_type_name

# A mean loss above this is told if features are extreme, too, or if it is above the square root of float32's range:
# sums of squared errors in the thousands are what regression on large targets begins with.
_HUGE_LOSS, _HOPELESS_LOSS = 1e6, 1e18


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Returns True if no floating-point tensor holds NaN or infinity. Takes no memory in proportion to them; waits once
    for each device.
    """
    extremes: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        values = tensor.detach()._values() if tensor.is_sparse else tensor.detach()
        if values.is_floating_point() and values.numel():
            extremes.setdefault(values.device, []).extend(each.float() for each in values.aminmax())
    return all(bool(torch.stack(found).isfinite().all()) for found in extremes.values())


def loss_warning(loss: float, source: BatchSource) -> str | None:
    """Returns what to tell of a mean loss that is finite but so large that training goes nowhere; None of any other."""
    features = feature_warning(source)
    if loss <= (_HUGE_LOSS if features else _HOPELESS_LOSS):
        return None
    remedy = features or "scale the features and, in regression, the targets, or use a lower learning rate"
    return f"the loss is {loss:.3g}, which few models recover from: {remedy}"


def feature_warning(source: BatchSource) -> str:
    """Says which features had NaN, infinite or extreme values when the graph was converted; "" if none had any."""
    told = [
        f"the features of {name} hold {values} in {values.rows:,} rows, the first in row {values.first_row}, column "
        f"{values.first_column}"
        for name, values in _unusual_values(source)
    ]
    return f"{'; '.join(told)}: replace, scale or clip them, and convert again" if told else ""


def _unusual_values(source: BatchSource) -> Iterator[tuple[str, ValueCounts]]:
    packed: Packed | None = getattr(getattr(source, "sequence", None), "packed", None)
    if packed is not None:
        yield from ((each.name, each.values) for each in packed.config.row_sets if each.values)
        return
    graph = getattr(source, "graph", None)
    if isinstance(graph, Graph):  # a source of somebody's own may call anything so
        yield from ((name, nodes.config.values) for name, nodes in graph.nodes.items() if nodes.config.values)
        for edge_type, edges in graph.edges.items():
            if edges.config.values:
                yield edge_type_name(edge_type), edges.config.values
