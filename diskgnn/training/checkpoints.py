"""Checkpoints of training: one file of tensors and plain containers, replaced atomically.

`DIRECTORY/checkpoint.pt` is written by `torch.save`; `torch.load(..., weights_only=True)` reads it. Its keys:
format, version, config (what the run was started with, as `schema` what minibatches hold and what their features mean,
and as `sampling` how they were drawn, None if the source does not say), position (epoch, batch, the train source's
state), epoch_so_far (losses, seconds and counters of the epoch that is under way), history (one dict per finished
epoch), model and optimizer (state dicts), rng (torch's, of the CPU and of the CUDA device if one is used), other_ranks
(of several: position, epoch_so_far and rng of ranks 1, 2, ..., those above being rank 0's), and best (epoch and model
state of the best validation score, or None). Where vectors of nodes lie on disk, embeddings says which state of
them it is (see `disk_embeddings`).
"""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diskgnn.embeddings.disk_embeddings import DiskEmbeddings
from diskgnn.errors import ArtifactError, ConfigError, DataWarning, DiskGNNError, callers_level
from diskgnn.files import faults
from diskgnn.files.file_reading import buffered, raise_if_disk_failed
from diskgnn.files.locks import hold_lock
from diskgnn.files.own_files import open_new_file
from diskgnn.formats.artifacts import CHECKPOINT, MANIFEST
from diskgnn.formats.manifest import read_manifest
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.paths import PathLike
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.schema import NO_LABELS, TARGET_KINDS, EdgeType, SourceSchema
from diskgnn.stores.locations import local
from diskgnn.training.meaning import check_classes, check_features, differing_facts
from diskgnn.training.named_models import model_for
from diskgnn.training.result_files import writing
from diskgnn.training.task import Task, saved_task

FORMAT, VERSION = "diskgnn.checkpoint", 5
_PARTS = {"config": dict, "position": dict, "epoch_so_far": dict, "history": list, "model": dict, "optimizer": dict,
          "rng": dict}  # fmt: skip
FILE = CHECKPOINT


def checkpoint_exists(directory: PathLike) -> bool:
    """Returns True if `directory` holds a checkpoint."""
    return (Path(directory) / FILE).exists()


def save_checkpoint(directory: PathLike, content: Mapping[str, Any]) -> Path:
    """Write `content` as the checkpoint in `directory`; the one before stays whole until this one is durable.

    Raises:
        ConfigError, DiskFullError: see `writing`.
    """
    directory = Path(directory)
    temporary = directory / f".{FILE}.partial"
    with writing(directory / FILE, "checkpoint"):
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with open_new_file(temporary) as file:
                torch.save({"format": FORMAT, "version": VERSION, **content}, file)
                faults.point("checkpoint.sync")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(directory / FILE)
        except OSError:
            with suppress(OSError):  # a full disk needs the room
                temporary.unlink()
            raise
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return directory / FILE


@contextmanager
def training_alone(directory: PathLike) -> Iterator[None]:
    """Keeps other processes from training with the checkpoint in `directory` within the block; the directory is there.

    Raises:
        BusyError: another one does now.
    """
    busy = (
        f"another process trains with the checkpoint in {directory} now; wait for it, stop it, or choose another "
        f"directory"
    )
    with hold_lock(Path(directory) / ".training.lock", Path(directory), busy):
        yield


