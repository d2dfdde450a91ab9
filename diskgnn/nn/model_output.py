"""Calls models, and reads what they return, whatever kind of minibatch it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diskgnn.batches.hop_batch import HopBatch
from diskgnn.batches.minibatch import AnyBatch, TypedMiniBatch, pairs_of
from diskgnn.errors import ConfigError


def model_output(net: nn.Module, batch: AnyBatch) -> Any:
    """Returns what a model says of a minibatch: `net(blocks, x)`, of hop features `net(x)`; x is `model_input`'s.

    A model with a true attribute `takes_batch` is called as `net(batch)`: it sees columns, nulls and times, too.
    """
    if getattr(net, "takes_batch", False):
        return net(batch)
    x = model_input(batch, parameter_dtype(net))
    return net(x) if isinstance(batch, HopBatch) else net(batch.blocks, x)


def model_input(batch: AnyBatch, dtype: torch.dtype = torch.float32) -> Any:
    """Returns what a model sees of the input nodes: features in `dtype`; of types without features, the ids.

    Returns:
        x [U, D]; or by node type, x [U, D] and, of those without features, ids [U] int64. Of hop features, x [B, H, D],
        or [B, width] by segment.

    Example:
        >>> outputs = model(batch.blocks, model_input(batch))
    """
    if isinstance(batch, HopBatch) and isinstance(batch.x, Mapping):
        return {name: part.to(dtype) for name, part in batch.x.items()}
    if not isinstance(batch, TypedMiniBatch):
        assert isinstance(batch.x, Tensor)
        return batch.x.to(dtype)
    x: dict[str, Tensor] = {}
    for name in batch.node_counts[0]:
        if name in batch.x:
            x[name] = batch.x[name].to(dtype)
        elif batch.input_nodes is not None and name in batch.input_nodes:
            x[name] = batch.input_nodes[name]
        else:
            raise ConfigError(f"{name} nodes have no features, and the source does not say which they are")
    return x


def seed_rows(net: nn.Module, batch: AnyBatch) -> Tensor:
    """Returns [B, columns]: a model's rows of the nodes that are the seeds.

    A model of a typed graph may return them alone, or by node type.
    """
    found = model_output(net, batch)
    if isinstance(found, Mapping):
        assert isinstance(batch, TypedMiniBatch)
        found = found[batch.target]
    rows: Tensor = found
    return rows


def pair_ends(net: nn.Module, batch: AnyBatch) -> tuple[Tensor, Tensor]:
    """Returns the vectors [B, H] of the seeds that are sources of pairs, and of those that are destinations.

    A model of a typed graph returns them by node type.
    """
    found = model_output(net, batch)
    if isinstance(found, Mapping):
        assert isinstance(batch, TypedMiniBatch)
        return found[batch.target[0]], found[batch.target[2]]
    return found, found


def pair_rows(net: nn.Module, batch: AnyBatch) -> Tensor:
    """Returns [P, columns]: what the model's `decoder` makes of the vectors of the two nodes of each pair."""
    decoder: Any = net.decoder
    pairs, (sources, destinations) = pairs_of(batch), pair_ends(net, batch)
    rows: Tensor = decoder(sources[pairs.src], destinations[pairs.dst])
    return rows


def parameter_dtype(net: nn.Module) -> torch.dtype:
    """Returns the dtype that the model computes in: of its first floating-point parameter."""
    return next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
