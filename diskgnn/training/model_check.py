"""Whether a model fits the minibatches and the task, tried before the first step."""

from __future__ import annotations

import torch
from torch import nn

from diskgnn.batch_source import BatchSource
from diskgnn.errors import ConfigError
from diskgnn.minibatch import Block
from diskgnn.training.models import parameter_dtype
from diskgnn.training.tasks import Task


def check_model(model: nn.Module, task: Task, source: BatchSource, device: torch.device) -> None:
    """Try `model`, on `device`, on a made-up minibatch of one seed, whose blocks all differ in size.

    Raises:
        ConfigError: it is deeper or shallower than `source`'s minibatches, takes another number of features, or
            returns something else than the task needs.
    """
    layers, was_training = source.num_layers, model.training
    blocks = tuple(
        Block(torch.arange(num_dst + 1, dtype=torch.int32), torch.full((num_dst,), num_dst, dtype=torch.int32),
              num_dst + 1).to(device)
        for num_dst in range(layers, 0, -1)
    )  # fmt: skip
    x = torch.zeros(layers + 1, source.num_features, dtype=parameter_dtype(model), device=device)
    expected = (
        f"a module that takes ({layers} blocks, x with {source.num_features} columns) and returns "
        f"{task.output(source)}, {layers} layers deep as the fanouts"
    )
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            shape = tuple(model(blocks, x).shape)
    except Exception as error:
        raise ConfigError(
            f"model: expected {expected}; found that it raises {type(error).__name__}: {error}"
        ) from error
    finally:
        model.train(was_training)
    if not task.accepts(shape, 1, source):
        raise ConfigError(f"model: expected {expected}; found shape {shape} for one seed")