def load_checkpoint(directory: PathLike) -> dict[str, Any]:
    """Reads the checkpoint in `directory`, all tensors on the CPU. No code in the file is run.

    Raises:
        ConfigError: `directory` is no path.
        ArtifactError: there is none, or it is damaged, foreign, or of another version.
        ReadError: the disk failed.
    """
    if not isinstance(directory, str | os.PathLike):
        raise ConfigError(f"expected the directory that `train` was given as `checkpoint`, found {directory!r:.80}")
    path = local(directory, "a checkpoint") / FILE
    if not path.is_file():
        if (path.parent / MANIFEST).is_file():
            raise ArtifactError(
                f"expected the directory that `train` was given as `checkpoint`, found {path.parent}, a directory of "
                f"{read_manifest(path.parent).format}: are the arguments in another order than they are meant?"
            )
        raise ArtifactError(f"{path} is not there: train with checkpoint={str(directory)!r} first")
    try:
        with buffered(path) as file:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
            if damaged is not None:
                raise ArtifactError(f"{path} is damaged (checksum of {damaged}); remove it and train again")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise_if_disk_failed(error, path)
        raise ArtifactError(f"{path} is damaged or no checkpoint ({error}); remove it and train again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ArtifactError(f"{path} is no diskgnn checkpoint; choose another directory")
    if content.get("version") != VERSION:
        raise ArtifactError(
            f"{path} has checkpoint version {content.get('version')}; this diskgnn reads version {VERSION}: "
            f"go on with the diskgnn that wrote it, or train again"
        )
    with changes_named(directory):
        _require_parts(content)
    return content


@contextmanager
def changes_named(directory: PathLike) -> Iterator[None]:
    """Makes use of a checkpoint whose checksums fit within the block: what is wrong with it then was put there.

    Raises:
        ArtifactError: something is wrong.
    """
    try:
        yield
    except (DiskGNNError, torch.cuda.OutOfMemoryError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"the checkpoint in {directory} is not what training wrote ({type(error).__name__}: {error!s:.200}); "
            f"take another one, or train again"
        ) from error


def _require_parts(content: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError for a checkpoint without what each has."""
    for key, kind in _PARTS.items():
        if not isinstance(content[key], kind):
            raise TypeError(f"{key} is no {kind.__name__}")
    for key, value in {"embeddings": content.get("embeddings"), "best": content["best"]}.items():
        if value is not None and not isinstance(value, dict):
            raise TypeError(f"{key} is no dict")
    config = content["config"]
    if config["sampling"] is not None and not isinstance(config["sampling"]["temporal"], str | None):
        raise TypeError("temporal is no str")
    if config["sampling"] is not None and not isinstance(config["sampling"].get("temporal_window"), dict | None):
        raise TypeError("temporal_window is no dict")
    if config["sampling"] is not None and not isinstance(config["sampling"].get("without"), list | None):
        raise TypeError("without is no list")
    if not isinstance(config["named_model"], bool):
        raise TypeError("named_model is no bool")
    source = SourceSchema.of_record(config["schema"])
    if not isinstance(source.num_outputs, int):
        raise TypeError("num_outputs is no int")
    if source.target_kind not in (*TARGET_KINDS, NO_LABELS, "link"):
        raise ValueError(f"seeds are for {source.target_kind!r}")


def check_config(directory: PathLike, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with a checkpoint of another model, data set or set of hyperparameters.

    Raises:
        ConfigError: names every setting that differs, with both values.
    """
    saved = completed_config(saved)
    there, here = saved.get("world_size", 1), wanted.get("world_size", 1)
    if there != here:
        start = "`diskgnn train`, alone," if there == 1 else f"`torchrun --nproc-per-node {there} -m diskgnn train`"
        raise ConfigError(
            f"the checkpoint in {directory} is of {there} ranks, this run has {here}: it holds where each of them "
            f"stood, so go on with {start} and what was prepared for {there}, or choose another checkpoint directory"
        )
    old, new = (SourceSchema.of_record(config["schema"]) for config in (saved, wanted))
    check_features(_model_words(directory), old, new.known_columns, "this run")
    check_classes(_model_words(directory), old, new, "this run")
    # Whether minibatches are others is compared by their source, too, which knows more of them.
    compared = {**saved, **wanted}.keys() - {"sampling", "schema"}
    differing = [name for name in {**saved, **wanted} if name in compared and saved.get(name) != wanted.get(name)]
    found, expected = ([f"{name}={config.get(name)}" for name in differing] for config in (saved, wanted))
    if replace(old, columns=()) != replace(new, columns=()):  # these mean the same
        only_old, only_new = differing_facts(old, new)
        found, expected = [*found, *only_old], [*expected, *only_new]
    if found or expected:
        raise ConfigError(
            f"the checkpoint in {directory} was made with {', '.join(found) or 'none of it'}, this run has "
            f"{', '.join(expected) or 'none of it'}; go on with the same settings and minibatches, or choose another "
            "checkpoint directory"
        )


def completed_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config with what a `ModelSpec` has had only since it was written: then there was but the default."""
    known = [each for each in fields(ModelSpec) if each.name != "name" and each.default is not MISSING]
    return (
        {each.name: each.default for each in known} | {"decoder": "dot", "norm": "none", "skip": False} | dict(config)
    )


def load_model(directory: PathLike, *, last: bool = False) -> nn.Module:
    """Loads the model that `train(model="sage" | ...)` left in a checkpoint, with the weights of its best epoch.

    `load_task` has what it was trained for. A model does not say what its features meant: `infer`, `predict` and
    `evaluate` compare these where they are given the directory.

    Args:
        directory: what `train` was given as `checkpoint`.
        last: the weights that training stopped with instead of the best ones. They are also taken when there was
            no validation.

    Raises:
        ArtifactError: as `load_checkpoint`.
        ConfigError: the checkpoint is of a module of the user's own, which only the user can make.

    Example:
        model = diskgnn.load_model("checkpoint")
        print(diskgnn.evaluate(model, "packed", split="test").accuracy)
    """
    checkpoint = load_checkpoint(directory)
    config, best = completed_config(checkpoint["config"]), checkpoint["best"]
    if not config["named_model"]:
        raise ConfigError(
            f"the checkpoint in {directory} is of your own module {config['model']}: make it and call its "
            f"load_state_dict(load_checkpoint({str(directory)!r})['model'])"
        )
    with changes_named(directory):
        shape = {each.name: config[each.name] for each in fields(ModelSpec) if each.name != "name"}
        spec = ModelSpec(**shape, name=config["model"])
        model = model_for(spec, SourceSchema.of_record(config["schema"]), saved_task(config))
        of_last = last or best is None
        model.load_state_dict(checkpoint["model"] if of_last else best["model"])
        DiskEmbeddings(model).read_best(local(directory, "a checkpoint"), None if of_last else best["epoch"])
    return model


def check_trained_on(directory: PathLike, found: SourceSchema, source: str) -> None:
    """Refuse to evaluate the model in a checkpoint on minibatches of other widths, or that are for more or less.

    Args:
        directory: see `load_model`.
        found: what the minibatches hold.
        source: where they are from, for the message.

    Raises:
        ArtifactError: as `load_checkpoint`.
        ConfigError: names what the model was trained on, and what is there.
    """
    config = load_checkpoint(directory)["config"]
    trained = SourceSchema.of_record(config["schema"])
    there, here = _held(trained), _held(found)
    if there != here:
        raise ConfigError(
            f"the checkpoint {directory} was trained on {there}; {source} has {here}: evaluate it on what was made of "
            f"such a graph in the same way, or train anew on {source}"
        )
    check_applied_to(directory, config, found.known_columns, source)
    check_classes(_model_words(directory), trained, found, source)


def check_applied_to(
    directory: PathLike,
    config: Mapping[str, Any],
    found: Mapping[str | EdgeType, tuple[FeatureColumn, ...] | None],
    source: object,
) -> None:
    """Refuse to apply the model in a checkpoint to features that mean something else than in training.

    Args:
        directory: see `load_model`.
        config: that of its checkpoint.
        found: the columns of each type that has features, see `SourceSchema.known_columns`.
        source: where these are, for messages.

    Warns:
        DataWarning: see `check_features`.

    Raises:
        ConfigError: names the first feature that differs.
    """
    trained = SourceSchema.of_record(config["schema"])
    if config["named_model"] and not trained.is_typed:  # such a model takes no features of edges
        found = {name: columns for name, columns in found.items() if isinstance(name, str)}
    check_features(_model_words(directory), trained, found, source)


def _model_words(directory: PathLike) -> str:
    return f"the model in {directory}"


def warn_of_other_times(directory: PathLike, found: Mapping[str, Any] | None, source: str) -> None:
    """Warn if the model in a checkpoint was trained by times, and is asked about minibatches that were drawn without,
    or in other windows.

    Args:
        directory: see `load_model`.
        found: how these were drawn, see `drawing_to_json`; None: nobody knows.
        source: where they are from, for the message.

    Raises:
        ArtifactError: as `load_checkpoint`.
    """
    trained = load_checkpoint(directory)["config"]["sampling"]
    if trained is None or found is None:
        return
    in_time = ("uniform", "last")
    if trained["temporal"] in in_time and found["temporal"] not in in_time:
        warnings.warn(
            f"the checkpoint {directory} was trained with temporal={trained['temporal']!r}, and minibatches of "
            f"{source} were drawn whatever their times are: its scores come from what is later than the seeds, too; "
            "prepare them as those that it was trained on",
            DataWarning,
            stacklevel=callers_level(),
        )
    elif trained["temporal"] in in_time and (told := other_windows(trained, found)):
        warnings.warn(
            f"the checkpoint {directory} was trained with {told[0]}, and minibatches of {source} were drawn with "
            f"{told[1]}: prepare them as those that it was trained on",
            DataWarning,
            stacklevel=callers_level(),
        )


def other_windows(trained: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the words for the windows of two ways of drawing, see `drawing_to_json`; None if they are the same."""
    one, other = (each.get("temporal_window") for each in (trained, found))
    if one == other:
        return None
    said = [f"temporal_window={each!r}" if each else "no temporal_window" for each in (one, other)]
    return said[0], said[1]


_OUTPUTS = {"class": "{} classes", "multilabel": "{} labels", "regression": "{} targets", "link": "links"}


def _held(schema: SourceSchema) -> str:
    """Says what minibatches hold of nodes, and what they are for."""
    widths = [
        f"{'no' if width is None else width} features" + f" of {name} nodes" * schema.is_typed
        for name, _, width in schema.node_types
    ]
    outputs = _OUTPUTS.get(schema.target_kind, "no labels").format(schema.num_outputs)
    hops = [f"hops {', '.join(name for name, _ in schema.segments)}"] if schema.segments else []
    return f"{', '.join([*widths, *hops])} and {outputs}"


def load_task(directory: PathLike) -> Task:
    """Loads the task that the model in a checkpoint was trained for, with the loss that it was trained with.

    Raises:
        ArtifactError: as `load_checkpoint`.
        ConfigError: it is a task of the user's own.
    """
    return saved_task(load_checkpoint(directory)["config"])
