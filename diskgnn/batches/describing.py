"""Makes `print(batch)` say sizes in a few lines, in place of thousands of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from diskgnn.batches.minibatch import AnyMiniBatch, Block
    from diskgnn.schema import EdgeType


def describe(batch: AnyMiniBatch) -> str:
    """Returns the sizes of a minibatch and of all that it holds; attributes that are None are left out.

    Example:
        >>> print(batch)
        MiniBatch(epoch 0, minibatch 3: 512 seeds, 9,876 input nodes, 15,432 edges)
          x: float32 [9876, 128]
          y: int64 [512]
          blocks[0]: 9,876 sources, 3,210 destinations, 12,345 edges
          blocks[1]: 3,210 sources, 512 destinations, 3,087 edges
    """
    head = (
        f"{type(batch).__name__}(epoch {batch.epoch}, minibatch {batch.batch_index}: {len(batch.seeds):,} seeds, "
        f"{batch.num_input_nodes:,} input nodes, {batch.num_edges:,} edges)"
    )
    return "\n  ".join([head, *_lines(batch)])


def _lines(batch: AnyMiniBatch) -> Iterator[str]:
    layers: Sequence[Block | Mapping[EdgeType, Block]] = batch.blocks
    for name in ("x", "y", "input_nodes", "trees"):
        yield from _arrays(name, getattr(batch, name))
    for number, layer in enumerate(layers):
        if isinstance(layer, Mapping):
            yield from (
                f"blocks[{number}][{edge_type}]: {_sizes(each)}" for edge_type, each in layer.items() if each.num_edges
            )
        else:
            yield f"blocks[{number}]: {_sizes(layer)}"
    if batch.pairs is not None:
        yield f"pairs: {len(batch.pairs.src):,}"


def _arrays(name: str, value: Tensor | Mapping[str, Tensor] | None) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _arrays(f"{name}[{key!r}]", each)
    elif value is not None:
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        yield f"{name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}{device}"


def _sizes(block: Block) -> str:
    carried = [name for name in ("edge_ids", "edge_x") if getattr(block, name) is not None]
    with_these = f", with {' and '.join(carried)}" if carried else ""
    return f"{block.num_src:,} sources, {block.num_dst:,} destinations, {block.num_edges:,} edges{with_these}"
