"""The model that a `ModelSpec` means for the minibatches of a source and a task."""

from __future__ import annotations

from torch import nn

from diskgnn.errors import ConfigError
from diskgnn.schema import SourceSchema
from diskgnn.training.decoders import make_decoder
from diskgnn.training.model_spec import ModelSpec
from diskgnn.training.models import BlockModel, make_model
from diskgnn.training.tasks import Task
from diskgnn.training.typed_models import TypedModel, make_typed_model


def model_for(spec: ModelSpec, schema: SourceSchema, task: Task) -> nn.Module:
    """The model by name, with new weights from torch's random numbers.

    Args:
        spec: with a name and a number of layers (`ModelSpec.fitted`).
        schema: of the minibatches.
        task: what for; a model for pairs of nodes has a `decoder`.

    Raises:
        ConfigError: the model cannot have this shape, or not for these minibatches.
    """
    assert spec.name is not None
    assert spec.num_layers is not None
    out_channels = task.out_channels or spec.hidden
    model: BlockModel | TypedModel
    if schema.is_typed:
        model = make_typed_model(spec, schema, out_channels)
    else:
        ((name, _, num_features),) = schema.node_types
        if num_features is None:
            raise ConfigError(f"model: {spec.name} needs features, and {name} nodes have none: convert with features")
        model = make_model(
            spec.name, num_features, spec.hidden, out_channels, spec.num_layers, heads=spec.heads, dropout=spec.dropout,
            aggregation=spec.aggregation, norm=spec.norm, skip=spec.skip,
        )  # fmt: skip
    if task.out_channels is None:
        decoder, outputs = spec.decoder_for(schema), schema.num_outputs
        model.decoder = make_decoder(decoder, out_channels, None if schema.target_kind == "link" else outputs)
    return model
