"""From the header of an extent to a minibatch: its tensors are views of one copy of the header on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import DamagedExtentError
from diskgnn.batches.blocks import Block, Pairs
from diskgnn.batches.minibatch import AnyMiniBatch, TypedMiniBatch
from diskgnn.batches.table_records import ByType, TableRows
from diskgnn.batches.tensor_frames import in_order
from diskgnn.formats.extent_headers import ColumnPlaces
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.minibatch_checks import checked_columns
from diskgnn.formats.packed import Packed
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.specs.schema import EdgeType

# The rows of a row set, one for each address: of (its number, addresses [U] int32 on the host, the same on the device).
Rows = Callable[[int, Tensor, Tensor], Tensor]
_Tensors = Callable[[int], Tensor]  # of a header, by the numbers of columns


class HeaderReader:
    """Makes minibatches of headers.

    Args:
        packed: where they come from.
        split: of these extents.
        index: of them.
        device: where the minibatches' tensors are wanted.
    """

    def __init__(self, packed: Packed, split: str, index: ExtentIndex, device: torch.device) -> None:
        config = packed.config
        self._layout, self._schema, self._is_typed = config.header_layout(), config.schema(), config.is_typed
        self._types = [row_set.type for row_set in config.row_sets]
        self._views, self._constants = packed.views, config.constants
        tables = {name: tuple(in_order(table)) for name, table in self._schema.tables}
        self._tables = {**tables, **dict.fromkeys(self._constants, ())} or None
        self._node_types, self._edge_types = config.samples.node_types, config.samples.edge_types
        self._path, self._index, self._device = packed.extents(split), index, device

    def read(self, extent: int, header: npt.NDArray[np.uint8], rows: Rows, epoch: int, number: int) -> AnyMiniBatch:
        """Returns the minibatch in `header`, moved on the current stream, once its parts have proved to fit each other.

        Args:
            extent: number of the extent.
            header: bytes of an extent's header, which must not change until the stream has got here.
            rows: gives the rows of a row set.
            epoch, number: those of the minibatch.

        Returns:
            A `MiniBatch` of a graph of one node type and one edge type, a `TypedMiniBatch` of others.

        Raises:
            DamagedExtentError: it is not one, although its checksum fits.
        """
        layout = self._layout
        try:
            places = ColumnPlaces.of(header, layout)
            on_host = checked_columns(header, places, layout, self._index.rows[extent])
        except ValueError as error:
            raise DamagedExtentError(f"extent {extent} of {self._path} is damaged: {error}") from error
        moved = torch.from_numpy(header)
        if self._device.type != "cpu":
            # One copy instead of one for each array, and a block of the same size each time, as for x.
            host, moved = moved, torch.empty(self._index.max_header_bytes, dtype=torch.uint8, device=self._device)
            moved = moved[: len(header)].copy_(host, non_blocking=True)
        batch = self._minibatch(on_host, places.tensors(moved, layout), rows, epoch, number)
        return batch if self._is_typed else batch.of_one_type()

    def _minibatch(
        self, on_host: SampledMinibatch, tensors: list[Tensor], rows: Rows, epoch: int, number: int
    ) -> TypedMiniBatch:
        header, tensor = self._layout.numbers, tensors.__getitem__
        x, edge_x = self._features(on_host, tensor, rows)
        tables = {name: part for name, part in x.items() if isinstance(part, TableRows)}
        counts = [dict(zip(self._node_types, layer, strict=True)) for layer in on_host.node_counts.tolist()]
        return TypedMiniBatch(
            x=ByType(x, "x") if tables else x,
            y=self._y(header, tensor),
            blocks=tuple(
                {
                    edge_type: Block(
                        tensor(block.indptr), tensor(block.indices), counts[layer][edge_type[0]],
                        edge_ids=None if block.edge_ids is None else tensor(block.edge_ids),
                        edge_x=edge_x[edge_type][layer] if edge_type in edge_x else None,
                    )
                    for edge_type, block in zip(self._edge_types, blocks, strict=True)
                }
                for layer, blocks in enumerate(header.blocks)
            ),
            node_counts=tuple(counts),
            seeds=tensor(header.seeds),
            target=self._schema.target,
            epoch=epoch,
            batch_index=number,
            input_nodes=self._kept_nodes(header, tensor),
            pairs=self._pairs(header, tensor),
            trees=None if header.trees is None else self._by_type(header.trees, tensor),
            times=None if header.times is None else {
                name: tensor(times)
                for name, times in zip(self._node_types, header.times, strict=True) if times is not None
            },
            columns=ByType(tables, "columns") if tables else None,
            nulls=ByType(tables, "nulls") if tables else None,
            tables=self._tables,
            seed_times=None if header.seed_times is None else tensor(header.seed_times),
        )  # fmt: skip

    def _features(
        self, on_host: SampledMinibatch, tensor: _Tensors, rows: Rows
    ) -> tuple[dict[str, Any], dict[EdgeType, tuple[Tensor, ...]]]:
        """Returns the tensors of node types, or the rows of their tables; and those of edge types, layer by layer."""
        x: dict[str, Any] = {}
        edge_x: dict[EdgeType, tuple[Tensor, ...]] = {}
        for k, (type_, places) in enumerate(zip(self._types, self._layout.numbers.rows, strict=True)):
            found = rows(k, torch.from_numpy(on_host.rows[k].addresses), tensor(places.addresses))
            spread, view = None if places.spread is None else tensor(places.spread), self._views[k]
            if view is not None and isinstance(type_, str):
                x[type_] = TableRows(found, spread, view)
                continue
            if spread is not None:
                found = found.index_select(0, spread)
            if isinstance(type_, str):
                x[type_] = found
            else:
                e = self._edge_types.index(type_)
                edge_x[type_] = torch.split(found, [len(blocks[e].indices) for blocks in on_host.blocks])
        for name in self._constants:
            num_nodes = int(on_host.node_counts[0, self._node_types.index(name)])
            x[name] = torch.ones((num_nodes, 1), device=self._device)
        return x, edge_x

    def _pairs(self, header: Any, tensor: _Tensors) -> Pairs | None:
        if (pairs := header.pairs) is None:
            return None
        return Pairs(tensor(pairs.src).long(), tensor(pairs.dst).long(), tensor(pairs.label))

    def _y(self, header: Any, tensor: _Tensors) -> Tensor | None:
        if header.y is None:
            pairs = self._pairs(header, tensor)
            return None if pairs is None else pairs.y(self._schema.target_kind)
        y = tensor(header.y)
        return y if self._schema.target_kind == "class" else y.view(-1, self._layout.num_outputs)

    def _kept_nodes(self, header: Any, tensor: _Tensors) -> Mapping[str, Tensor] | None:
        by_type = zip(self._node_types, header.input_nodes, self._layout.node_dtypes, strict=True)
        return {name: tensor(nodes).long() for name, nodes, dtype in by_type if dtype is not None} or None

    def _by_type(self, columns: tuple[int, ...], tensor: _Tensors) -> dict[str, Tensor]:
        return {name: tensor(column).long() for name, column in zip(self._node_types, columns, strict=True)}
