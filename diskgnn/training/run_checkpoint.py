"""The checkpoint of a run that begins: whether it may be written, and whether the run goes on from it."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from diskgnn.errors import OutputExistsError, callers_level
from diskgnn.paths import PathLike
from diskgnn.training.checkpoints import checkpoint_exists, training_alone
from diskgnn.training.config import TrainingConfig
from diskgnn.training.ranks import Ranks
from diskgnn.training.result_files import check_writable
from diskgnn.training.state import TrainingState


def going_on_after_a_death(config: TrainingConfig, ranks: Ranks) -> TrainingConfig:
    """Returns `config`, which resumes if torchrun started these ranks because one of those before has died.

    Raises:
        OutputExistsError: there is a checkpoint, and nothing says that the run goes on from it.
    """
    if config.checkpoint is not None and ranks.replace_others_after(_taking(config.checkpoint)):
        config = replace(config, resume=True)
    ranks.by_first(lambda: _refuse_to_overwrite(config))
    return config


def take(config: TrainingConfig, ranks: Ranks, opened: ExitStack) -> None:
    """Make sure that it can be written, now and not after the first epoch, and that nobody else writes it.

    Raises:
        BusyError, ConfigError, DiskFullError: somebody does, or it cannot.
    """
    ranks.by_first(lambda: _take(config, ranks, opened))


def _take(config: TrainingConfig, ranks: Ranks, opened: ExitStack) -> None:
    if config.checkpoint is not None:
        check_writable(config.checkpoint, "checkpoint")
        opened.enter_context(training_alone(config.checkpoint))
        ranks.note(_taking(config.checkpoint))


def _taking(checkpoint: PathLike) -> str:
    return f"taking checkpoint {Path(checkpoint).absolute()}"


def _refuse_to_overwrite(config: TrainingConfig) -> None:
    if config.checkpoint is not None and not config.resume and checkpoint_exists(config.checkpoint):
        raise OutputExistsError(
            f"{config.checkpoint} holds a checkpoint already; pass resume=True to go on from it, or choose "
            f"another directory"
        )


def start(state: TrainingState, config: TrainingConfig) -> tuple[int, int] | None:
    """Go on from the checkpoint, if there is one; the epoch and minibatch that it was written at.

    Raises:
        ArtifactError, ConfigError: it is damaged, or of another run.
    """
    exists = config.checkpoint is not None and state.ranks.by_first(lambda: checkpoint_exists(str(config.checkpoint)))
    if config.checkpoint is not None and exists:
        state.restore(config.checkpoint)
        resumed_from = (state.epoch, state.batch)
        if state.epoch >= config.epochs and state.ranks.is_first:
            warnings.warn(
                f"the run in {config.checkpoint} is complete already: {state.epoch} epochs; for more, raise `epochs`",
                stacklevel=callers_level(),
            )
        return resumed_from
    if config.checkpoint is not None and config.resume and state.ranks.is_first:
        warnings.warn(f"no checkpoint in {config.checkpoint}, starting from the beginning", stacklevel=callers_level())
    state.start()
    return None
