"""Opens what training and evaluation read: sources that are given, or loaders of a packed or a hops directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial

import torch

from diskgnn.batches.batch_source import BatchSource, minibatches, schema_of
from diskgnn.batches.minibatch import labels_of
from diskgnn.errors import ConfigError
from diskgnn.formats.hops import Hops, is_hops
from diskgnn.formats.packed import Packed
from diskgnn.formats.rank_directories import open_rank
from diskgnn.loading.hops_loader import HopsLoader
from diskgnn.loading.hops_options import HopsOptions
from diskgnn.loading.loader import Loader
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.paths import PathLike
from diskgnn.specs.shard import Shard
from diskgnn.stores.locations import local
from diskgnn.training.meaning import check_classes, check_features
from diskgnn.training.ranks import Ranks

# By split: opens the source. One that reads a directory holds memory only while it is open.
Evaluations = Mapping[str, Callable[[], AbstractContextManager[BatchSource]]]


def open_loader(
    directory: PathLike | Packed | Hops,
    split: str,
    device: torch.device,
    options: LoaderOptions | HopsOptions | None,
    shard: Shard | None = None,
) -> Loader | HopsLoader:
    """Opens a source over one split of a packed or a hops directory, for the caller to close.

    Args:
        directory: a path, or what `open_directory` has opened.
        split: train, valid or test.
        device: where minibatches are delivered.
        options: of the source: LoaderOptions of a packed directory, HopsOptions of a hops directory.
        shard: which rank of several this process is, of a hops directory; by default what torchrun says.

    Raises:
        ArtifactError, ConfigError: see `Loader` and `HopsLoader`; options that are those of the other one.
    """
    if not isinstance(directory, Packed | Hops):
        directory = open_directory(directory, shard, options)
    wanted: type[LoaderOptions | HopsOptions] = LoaderOptions if isinstance(directory, Packed) else HopsOptions
    if not isinstance(options, wanted | None):
        what = "a packed" if isinstance(directory, Packed) else "a hops"
        raise ConfigError(
            f"loader_options: expected {wanted.__name__} for {what} directory, found {type(options).__name__}"
        )
    if isinstance(directory, Packed):
        assert not isinstance(options, HopsOptions)
        return Loader.with_options(directory, split, device, options or LoaderOptions())
    assert not isinstance(options, LoaderOptions)
    return HopsLoader.with_options(directory, split, device, options or HopsOptions(), shard)


def open_directory(path: PathLike, shard: Shard | None, options: LoaderOptions | HopsOptions | None) -> Packed | Hops:
    """Opens a packed directory, that of a rank in a folder of several, or a hops directory.

    Raises:
        ArtifactError, ConfigError: it is none of them; see `open_rank`.
    """
    if is_hops(path):
        return Hops.open(local(path, "training on hops"))
    return open_rank(path, shard, stream=isinstance(options, LoaderOptions) and options.stream)


def open_sources(
    train_source: BatchSource | PathLike,
    given: Mapping[str, BatchSource | None],
    device: torch.device,
    options: LoaderOptions | HopsOptions | None,
    opened: ExitStack,
    shard: Shard | None = None,
    seed: int = 0,
) -> tuple[BatchSource, Evaluations]:
    """Opens the source to train on, and says how to open those to evaluate on.

    Args:
        train_source: as `diskgnn.train` takes it; of a directory, all splits are used.
        given: sources to evaluate on, by split; they replace those of a directory.
        device: where sources that are opened here deliver minibatches.
        options: of these.
        opened: closes the train source, if it was opened here.
        shard: which rank of several this process is.
        seed: of the order of minibatches, where a directory leaves it open and `options` do not say it.

    Raises:
        ArtifactError: neither a packed nor a hops directory.
        ConfigError: sources that do not fit each other.
    """
    evaluations: dict[str, Callable[[], AbstractContextManager[BatchSource]]] = {}
    if isinstance(train_source, (str, os.PathLike)):
        # Once: all splits are of one preparation, also if another replaces it.
        directory = open_directory(train_source, shard, options)
        if isinstance(directory, Packed):
            splits = [*directory.config.splits]
        else:
            splits = [split for split, count in directory.config.num_rows.items() if count]
            if options is None or (isinstance(options, HopsOptions) and options.shuffle_seed is None):
                options = replace(options or HopsOptions(), shuffle_seed=seed)
        for split in splits:
            if split != "train":
                evaluations[split] = partial(open_loader, directory, split, device, options, shard)
        source: BatchSource
        source = loader = open_loader(directory, "train", device, options, shard)
        opened.enter_context(loader)
    else:
        require_minibatches("train_source", train_source)
        source = train_source
    for split, other in given.items():
        if other is None:
            continue
        _check_alike(f"{split}_source", source, other)
        evaluations[split] = partial(_kept_open, other)
    return source, evaluations


def require_minibatches(argument: str, source: object) -> None:
    """Raises ConfigError for what is no `BatchSource`."""
    if not hasattr(source, "epoch"):
        raise ConfigError(
            f"{argument}: expected a directory that `diskgnn prepare` or `diskgnn propagate` made, or minibatches "
            f"such as a diskgnn.Loader, found {source!r:.80}"
        )


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
        ("segments", schema.segments, found.segments),
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
