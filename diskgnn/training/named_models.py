"""The model that a `ModelSpec` means for the minibatches of a source and a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from diskgnn.batches.batch_source import BatchSource, schema_of
from diskgnn.errors import ConfigError
from diskgnn.nn.block_models import BlockModel, one_type_model
from diskgnn.nn.decoders import make_decoder
from diskgnn.nn.hop_models import HopModel, make_hop_model
from diskgnn.nn.model_spec import RELATIONAL, ModelOptions, ModelSpec
from diskgnn.nn.relational_models import RelationalModel
from diskgnn.nn.typed_models import TypedLayers, make_typed_model
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.schema import SourceSchema
from diskgnn.training.task import Task, task_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options(ModelOptions, ModelSpec)
def named_model(source: BatchSource, name: str | None = None, **shape: Unpack[ModelOptions]) -> nn.Module:
    """Makes a built-in model that fits the minibatches of a source, with new weights from torch's random numbers.

    Args:
        source: a `Loader`, `FreshEpochs`, or another source of minibatches.
        name: 'sage', 'gat' or 'gcn'; on a graph with several types 'rgcn', 'rgat' or 'hgt'; on either 'relational'; of
            hop features 'sign', 'sgc' or 'sehgnn'; the first by default, along paths of edge types 'sehgnn'.
        shape: fields of `ModelSpec`, such as `hidden` and `dropout`.

    Returns:
        A module that takes (`batch.blocks`, `model_input(batch)`) and returns rows of the seeds: [B, classes] logits,
        numbers or labels; a vector [B, hidden] for each seed of pairs; by type of the seeds on a graph with types. Of
        hop features it takes `batch.x`, and has the statistics of the source's train records. 'relational' takes
        `batch`.

    Raises:
        ConfigError: the model cannot have this shape, or not for these minibatches.

    Example:
        >>> model = named_model(loader, hidden=64, dropout=0.0)
        >>> logits = model(batch.blocks, model_input(batch))
    """
    schema = schema_of(source)
    spec = fitted_to(ModelSpec(name, **shape), source)
    return with_statistics(model_for(spec, schema, task_of(schema)), source)


def fitted_to(spec: ModelSpec, source: BatchSource) -> ModelSpec:
    """Returns the same with what the minibatches of `source` ask for, see `ModelSpec.fitted`.

    Raises:
        ConfigError: see there; or a model of times, for minibatches that were drawn by times that nobody kept.
    """
    schema, sampling = schema_of(source), getattr(source, "sampling", None)
    spec = spec.fitted(schema, source.num_layers)
    has_times = sampling is not None and sampling["temporal"] in ("uniform", "last")
    if spec.name == RELATIONAL and has_times and schema.timed is None:
        raise ConfigError(
            "model: relational takes how long before its seed each row was, and these minibatches, which were drawn by "
            "their times, do not have them: prepare again with keep_times=True (`diskgnn prepare --keep-times`)"
        )
    return spec


def with_statistics(model: nn.Module, source: BatchSource) -> nn.Module:
    """Returns `model`, a built-in one, which standardises hop features by the train records that `source` is of."""
    if isinstance(model, HopModel):
        statistics: Any = source
        model.standardise(*statistics.statistics())
    return model


def model_for(spec: ModelSpec, schema: SourceSchema, task: Task) -> nn.Module:
    """Makes the model by name, with new weights from torch's random numbers.

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
    model: BlockModel | TypedLayers
    if schema.segments:
        assert task.out_channels is not None  # there are no pairs
        return make_hop_model(spec, schema.segments, task.out_channels)
    if spec.name == RELATIONAL:
        model = RelationalModel(spec, schema, out_channels)
    elif schema.is_typed:
        model = make_typed_model(spec, schema, out_channels)
    else:
        ((name, _, num_features),) = schema.node_types
        if num_features is None:
            raise ConfigError(f"model: {spec.name} needs features, and {name} nodes have none: convert with features")
        model = one_type_model(spec, num_features, out_channels)
    if task.out_channels is None:
        decoder, outputs = spec.decoder_for(schema), schema.num_outputs
        model.decoder = make_decoder(decoder, out_channels, None if schema.target_kind == "link" else outputs)
    return model
