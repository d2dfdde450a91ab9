"""Tasks say what the seeds are for: the loss that training lowers, and the scores that evaluation reports.

The trainer, the evaluation, the choice of the best epoch, the check of a model's output and the trial of a GPU's memory
all ask the task. Which one it is follows from what the minibatches are for (`SourceSchema.target_kind`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diskgnn.batches.minibatch import AnyBatch
from diskgnn.errors import ConfigError
from diskgnn.specs.schema import NO_LABELS, SourceSchema
from diskgnn.training.link_prediction import LinkPrediction
from diskgnn.training.node_tasks import MultiLabel, NodeClassification, Regression

_KINDS = {"classification": "class", "multilabel": "multilabel", "regression": "regression", "link": "link"}
TASKS = tuple(_KINDS)


class Tally(Protocol):
    """Adds up how well a model does, minibatch by minibatch, without waiting for the device."""

    num_seeds: int  # nodes, or edges to predict

    def add(self, outputs: Any, batch: AnyBatch) -> None:
        """Count the task's `outputs` for one minibatch."""
        ...

    def merge(self, other: Any) -> None:
        """Count what another tally of the same task has counted, in another rank, after what this one has."""
        ...

    def loss(self) -> float:
        """Returns the mean over all seeds."""
        ...

    def scores(self) -> dict[str, float]:
        """Returns every score by its name; those of the task's `metrics` are among them, where they can be computed."""
        ...


class Task(Protocol):
    """Says what the seeds are for."""

    @property
    def name(self) -> str:
        """Returns what a checkpoint says that its model was trained for."""
        ...

    @property
    def loss_name(self) -> str:
        """Returns the name of what training lowers."""
        ...

    @property
    def metrics(self) -> Mapping[str, bool]:
        """Returns the scores by which the best epoch can be chosen, and whether a higher one is better. The first one
        is what it is chosen by unless another is asked for."""
        ...

    @property
    def out_channels(self) -> int | None:
        """Returns how many columns the model returns for each seed; None: as many as it has hidden ones."""
        ...

    def output(self) -> str:
        """Says in words what a model has to return."""
        ...

    def outputs(self, net: nn.Module, batch: AnyBatch) -> Any:
        """Returns what the model says of a minibatch, from which `loss` and tallies are computed."""
        ...

    def accepts(self, outputs: Any, num_seeds: int) -> bool:
        """Returns True if these may be the outputs for a minibatch of so many seeds."""
        ...

    def loss(self, outputs: Any, batch: AnyBatch) -> Tensor:
        """Returns [] the mean over the minibatch, to be differentiated."""
        ...

    def tally(self, device: torch.device) -> Tally:
        """Makes a new tally, of nothing yet."""
        ...


def task_of(schema: SourceSchema, name: str | None = None, loss: str | None = None) -> Task:
    """Returns the task that minibatches of `schema` are for.

    Args:
        schema: of a source.
        name: one of TASKS, to make sure; by default what the minibatches are for.
        loss: one that the task has; its usual one by default.

    Raises:
        ConfigError: the minibatches are for another task, or the task has no such loss.
    """
    if schema.target_kind == NO_LABELS:
        raise ConfigError(f"{schema.target} nodes have no labels: nothing to train or to score a model on")
    if name is not None and name not in TASKS:
        raise ConfigError(f"task: expected one of {', '.join(TASKS)}, found {name!r}")
    found = next(task for task, kind in _KINDS.items() if kind == schema.target_kind)
    if name not in (None, found):
        raise ConfigError(f"task: expected {found}, which the minibatches were sampled for, found {name}")
    if found == "link":
        assert not isinstance(schema.target, str)
        return LinkPrediction(schema.target, loss or "auto")
    of_pairs = not isinstance(schema.target, str)
    if found == "regression":
        return Regression(schema.num_outputs, loss or "mse", of_pairs=of_pairs)
    kind = NodeClassification if found == "classification" else MultiLabel
    task = kind(schema.num_outputs, of_pairs=of_pairs)
    if loss not in (None, task.loss_name):
        raise ConfigError(f"loss: expected {task.loss_name}, the one that {found} has, found {loss}")
    return task


def saved_task(config: Mapping[str, Any]) -> Task:
    """Returns the task of a run of training whose config is this.

    Raises:
        ConfigError: it is a task of the user's own.
    """
    task = task_of(SourceSchema.of_record(config["schema"]))
    if task.name != config["task"]:
        raise ConfigError(f"task: the model was trained for a task of your own, {config['task']!r}: pass that one")
    return task_of(SourceSchema.of_record(config["schema"]), loss=config["loss"])
