"""Opens what training and evaluation read: sources that are given, or `Loader`s of a packed directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

import torch

from diskgnn.batches.batch_source import BatchSource, minibatches, schema_of
from diskgnn.batches.minibatch import labels_of
from diskgnn.errors import ConfigError
from diskgnn.formats.packed import Packed
from diskgnn.formats.rank_directories import open_rank
from diskgnn.loading.loader import Loader
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.paths import PathLike
from diskgnn.specs.shard import Shard
from diskgnn.training.meaning import check_classes, check_features
from diskgnn.training.ranks import Ranks

# By split: opens the source. One that reads a packed directory holds memory only while it is open.
Evaluations = Mapping[str, Callable[[], AbstractContextManager[BatchSource]]]


def open_loader(packed: PathLike | Packed, split: str, device: torch.device, options: LoaderOptions | None) -> Loader:
    """Opens a `Loader` over one split of a packed directory, for the caller to close.

    Raises:
        ArtifactError, ConfigError: see `Loader`.
    """
    return Loader.with_options(packed, split, device, options or LoaderOptions())


def open_sources(
    train_source: BatchSource | PathLike,
    given: Mapping[str, BatchSource | None],
    device: torch.device,
    options: LoaderOptions | None,
    opened: ExitStack,
    shard: Shard | None = None,
) -> tuple[BatchSource, Evaluations]:
    """Opens the source to train on, and says how to open those to evaluate on.

    Args:
        train_source: as `diskgnn.train` takes it; of a packed directory, all splits are used.
        given: sources to evaluate on, by split; they replace those of a packed directory.
        device: where a `Loader` delivers minibatches.
        options: of these `Loader`s.
        opened: closes the train source, if it was opened here.
        shard: which rank of several this process is.

    Raises:
        ArtifactError: not a packed directory.
        ConfigError: sources that do not fit each other.
    """
    evaluations: dict[str, Callable[[], AbstractContextManager[BatchSource]]] = {}
    if isinstance(train_source, (str, os.PathLike)):
        # Once: all splits are of one preparation, also if another replaces it.
        packed = open_rank(train_source, shard, stream=options is not None and options.stream)
        for split in packed.config.splits:
            if split != "train":
                evaluations[split] = partial(open_loader, packed, split, device, options)
        train_source = opened.enter_context(open_loader(packed, "train", device, options))
    elif not hasattr(train_source, "epoch"):
        raise ConfigError(
            f"train_source: expected a packed directory that `diskgnn prepare` made, or minibatches such as a "
            f"diskgnn.Loader, found {train_source!r:.80}"
        )
    for split, source in given.items():
        if source is None:
            continue
        _check_alike(f"{split}_source", train_source, source)
        evaluations[split] = partial(_kept_open, source)
    return train_source, evaluations


def _check_alike(name: str, train: BatchSource, other: BatchSource) -> None:
    """Refuse a source that a model of the train source's minibatches cannot be evaluated on."""
    schema, found = schema_of(train), schema_of(other)
    for what, wanted, there in (
        ("num_layers", train.num_layers, other.num_layers),
        ("features", dict(schema.num_features), dict(found.num_features)),
        ("edge features", dict(schema.num_edge_features), dict(found.num_edge_features)),
        ("target", schema.target, found.target),
        ("target kind", schema.target_kind, found.target_kind),
        ("outputs", schema.num_outputs, found.num_outputs),
    ):
        if wanted != there:
            raise ConfigError(f"{name}: expected {what}={wanted} as in training, found {there}")
    check_features("the train source", schema, found.known_columns, name)
    check_classes("the train source", schema, found, name)


def check_epochs(source: BatchSource, epochs: int) -> None:
    """Refuse to train for more epochs than the source says that it has (`max_epochs` of `FreshEpochs`).

    Raises:
        ConfigError: it has fewer.
    """
    most: int | None = getattr(source, "max_epochs", None)
    if most is not None and epochs > most:
        raise ConfigError(
            f"epochs: {type(source).__name__} was made with num_epochs={most}, found epochs={epochs}: make it with "
            f"num_epochs={epochs}, or train {most} epochs"
        )


def classes_in(opened: Callable[[], AbstractContextManager[BatchSource]], ranks: Ranks) -> set[int]:
    """Returns the classes of the seeds of all ranks' sources; of many, some: a rank reads until it has found two."""

    def seen() -> set[int]:
        found: set[int] = set()
        with opened() as source, minibatches(source, 0) as batches:
            for batch in batches:
                found.update(torch.unique(labels_of(batch)).tolist())
                if len(found) > 1:
                    break
        return found

    return set().union(*ranks.gathered(ranks.in_all(seen)))


def _kept_open(source: BatchSource) -> AbstractContextManager[BatchSource]:
    return nullcontext(source)
