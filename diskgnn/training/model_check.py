"""Tries before the first step whether a model fits the minibatches and the task."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from diskgnn.batches.batch_source import BatchSource, schema_of
from diskgnn.batches.blocks import Block, Pairs
from diskgnn.batches.hop_batch import HopBatch
from diskgnn.batches.minibatch import AnyBatch, TypedMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.formats.record_format import WIDE
from diskgnn.nn.model_output import parameter_dtype
from diskgnn.specs.schema import SourceSchema, TableColumn
from diskgnn.training.task import Task
from diskgnn.units import counted


def check_model(model: nn.Module, task: Task, source: BatchSource, device: torch.device) -> None:
    """Try `model`, on `device`, on a made-up minibatch of one seed (of each type), whose layers all differ in size.

    Raises:
        ConfigError: it is deeper or shallower than `source`'s minibatches, takes another number of features, or
            returns something else than the task needs.
    """
    layers, was_training, schema = source.num_layers, model.training, schema_of(source)
    batch = made_up_minibatch(schema, layers, parameter_dtype(model)).to(device)
    if schema.segments:
        expected = f"a module that takes {_record_words(batch)} and returns {task.output()}"
    elif getattr(model, "takes_batch", False):
        expected = f"a module that takes a minibatch of {counted(layers, 'block')} and returns {task.output()}"
    else:
        expected = (
            f"a module that takes ({counted(layers, 'block')}, {_input_words(schema)}) and returns {task.output()}, "
            f"{counted(layers, 'layer')} deep as the fanouts"
        )
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            found = task.outputs(model, batch)
    except Exception as error:
        raise ConfigError(
            f"model: expected {expected}; found that it raises {type(error).__name__}: {error}"
        ) from error
    finally:
        model.train(was_training)
    if not task.accepts(found, 1):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"model: expected {expected}; found shape {shape} for one seed")


def made_up_minibatch(schema: SourceSchema, num_layers: int, dtype: torch.dtype) -> AnyBatch:
    """Makes a minibatch of zeros: one seed of each type that seeds are of, in each layer outwards one more node of each
    type.

    Every destination has one edge of each type, from the last source.
    """
    if schema.segments:
        return _made_up_hops(schema)
    target = schema.target
    targets = {target} if isinstance(target, str) else {target[0], target[2]}
    names = [name for name, _, _ in schema.node_types]
    counts = [{name: (name in targets) + hop for name in names} for hop in range(num_layers, -1, -1)]
    blocks = tuple(
        {edge_type: _made_up_block(before[edge_type[0]], after[edge_type[2]], width, dtype)
         for edge_type, width in schema.edge_types}
        for before, after in pairwise(counts)
    )  # fmt: skip
    x = {name: torch.zeros(counts[0][name], width, dtype=dtype)
         for name, _, width in schema.node_types if width is not None}  # fmt: skip
    input_nodes = {name: torch.zeros(number, dtype=torch.int64) for name, number in counts[0].items()}
    pairs, seeds = None, torch.zeros(1, dtype=torch.int64)
    if not isinstance(target, str):
        label = torch.tensor([1.0, 0.0] if schema.target_kind == "link" else [0.0])  # an edge and a negative; a pair
        once = torch.zeros(len(label), dtype=torch.int64)
        pairs, seeds = Pairs(once, once, label), torch.zeros(len(targets), dtype=torch.int64)
    y: Tensor = seeds if pairs is None else pairs.y(schema.target_kind)
    batch = TypedMiniBatch(
        x, y, blocks, tuple(counts), seeds, target, 0, 0, input_nodes, pairs,
        **_made_up_rows(schema, counts[0], len(seeds)),
    )  # fmt: skip
    return batch if schema.is_typed else batch.of_one_type()


def _made_up_rows(schema: SourceSchema, counts: Mapping[str, int], num_seeds: int) -> dict[str, Any]:
    """Returns what minibatches have of tables and times, if they do."""
    found: dict[str, Any] = {}
    if schema.tables:
        found["columns"] = {name: {each.name: _made_up_column(each, counts[name]) for each in columns}
                            for name, columns in schema.tables}  # fmt: skip
        found["nulls"] = {
            name: {each.name: torch.zeros(counts[name], dtype=torch.bool) for each in columns if each.may_be_null}
            for name, columns in schema.tables
        }
    if schema.timed is not None:
        found["trees"] = {name: torch.zeros(number, dtype=torch.int64) for name, number in counts.items()}
        found["times"] = {name: found["trees"][name] for name in schema.timed}
        found["seed_times"] = torch.zeros(num_seeds, dtype=torch.int64)
    return found


def _made_up_column(column: TableColumn, num_nodes: int) -> Tensor:
    shape = (num_nodes, column.width) if column.kind in WIDE else (num_nodes,)
    return torch.zeros(shape, dtype=getattr(torch, column.dtype))


def _made_up_hops(schema: SourceSchema) -> HopBatch:
    parts = {name: torch.zeros(1, width) for name, width in schema.segments}
    has_one_width = len({width for _, width in schema.segments}) == 1
    x = torch.stack([*parts.values()], 1) if has_one_width else parts
    y = torch.zeros(1, dtype=torch.int64)
    return HopBatch(x, y, y, 0, 0)


def _made_up_block(num_src: int, num_dst: int, width: int | None, dtype: torch.dtype) -> Block:
    edge_x: Any = None if width is None else torch.zeros(num_dst, width, dtype=dtype)
    indices = torch.full((num_dst,), num_src - 1, dtype=torch.int32)
    return Block(torch.arange(num_dst + 1, dtype=torch.int32), indices, num_src, edge_x=edge_x)


def _record_words(batch: AnyBatch) -> str:
    if isinstance(batch.x, Tensor):
        return f"x [B, {', '.join(map(str, batch.x.shape[1:]))}]"
    return f"x by segment ({', '.join(f'{name}: {part.shape[1]} columns' for name, part in batch.x.items())})"


def _input_words(schema: SourceSchema) -> str:
    if not schema.is_typed:
        return f"x with {schema.node_types[0][2]} columns"
    widths = (f"{name}: {'ids' if width is None else f'{width} columns'}" for name, _, width in schema.node_types)
    return f"x by node type ({', '.join(widths)})"
