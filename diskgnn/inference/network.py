"""A trained model taken apart, as far as the rows that are asked for need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diskgnn.embeddings.disk_embeddings import DiskEmbedding
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.inference.followed_steps import FollowedSteps
from diskgnn.inference.layer_steps import ArrayName, LayerSteps, one_type_steps
from diskgnn.inference.net_digest import net_digest
from diskgnn.inference.own_steps import OwnSteps
from diskgnn.inference.typed_steps import typed_steps
from diskgnn.nn.between import Between
from diskgnn.nn.block_models import BlockModel, in_channels_of
from diskgnn.nn.relational_models import RelationalModel
from diskgnn.nn.typed_models import TypedModel
from diskgnn.specs.schema import EdgeType, edge_type_name

FLOAT_BYTES = 4


@dataclass(frozen=True)
class NetworkLayer:
    """One layer: how it is computed, and for whom."""

    steps: LayerSteps
    is_first: bool
    destinations: tuple[str, ...]  # node types whose rows are needed afterwards
    head: nn.Module | None  # applied to the rows that the last layer makes
    out_columns: int

    def edge_types(self, destination: str) -> tuple[EdgeType, ...]:
        """Returns the edge types into a node type."""
        return tuple(edge_type for edge_type in self.steps.types.edges if edge_type[2] == destination)

    @property
    def arrays(self) -> tuple[ArrayName, ...]:
        """Returns what the sums read."""
        found: dict[ArrayName, None] = {}
        for name in self.destinations:
            if self.edge_types(name):
                found |= dict.fromkeys(self.steps.sources(name))
                found |= dict.fromkeys((name, each) for each in self.steps.beside(name))
        return tuple(found)

    @property
    def node_types(self) -> tuple[str, ...]:
        """Returns the types whose rows the layer takes."""
        return tuple(dict.fromkeys([*self.destinations, *(name for name, _ in self.arrays)]))

    def columns(self, array: ArrayName) -> int:
        """Returns the columns of an array, for each head."""
        return self.steps.stored(array[0])[array[1]]

    @property
    def sum_columns(self) -> int:
        """Returns the columns of all heads' sums."""
        return self.steps.heads * self.steps.width

    def own_is_input(self, node_type: str, graph: Graph) -> bool:
        """Returns True if `own` is computed from the first rows again, as that reads no more than a file of it."""
        columns = self.steps.own_columns(node_type)
        if not self.is_first or not columns:
            return False
        file = graph.nodes[node_type].feature_file
        moved_bytes = columns * FLOAT_BYTES * (1 if self.steps.own_array else 2)
        return file is None or file.row_bytes <= moved_bytes

    def moved_bytes(self, graph: Graph) -> int:
        """Returns what the layer writes and reads, if each array is read once."""
        total = 0
        for node_type, name in self.arrays:
            columns = self.steps.heads * self.columns((node_type, name))
            total += 2 * FLOAT_BYTES * columns * graph.nodes[node_type].num_nodes
        for name in self.destinations:
            own_bytes = self.own_row_bytes(name, graph)
            total += (2 * FLOAT_BYTES * self.sum_columns + own_bytes) * graph.nodes[name].num_nodes
        return total

    def own_row_bytes(self, node_type: str, graph: Graph) -> int:
        """Returns what is written and read of `own` for each node, beside what sums read."""
        if self.own_is_input(node_type, graph):
            file = graph.nodes[node_type].feature_file
            return 0 if file is None else file.row_bytes
        return self.steps.own_columns(node_type) * FLOAT_BYTES * (1 if self.steps.own_array else 2)


@dataclass(frozen=True)
class Network:
    """The layers, and what comes before them. All but sums over edges works row by row."""

    layers: tuple[NetworkLayer, ...]
    node_type: str  # whose rows come out
    inputs: Mapping[str, nn.Module]  # by node type: features [n, D], or ids [n], to the first layer's rows
    digest: str  # of all weights

    @property
    def out_columns(self) -> int:
        """Returns the columns of the rows that come out."""
        return self.layers[-1].out_columns

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """Returns all that sums are over."""
        found = [each for layer in self.layers for name in layer.destinations for each in layer.edge_types(name)]
        return tuple(dict.fromkeys(found))

    def is_embedded(self, node_type: str) -> bool:
        """Returns True if the model has vectors of a node type in place of features."""
        return isinstance(self.inputs[node_type], nn.Embedding | DiskEmbedding)


