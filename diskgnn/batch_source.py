"""What the trainer asks of whatever yields minibatches: `BatchSource`, and what every source is made with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.minibatch import MiniBatch


@dataclass(frozen=True)
class LoadStats:
    """What a source did since it was made; a difference of two is what it did in between.

    Of `requested_rows`, each tier served its own; `read_bytes` came from disk in `read_requests`, of which
    `restored_bytes` filled the cpu tier at a seek.
    """

    requested_rows: int = 0
    device_rows: int = 0
    pinned_rows: int = 0
    cpu_rows: int = 0
    disk_rows: int = 0
    filled_rows: int = 0  # with which the tiers started
    read_bytes: int = 0
    read_requests: int = 0
    restored_bytes: int = 0
    wait_seconds: float = 0.0  # of the user, for minibatches
    # of the thread that assembles:
    read_wait_seconds: float = 0.0  # for the disk
    header_seconds: float = 0.0
    gather_seconds: float = 0.0  # rows from memory
    scatter_seconds: float = 0.0  # rows from the extent, and those admitted
    buffer_wait_seconds: float = 0.0  # for the user
    # of preparing fresh epochs:
    prepared_epochs: int = 0
    prepare_seconds: float = 0.0
    prepare_read_bytes: int = 0
    prepare_written_bytes: int = 0
    prepare_wait_seconds: float = 0.0  # of the user, for an epoch to be prepared; part of wait_seconds

    def __add__(self, other: LoadStats) -> LoadStats:
        return LoadStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: LoadStats) -> LoadStats:
        return LoadStats(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


class BatchSource(Protocol):
    """Anything that the trainer can train or evaluate on: `Loader`, `FreshEpochs`, every baseline."""

    @property
    def num_batches(self) -> int:
        """Minibatches in one epoch."""
        ...

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes)."""
        ...

    @property
    def num_features(self) -> int:
        """D, columns of x."""
        ...

    @property
    def num_layers(self) -> int:
        """Blocks in each minibatch."""
        ...

    def epoch(self, epoch: int) -> Iterator[MiniBatch]:
        """The minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch."""
        ...

    def stats(self) -> LoadStats:
        """Counters since the source was made."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where iteration stands, as torchdata's StatefulDataLoader has it: see `Cursor.state_dict`."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: the next call of `epoch(state['epoch'])` skips what had been consumed."""
        ...

    def close(self) -> None:
        """Join threads, free buffers. Idempotent."""
        ...


class Cursor:
    """Where iteration of a source stands: an epoch, and how many of its minibatches the user has received.

    One epoch is iterated at a time. Starting another one, loading a state and closing the source all end the turn of
    whoever iterates: `require` tells them.

    Args:
        name: of the source, for messages: 'Loader'.
        num_batches: minibatches in one epoch.
        identity: what the minibatches are; a state of others is refused.
    """

    def __init__(self, name: str, num_batches: int, identity: Mapping[str, Any]) -> None:
        self._name, self._num_batches, self._identity = name, num_batches, dict(identity)
        self.epoch = self.batch = 0
        self.turn = 0  # grows with every epoch started
        self._resumes = False  # the next epoch starts at `batch` if it is `epoch`
        self._started = False
        self._chosen_epoch: int | None = None
        self._closed = False

    def start(self, epoch: int) -> int:
        """Begin a turn at `epoch`; the number of its first minibatch.

        Raises:
            ConfigError: the source is closed, or `epoch` is negative.
        """
        if self._closed:
            raise ConfigError(f"this {self._name} is closed: make a new one")
        if epoch < 0:
            raise ConfigError(f"epoch: expected at least 0, found {epoch}")
        self.batch = self.batch if self._resumes and epoch == self.epoch else 0
        self.epoch, self._resumes, self._started = epoch, False, True
        self.turn += 1
        return self.batch

    def choose_epoch(self, epoch: int) -> None:
        """Make `next_epoch` this one until it is chosen again, as DistributedSampler.set_epoch does.

        Raises:
            ConfigError: it is negative.
        """
        if epoch < 0:
            raise ConfigError(f"epoch: expected at least 0, found {epoch}")
        self._chosen_epoch = epoch

    @property
    def next_epoch(self) -> int:
        """The epoch of `for batch in source`: the one chosen, the one resumed, or the one after the last started."""
        if self._chosen_epoch is not None:
            return self._chosen_epoch
        return self.epoch + (self._started and not self._resumes)

    def require(self, turn: int) -> None:
        """Refuse to go on with a turn that has ended.

        Raises:
            ConfigError: it has.
        """
        if turn != self.turn or self._closed:
            raise ConfigError(
                f"the {self._name} was closed, or another epoch was started, while this one was iterated: use one "
                f"{self._name} for each loop that runs at the same time"
            )

    def state_dict(self) -> dict[str, Any]:
        """{epoch, batch: how many of its minibatches were received, source: what these are}."""
        return {"epoch": self.epoch, "batch": self.batch, "source": dict(self._identity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `start` of this state's epoch skip what had been received.

        Raises:
            ArtifactError: the state is of other minibatches; names what differs.
            ConfigError: not a state of a source.
        """
        try:
            epoch, batch, found = state["epoch"], state["batch"], dict(state["source"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"expected a state from {self._name}.state_dict(), found {state!r}") from error
        if differing := sorted(
            name for name in {*found, *self._identity} if found.get(name) != self._identity.get(name)
        ):
            raise ArtifactError(
                "the state is of other minibatches: "
                + ", ".join(f"its {n} is {found.get(n)}, expected {self._identity.get(n)}" for n in differing)
                + "; go on with what it was saved with"
            )
        if not (isinstance(epoch, int) and isinstance(batch, int) and epoch >= 0 and 0 <= batch <= self._num_batches):
            raise ConfigError(f"expected an epoch and at most {self._num_batches} minibatches, found {epoch}, {batch}")
        self.turn += 1
        self.epoch, self.batch, self._resumes = epoch, batch, True

    def close(self) -> None:
        """End every turn; none starts any more."""
        self._closed = True
        self.turn += 1
