"""R-GCN, R-GAT and HGT layers taken apart: see `layer_steps`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.blocks import Block
from diskgnn.inference.layer_steps import ArrayName, LayerSteps, Panel, attention_by_head
from diskgnn.nn.aggregation import edge_mean, edge_products, neighbour_mean, softmax_over_types, weighted_sums
from diskgnn.nn.typed_layers import HGTLayer, RGATLayer, RGCNLayer
from diskgnn.specs.schema import EdgeType


def typed_steps(layer: nn.Module) -> list[LayerSteps]:
    """Returns the ways to compute a layer of a typed graph; none where the layer is another one."""
    if isinstance(layer, RGCNLayer):
        return [_RGCN(layer)]
    if isinstance(layer, RGATLayer):
        return [_RGAT(layer)]
    return [_HGT(layer)] if isinstance(layer, HGTLayer) else []


class _RGCN:
    """`RGCNLayer`, with each edge type's weight before the sums: they are added up before they are written."""

    heads, divisible, edge_bytes, uses_degrees = 1, True, 0, False
    own_array: str | None = None

    def __init__(self, layer: RGCNLayer) -> None:
        self._layer, self.types, self.width = layer, layer.types, layer.out_channels
        mixture = layer.mixture
        self._weights = layer.weight if mixture is None else torch.einsum("rb,boi->roi", mixture, layer.weight)

    def stored(self, node_type: str) -> Mapping[str, int]:
        numbers = (number for number, edge_type in enumerate(self.types.edges) if edge_type[0] == node_type)
        return {f"x{number}": self.width for number in numbers}

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        return tuple((each[0], f"x{number}") for number, each in enumerate(self.types.edges) if each[2] == destination)

    def beside(self, destination: str) -> tuple[str, ...]:
        return ()

    def own_columns(self, node_type: str) -> int:
        return self.width

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        return {name: F.linear(x, self._weights[int(name[1:])]) for name in self.stored(node_type)}

    def own(self, node_type: str, x: Tensor) -> Tensor:
        rows: Tensor = self._layer.own[self.types.destinations.index(node_type)](x)
        return rows

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        columns = panel.of_row(self.width)
        sums = torch.zeros(next(iter(blocks.values())).num_dst, panel.num_columns(self.width))
        for number, edge_type in self.types.followed(blocks, destination):
            block = blocks[edge_type]
            sums += neighbour_mean(sources[edge_type[0], f"x{number}"][:, 0], block)
            if (edge := self._layer.edge[number]) is not None:
                assert block.edge_x is not None
                # All columns: a product of some of them would round otherwise.
                sums += edge(edge_mean(block.edge_x.to(sums.dtype), block))[:, columns]
        return sums.unsqueeze(1)

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        return own + sums