def take_apart(net: nn.Module, graph: Graph, *, node_type: str, embeddings: bool) -> Network:
    """Returns what gives the rows of a node type.

    Args:
        net: as `make_model` or `make_typed_model` has it.
        graph: with the types that the model takes.
        node_type: whose rows to compute.
        embeddings: those that enter the last layer, or the head of a model that has one.

    Raises:
        ConfigError: the model is another one, or does not fit the graph, or has no such rows.
    """
    if isinstance(net, RelationalModel):
        raise ConfigError(
            "model: relational takes rows with their columns and the times of seeds, which `infer` does not have: use "
            "`predict`, with fanouts=[-1, ...] of all neighbours"
        )
    if not isinstance(net, BlockModel | TypedModel) or any(each.dtype != torch.float32 for each in net.parameters()):
        raise ConfigError(
            f"model: expected one of diskgnn's models, or a BlockModel of layers of your own, in float32, found "
            f"{type(net).__name__}; `predict` runs any module, with fanouts=[-1, ...] on all neighbours"
        )
    inputs = _checked_inputs(net, graph)
    choices = [_choices(layer, graph) for layer in net.layers]
    head = net.head if isinstance(net, TypedModel) else None
    if embeddings and head is None:
        choices.pop()
    if not choices:
        raise ConfigError("what: a model of one layer has no rows before its last layer; ask for logits")
    layers: list[NetworkLayer] = []
    needed: Sequence[str] = (node_type,)
    for number in reversed(range(len(choices))):
        is_last = number == len(net.layers) - 1
        known = choices[number][0].types.destinations
        if unknown := set(needed) - {*known}:
            raise ConfigError(
                f"node_type: the model has rows of {', '.join(known)} there, found {', '.join(sorted(unknown))}"
            )
        if isinstance(net, BlockModel) and not is_last:
            _check_width_after(net, number, choices[number][0])
        between = {} if is_last else _between(net, number, known)
        made = [
            _layer(
                FollowedSteps(steps, between) if between else steps, tuple(needed),
                head if is_last and not embeddings else None, is_first=number == 0,
            )
            for steps in choices[number]
        ]  # fmt: skip
        layers.insert(0, min(made, key=lambda layer: layer.moved_bytes(graph)))
        needed = layers[0].node_types
    return Network(tuple(layers), node_type, {name: inputs[name] for name in needed}, net_digest(net))


def _between(net: BlockModel | TypedModel, number: int, destinations: Sequence[str]) -> dict[str, Between]:
    """Returns what follows layer `number`, by type of its destinations."""
    found: Any = net.between[number]
    return dict(zip(destinations, found if isinstance(net, TypedModel) else [found], strict=True))


def _layer(steps: LayerSteps, destinations: tuple[str, ...], head: nn.Module | None, *, is_first: bool) -> NetworkLayer:
    with torch.no_grad():
        tried = _try_after(steps, destinations[0])
        out_columns = (tried if head is None else head(tried)).shape[1]
    return NetworkLayer(steps, is_first, destinations, head, out_columns)


def _try_after(steps: LayerSteps, name: str) -> Tensor:
    """Returns [1, columns] of the rows that they make."""
    return steps.after(name, torch.zeros(1, steps.own_columns(name)), torch.zeros(1, steps.heads * steps.width))


def _choices(layer: nn.Module, graph: Graph) -> list[LayerSteps]:
    """Returns the ways to compute a layer: the one that moves the fewest bytes is taken, the same whatever the
    memory."""
    if found := typed_steps(layer):
        return found
    node_type, edge_type = graph.only_nodes("this model").name, graph.only_edges("this model").type
    return one_type_steps(layer, node_type, edge_type) or [OwnSteps(layer, node_type, edge_type)]


def _checked_inputs(net: BlockModel | TypedModel, graph: Graph) -> dict[str, nn.Module]:
    """Returns, by node type, what comes before the first layer."""
    if isinstance(net, BlockModel):
        nodes = graph.only_nodes("this model")
        _check_width(nodes.name, in_channels_of(net.layers[0]), graph)
        return {nodes.name: nn.Identity()}
    inputs = dict(zip(net.node_types, net.inputs, strict=True))
    edge_types = {edge_type for types in net.types for edge_type in types.edges}
    if missing := sorted({*inputs} - {*graph.nodes}) + sorted(map(edge_type_name, edge_types - {*graph.edges})):
        raise ConfigError(f"model: {graph.manifest.path} has no {', '.join(missing)}, which the model takes")
    for name, layer in inputs.items():
        _check_width(name, layer.in_features if isinstance(layer, nn.Linear) else None, graph)
        if isinstance(layer, nn.Embedding | DiskEmbedding) and layer.num_embeddings != graph.nodes[name].num_nodes:
            raise ConfigError(
                f"model: it has vectors of {layer.num_embeddings} {name} nodes, {graph.manifest.path} has "
                f"{graph.nodes[name].num_nodes}: such a model knows the nodes that it was trained with only"
            )
    for edge_type, width in {
        pair for types in net.types for pair in zip(types.edges, types.edge_features, strict=True)
    }:
        file = graph.edges[edge_type].feature_file
        found = None if file is None else file.rows.num_features
        if width is not None and found != width:
            raise ConfigError(
                f"model: expected {edge_type_name(edge_type)} edges with {width} features, as it was trained on, found "
                f"{found or 'none'} in {graph.manifest.path}; give the graph that it was trained on, or train a "
                f"model on this one"
            )
    return inputs


def _check_width(node_type: str, width: int | None, graph: Graph) -> None:
    found = graph.nodes[node_type].config.num_features
    if found != width:
        raise ConfigError(
            f"model: expected {node_type} nodes with {width or 'no'} features, as it was trained on, found "
            f"{found or 'none'} in {graph.manifest.path}; give the graph that it was trained on, or one with the same "
            f"features, or train a model on this one (`diskgnn prepare`, then `diskgnn train`)"
        )


def _check_width_after(net: BlockModel, number: int, steps: LayerSteps) -> None:
    """Refuses a layer of another width than the next one takes: before a norm, which would fail with its own words."""
    with torch.no_grad():
        found = _try_after(steps, steps.types.destinations[0]).shape[1]
    following = net.layers[number + 1]
    if (wanted := in_channels_of(following)) != found:
        raise ConfigError(
            f"model: layer {number + 1} gives rows of {found} columns, and layer {number + 2} "
            f"({type(following).__name__}) has in_channels={wanted}: make them the same"
        )
