"""What is asked of a model: arguments of `infer` and `predict`, with nothing left to choose."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.inference.prediction_files import check_what
from diskgnn.nn.block_models import BlockModel
from diskgnn.nn.hop_models import HopModel
from diskgnn.nn.typed_models import TypedLayers
from diskgnn.paths import PathLike
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import ClassValue, EdgeType, edge_type_name, parse_edge_type
from diskgnn.training.checkpoints import check_applied_to, load_checkpoint, load_model


@dataclass(frozen=True)
class Asked:
    """Arguments about the model, with nothing left to choose."""

    net: nn.Module
    what: str
    kind: str  # what the model is for
    node_type: str
    before_last: bool  # rows that enter the last layer or the head
    classes: tuple[ClassValue, ...] | None = None  # what classes 0, 1, ... are called; None: by these numbers


def asked_of(
    source: object,
    kinds: Mapping[str, str | None],
    model: nn.Module | PathLike,
    what: str | None,
    node_type: str | None,
    classes: Mapping[str, tuple[ClassValue, ...] | None],
    columns: Mapping[str | EdgeType, tuple[FeatureColumn, ...] | None],
) -> Asked:
    """Returns what `infer` and `predict` are asked for.

    Args:
        source: the path of the graph or packed directory, for messages.
        kinds: for each node type that there is, its labels (of `specs.schema.TARGET_KINDS`); None where it has none.
        model, what, node_type: as they take them.
        classes: for each node type, what the classes of its labels are called; a checkpoint says it itself.
        columns: of each type that has features, see `SourceSchema.known_columns`.

    Raises:
        ConfigError: for what the graph or the model does not have.
    """
    if node_type is not None and node_type not in kinds:
        raise ConfigError(
            f"node_type: expected one of {', '.join(kinds)}, found {node_type!r}{near_name(node_type, kinds)}"
        )
    kind: str | None = None
    called: tuple[ClassValue, ...] | None = None
    config: Mapping[str, Any] | None = None  # of the checkpoint
    types: tuple[str, ...]
    if isinstance(model, nn.Module):
        net, types = model, tuple(kinds)
        if isinstance(net, TypedLayers):
            types = net.types[-1].destinations
        if any(each.device.type != "cpu" for each in net.parameters()):
            net = copy.deepcopy(net).cpu()
        if getattr(net, "decoder", None) is not None:
            kind = "link"
    else:
        net, config = load_model(model), load_checkpoint(model)["config"]
        schema = config["schema"]
        target = schema["target"]
        kind = schema["target_kind"] if isinstance(target, str) else "link"  # whose rows of nodes are vectors
        called = schema.get("classes")
        types = (target,) if isinstance(target, str) else tuple(dict.fromkeys((target[0], target[2])))
        if not isinstance(net, TypedLayers) and not (isinstance(net, HopModel) and net.has_paths):
            types = tuple(kinds)  # whatever the graph calls it
    if node_type is None:
        if len(types) != 1:
            raise ConfigError(f"node_type: the model has rows of {', '.join(types)}; name one of them")
        (node_type,) = types
    if node_type not in kinds:
        raise ConfigError(
            f"{_model_words(model)} is for nodes of type {node_type}; {source} has only {', '.join(kinds)}: give what "
            f"was made from a graph with the types that it was trained on, or train a model on this one"
        )
    if config is not None and not isinstance(model, nn.Module):
        check_applied_to(model, config, columns, source)
    if kind is None:
        kind, called = kinds[node_type] or "class", classes.get(node_type)
    if what is None:
        what = "embeddings" if kind == "link" else "logits"
    check_what(what, kind)
    return Asked(net, what, kind, node_type, before_last=what == "embeddings" and kind != "link", classes=called)


def _model_words(model: nn.Module | PathLike) -> str:
    return "the model" if isinstance(model, nn.Module) else f"the model in {model}"


def kinds_of(graph: Graph) -> dict[str, str | None]:
    """Returns what the labels of each node type are."""
    targets = {name: nodes.config.target for name, nodes in graph.nodes.items()}
    return {name: None if target is None else target.kind for name, target in targets.items()}


def classes_of(graph: Graph) -> dict[str, tuple[ClassValue, ...] | None]:
    """Returns what the classes of each node type are called; None where they are called by their numbers."""
    targets = {name: nodes.config.target for name, nodes in graph.nodes.items()}
    return {name: None if target is None else target.classes for name, target in targets.items()}


def pair_model(
    graph: Graph, model: nn.Module | PathLike, edge_type: EdgeType | str | None
) -> tuple[nn.Module, EdgeType, str, tuple[ClassValue, ...] | None]:
    """Returns a model of pairs of nodes, the type of the edges that these are or may be, what their labels are, or
    'link', and what classes are called.

    Raises:
        ConfigError: it is for something else, or for edges that the graph has not; or a module of which nobody says for
            which edges.
    """
    trained_for: EdgeType | None = None
    config: Mapping[str, Any] | None = None
    kind, classes = "link", None
    if isinstance(model, nn.Module):
        net = model
    else:
        net, config = load_model(model), load_checkpoint(model)["config"]
        schema = config["schema"]
        target, kind, classes = schema["target"], schema["target_kind"], schema.get("classes")
        if isinstance(target, str):
            raise ConfigError(f"pairs: the model in {model} was trained for {target} nodes, not for links")
        trained_for = parse_edge_type(target)
    if edge_type is None and trained_for is None:
        raise ConfigError("edge_type: expected the type of the pairs, as the model is a module")
    found = parse_edge_type(edge_type or trained_for)
    if edge_type is None and found not in graph.edges:
        raise ConfigError(
            f"{_model_words(model)} is for pairs of type {edge_type_name(found)}; {graph.manifest.path} has only "
            f"{', '.join(map(edge_type_name, graph.edges))}: give a graph with the types that it was trained on, or "
            "train a model on this one"
        )
    if config is not None and not isinstance(model, nn.Module):
        check_applied_to(model, config, graph.config.known_columns, graph.manifest.path)
    return net, found, kind, classes


def fanouts_of(net: nn.Module, fanouts: Fanouts | None) -> Fanouts:
    """Returns `fanouts`, or all neighbours in each layer of the model.

    Raises:
        ConfigError: nobody says how many layers a module has.
    """
    if fanouts is not None:
        return fanouts
    if not isinstance(net, BlockModel | TypedLayers):
        raise ConfigError("fanouts: expected one for each layer of the module, such as [-1, -1], found none")
    return [-1] * len(net.layers)
