"""Models on graphs with several types of nodes and edges: R-GCN, R-GAT, HGT; and what these share with others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.embeddings.disk_embeddings import DiskEmbedding
from diskgnn.errors import ConfigError
from diskgnn.nn.between import Activation, between_layers
from diskgnn.nn.block_models import check_depth, elu_dropout, relu_dropout
from diskgnn.nn.layer_types import input_types, layer_types
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.nn.typed_layers import HGTLayer, RGATLayer, RGCNLayer, TypedBlocks
from diskgnn.specs.schema import SourceSchema


class TypedLayers(nn.Module):
    """Applies layers to typed blocks, outermost first, between maps into and out of their common width.

    Args:
        inputs: by node type, what makes rows [U, hidden] of the input nodes.
        layers: one for each block.
        hidden: columns of all rows between layers.
        activation, dropout, norm, skip: what follows every layer but the last, see `nn.between.Between`; each
            type of nodes has a norm of its own.
        head: applied to the rows of the last layer.
        follows_last: the same follows the last layer, too, before the head.
    """

    def __init__(
        self,
        inputs: Mapping[str, nn.Module],
        layers: Sequence[RGCNLayer | RGATLayer | HGTLayer],
        hidden: int,
        activation: Activation,
        dropout: float,
        *,
        norm: str = "none",
        skip: bool = False,
        head: nn.Module | None = None,
        follows_last: bool = False,
    ) -> None:
        super().__init__()
        self.node_types = tuple(inputs)
        self.inputs = nn.ModuleList(inputs.values())
        self.layers = nn.ModuleList(layers)
        self.types = tuple(layer.types for layer in layers)
        self.between = nn.ModuleList(
            between_layers([(hidden, hidden)] * len(types.destinations), norm, activation, dropout, skip=skip)
            for types in self.types[: len(layers) - (not follows_last)]
        )
        self.head = head
        self.decoder: nn.Module | None = None  # of link prediction

    def rows(self, blocks: Sequence[TypedBlocks], h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns rows of the seeds, by node type.

        Args:
            blocks: one for each layer, outermost first, each with all edge types.
            h: by node type, rows [U, hidden] of the input nodes.

        Returns:
            By type of the seeds: [B, out_channels].
        """
        for index, layer in enumerate(self.layers):
            after = blocks[index + 1] if index + 1 < len(blocks) else {}
            counts = {
                name: _num_rows(name, blocks[index], after, len(h[name])) for name in self.types[index].destinations
            }
            out = layer(blocks[index], h, counts)
            if index < len(self.between):
                between: Any = self.between[index]
                follow = dict(zip(self.types[index].destinations, between, strict=True))
                out = {name: follow[name](rows, h[name][: counts[name]]) for name, rows in out.items()}
            h = out
        return {name: rows if self.head is None else self.head(rows) for name, rows in h.items()}

    def check_types(self, blocks: Sequence[TypedBlocks], node_types: Collection[str]) -> None:
        """Refuses minibatches of another depth, or without types that the model takes.

        Raises:
            ConfigError: they are such.
        """
        check_depth(len(self.layers), len(blocks))
        edges = {edge_type for types in self.types for edge_type in types.edges}
        if missing := sorted({*self.node_types} - {*node_types}) + sorted(edges - {*blocks[0]}):
            raise ConfigError(f"model takes types that the minibatch does not have: {missing}; make one for its graph")


class TypedModel(TypedLayers):
    """Takes (blocks, x): features [U, D] of the input nodes by type, or their ids [U], which `inputs` make rows of."""

    def forward(self, blocks: Sequence[TypedBlocks], x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns rows of the seeds, by node type.

        Args:
            blocks: one for each layer, outermost first, each with all edge types.
            x: as `model_output.model_input` has it: features [U, D], or ids [U] where a type has none.

        Returns:
            By type of the seeds: [B, out_channels].

        Raises:
            ConfigError: there are more or fewer blocks than layers, other types, or x has another width.
        """
        self.check_types(blocks, x)
        self._check_widths(x)
        h = {name: layer(x[name]) for name, layer in zip(self.node_types, self.inputs, strict=True)}
        return self.rows(blocks, h)

    def _check_widths(self, x: Mapping[str, Tensor]) -> None:
        for name, layer in zip(self.node_types, self.inputs, strict=True):
            wanted = layer.in_features if isinstance(layer, nn.Linear) else None
            found = x[name].shape[1] if x[name].dim() == 2 else None
            if wanted != found:
                raise ConfigError(
                    f"model takes {name} nodes with {wanted or 'no'} features, minibatch has {found or 'none'}; "
                    "make one for its graph"
                )


def _num_rows(name: str, blocks: TypedBlocks, after: TypedBlocks, num_src: int) -> int:
    """Destinations of a node type. One without edges into it is what the next layer takes, or all seeds."""
    for edge_type, block in blocks.items():
        if edge_type[2] == name:
            return block.num_dst
    return next((block.num_src for edge_type, block in after.items() if edge_type[0] == name), num_src)


def make_typed_model(spec: ModelSpec, schema: SourceSchema, out_channels: int) -> TypedModel:
    """Makes a model that takes (blocks, x) by type and gives rows of the seeds by type.

    Args:
        spec: with a name for typed graphs and a number of layers. R-GAT and HGT need a hidden width that is a multiple
            of their heads.
        schema: of the minibatches.
        out_channels: columns of the output.

    Raises:
        ConfigError: heads do not divide the width.
    """
    assert spec.num_layers is not None
    if spec.name != "rgcn":
        spec.check_heads()
    types = layer_types(schema, spec.num_layers)
    inputs = _inputs(spec, schema)
    hidden, last, norm = spec.hidden, len(types) - 1, spec.norm or "none"
    if spec.name == "rgcn":
        convolutions = [
            RGCNLayer(hidden, out_channels if number == last else hidden, each, spec.num_bases)
            for number, each in enumerate(types)
        ]
        return TypedModel(inputs, convolutions, hidden, relu_dropout, spec.dropout, norm=norm, skip=spec.skip)
    if spec.name == "rgat":
        attentions = [RGATLayer(hidden, hidden // spec.heads, spec.heads, each) for each in types[:-1]]
        attentions.append(RGATLayer(hidden, out_channels, spec.heads, types[-1], concat=False))
        return TypedModel(inputs, attentions, hidden, elu_dropout, spec.dropout, norm=norm, skip=spec.skip)
    transformers = [HGTLayer(hidden, spec.heads, each, each.sources) for each in types]
    return TypedModel(
        inputs, transformers, hidden, F.dropout, spec.dropout, norm=norm, skip=spec.skip,
        head=nn.Linear(hidden, out_channels),
    )  # fmt: skip


def _inputs(spec: ModelSpec, schema: SourceSchema) -> dict[str, nn.Module]:
    """Returns a linear map of features into the common width, or a vector for each node without, of all types that
    count."""
    assert spec.num_layers is not None
    inputs: dict[str, nn.Module] = {}
    for name, nodes, width in input_types(schema, spec.num_layers):
        if width is not None:
            inputs[name] = nn.Linear(width, spec.hidden)
        elif spec.embeddings == "disk":
            inputs[name] = DiskEmbedding(name, nodes, spec.hidden)
        else:
            inputs[name] = table = nn.Embedding(nodes, spec.hidden, sparse=True)
            with torch.no_grad():
                table.weight.normal_(std=spec.hidden**-0.5)
    return inputs