class _RGAT:
    """`RGATLayer`, with each edge type's weight before the sums."""

    divisible, edge_bytes, uses_degrees = True, 96, False
    own_array: str | None = None

    def __init__(self, layer: RGATLayer) -> None:
        self._layer, self.types, self.heads, self.width = layer, layer.types, layer.heads, layer.out_channels

    def stored(self, node_type: str) -> Mapping[str, int]:
        arrays: dict[str, int] = {}
        for number, edge_type in enumerate(self.types.edges):
            if edge_type[0] == node_type:
                arrays |= {f"x{number}": self.width, f"source_score{number}": 1}
            if edge_type[2] == node_type:
                arrays[f"destination_score{number}"] = 1
        return arrays

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        return tuple(
            (edge_type[0], f"{name}{number}")
            for number, edge_type in enumerate(self.types.edges)
            if edge_type[2] == destination
            for name in ("x", "source_score")
        )

    def beside(self, destination: str) -> tuple[str, ...]:
        return tuple(
            f"destination_score{number}" for number, each in enumerate(self.types.edges) if each[2] == destination
        )

    def own_columns(self, node_type: str) -> int:
        return self.heads * self.width if self._layer.concat else self.width

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        layer, rows = self._layer, {}
        for number, edge_type in enumerate(self.types.edges):
            if edge_type[0] == node_type:
                rows[f"x{number}"] = h = F.linear(x, layer.weight[number])
                by_head = h.view(-1, self.heads, self.width)
                rows[f"source_score{number}"] = (by_head * layer.source_attention[number]).sum(dim=2)
            if edge_type[2] == node_type:
                rows[f"destination_score{number}"] = F.linear(x, layer.destination_attention[number])
        return rows

    def own(self, node_type: str, x: Tensor) -> Tensor:
        rows: Tensor = self._layer.own[self.types.destinations.index(node_type)](x)
        return rows

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        shape = next(iter(blocks.values())).num_dst, len(panel.heads), len(panel.columns)
        sums = torch.zeros(shape)
        for number, edge_type in self.types.followed(blocks, destination):
            block, edge = blocks[edge_type], self._layer.edge[number]
            edge_scores = None
            if edge is not None:
                assert block.edge_x is not None
                edge_scores = edge(block.edge_x.to(sums.dtype))[:, panel.heads.start : panel.heads.stop]
            source = edge_type[0]
            sums += attention_by_head(
                block, sources[source, f"x{number}"], sources[source, f"source_score{number}"],
                beside[f"destination_score{number}"], edge_scores,
            )  # fmt: skip
        return sums

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        return own + (sums if self._layer.concat else sums.view(-1, self.heads, self.width).mean(dim=1))


class _HGT:
    """`HGTLayer`. A head's scores need all of its columns, so that panels are of whole heads."""

    divisible, edge_bytes, uses_degrees = False, 128, False
    own_array: str | None = None

    def __init__(self, layer: HGTLayer) -> None:
        self._layer, self.types, self.heads, self.width = layer, layer.types, layer.heads, layer.channels // layer.heads

    def stored(self, node_type: str) -> Mapping[str, int]:
        names = ["key", "value"] if any(edge_type[0] == node_type for edge_type in self.types.edges) else []
        return dict.fromkeys([*names, *self.beside(node_type)], self.width)

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        types = dict.fromkeys(edge_type[0] for edge_type in self.types.edges if edge_type[2] == destination)
        return tuple((name, array) for name in types for array in ("key", "value"))

    def beside(self, destination: str) -> tuple[str, ...]:
        return ("query",) if any(edge_type[2] == destination for edge_type in self.types.edges) else ()

    def own_columns(self, node_type: str) -> int:
        return self._layer.channels

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        layer, rows = self._layer, {}
        for name in self.stored(node_type):
            maps, types = {
                "key": (layer.key, layer.node_types),
                "value": (layer.value, layer.node_types),
                "query": (layer.query, self.types.destinations),
            }[name]
            rows[name] = maps[types.index(node_type)](x)
        return rows

    def own(self, node_type: str, x: Tensor) -> Tensor:
        return x

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        followed = self.types.followed(blocks, destination)
        if not followed:
            return torch.zeros(next(iter(blocks.values())).num_dst, len(panel.heads), self.width)
        parts = [blocks[edge_type] for _, edge_type in followed]
        heads = []
        for place, head in enumerate(panel.heads):
            one, query = slice(place, place + 1), beside["query"][:, place]
            scores = [
                edge_products(
                    (query @ self._layer.attention_weight[number, head].T).unsqueeze(1),
                    sources[edge_type[0], "key"][:, one],
                    blocks[edge_type],
                ) * self._layer.prior[number, head] / math.sqrt(self.width)
                for number, edge_type in followed
            ]  # fmt: skip
            shares = softmax_over_types(scores, parts)
            sums = [
                weighted_sums(sources[edge_type[0], "value"][:, one], share, block)[:, 0]
                @ self._layer.message_weight[number, head]
                for (number, edge_type), share, block in zip(followed, shares, parts, strict=True)
            ]
            heads.append(torch.stack(sums).sum(0))
        return torch.stack(heads, dim=1)

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        number = self.types.destinations.index(destination)
        share = self._layer.skip[number].sigmoid()
        rows: Tensor = share * self._layer.out[number](F.gelu(sums)) + (1 - share) * own
        return rows
