"""`BatchSource`, which the trainer asks of whatever yields minibatches, and what every source is made with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from diskgnn.batches.minibatch import AnyBatch
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.specs.schema import SourceSchema, one_type_schema
from diskgnn.units import whole_number

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class LoadStats:
    """Counts what a source did since it was made. The difference of two is what it did in between.

    A source that reads ahead counts what it has read, which may be ahead of what the user has received.
    """

    requested_rows: int = 0  # the sum of the four below
    device_rows: int = 0  # served by the device tier
    pinned_rows: int = 0
    cpu_rows: int = 0
    disk_rows: int = 0
    filled_rows: int = 0  # that the tiers were filled with before the first minibatch
    read_bytes: int = 0  # from disk
    read_requests: int = 0
    restored_bytes: int = 0  # part of read_bytes: what filled the cpu tier at a seek
    wait_seconds: float = 0.0  # that the user's loop waited for minibatches
    # Of the thread that assembles minibatches:
    read_wait_seconds: float = 0.0  # it waited for the disk
    header_seconds: float = 0.0
    gather_seconds: float = 0.0  # it copied rows from memory
    scatter_seconds: float = 0.0  # it copied rows that were read, also into the cpu tier
    buffer_wait_seconds: float = 0.0  # it waited for the user; pauses between epochs do not count
    # Of preparing fresh minibatches:
    prepared_batches: int = 0
    prepare_seconds: float = 0.0
    prepare_read_bytes: int = 0  # not part of read_bytes
    prepare_written_bytes: int = 0
    prepare_wait_seconds: float = 0.0  # part of wait_seconds: the user's loop waited for them to be prepared

    def __add__(self, other: LoadStats) -> LoadStats:
        return LoadStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: LoadStats) -> LoadStats:
        return LoadStats(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


class BatchSource(Protocol):
    """Stands for anything that the trainer can train or evaluate on: `Loader`, `FreshEpochs`, every baseline, or your
    own.

    Nobody tests for this type, so a wrapper may pass attributes on (`__getattr__`) instead of deriving from it.
    """

    @property
    def num_batches(self) -> int:
        """Returns the number of minibatches in one epoch."""
        ...

    @property
    def schema(self) -> SourceSchema:
        """Returns types of nodes and edges, and what the seeds are for; may be missing where `schema_of` can tell."""
        ...

    @property
    def num_classes(self) -> int:
        """Returns how many classes labels are of, from 0 on."""
        ...

    @property
    def num_features(self) -> int:
        """Returns D, the number of columns of x."""
        ...

    @property
    def num_layers(self) -> int:
        """Returns the number of blocks in each minibatch."""
        ...

    def epoch(self, epoch: int) -> Iterator[AnyBatch]:
        """Yields the minibatches of epoch `epoch`. If `load_state_dict` named this epoch, those that it counts are
        skipped.
        """
        ...

    def stats(self) -> LoadStats:
        """Returns counters since the source was made."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns where iteration stands, as torchdata's StatefulDataLoader has it: see `Cursor.state_dict`."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: the next call of `epoch(state['epoch'])` skips what had been received."""
        ...

    def close(self) -> None:
        """Join threads, free buffers. Idempotent."""
        ...


def schema_of(source: BatchSource) -> SourceSchema:
    """Returns the source's `schema`. One that has none yields nodes of one type, with a class each."""
    schema: SourceSchema | None = getattr(source, "schema", None)
    return one_type_schema(0, source.num_features, source.num_classes) if schema is None else schema


@contextmanager
def minibatches(source: BatchSource, epoch: int) -> Iterator[Iterator[AnyBatch]]:
    """Yields the minibatches of an epoch; its iterator is closed when the block is left, however it is left.

    What the iterator itself started ends with it; a `Loader` keeps its threads, idle, until it is closed.
    """
    batches = source.epoch(epoch)
    try:
        yield batches
    finally:
        if (close := getattr(batches, "close", None)) is not None:
            close()


def release_memory(source: BatchSource, tier_bytes: int = 0) -> None:
    """Has a source free what it needs only within an epoch, if it can do that (`Loader.release_memory`)."""
    if (release := getattr(source, "release_memory", None)) is not None:
        release(tier_bytes)


class Cursor:
    """Knows where iteration of a source stands: an epoch, and how many of its minibatches the user has received.

    One epoch is iterated at a time, and that is a turn. A turn ends when another epoch is started, a state is loaded,
    or the source is closed. `require` raises if an iterator is used after its turn has ended.

    Attributes:
        epoch, batch: where iteration stands. The source sets `batch` with every minibatch that it yields.
        turn: number of the turn that goes on, or of none.

    Args:
        name: of the source, for messages: 'Loader'.
        num_batches: minibatches in one epoch.
        identity: what the minibatches are, in values that JSON knows; a state of others is refused.
    """

    def __init__(self, name: str, num_batches: int, identity: Mapping[str, Any]) -> None:
        self.name, self.num_batches, self.identity = name, num_batches, dict(identity)
        self.epoch = self.batch = self.turn = 0
        self._started = False  # some epoch
        self._resumes = False  # a state was loaded and no epoch was started since
        self._chosen_epoch: int | None = None
        self._closed = False

    def start(self, epoch: int) -> int:
        """Begin a turn at `epoch`; returns the number of its first minibatch.

        Raises:
            ConfigError: the source is closed, or `epoch` is negative or no whole number.
        """
        _check_epoch(epoch)
        if self._closed:
            raise ConfigError(f"this {self.name} is closed: make a new one")
        self.batch = self.batch if self._resumes and epoch == self.epoch else 0
        self.epoch, self._resumes, self._started = epoch, False, True
        self.turn += 1
        return self.batch

    def choose_epoch(self, epoch: int) -> None:
        """Make `next_epoch` this one until it is chosen again, as DistributedSampler.set_epoch does.

        Raises:
            ConfigError: it is negative, or no whole number.
        """
        _check_epoch(epoch)
        self._chosen_epoch = epoch

    @property
    def next_epoch(self) -> int:
        """Returns the epoch of `for batch in source`: the chosen one, else the one to resume, else the one after the
        last.

        A state at the end of an epoch resumes with the epoch after it.
        """
        if self._chosen_epoch is not None:
            return self._chosen_epoch
        if self._resumes:
            return self.epoch + (self.batch == self.num_batches)
        return self.epoch + self._started

    def require(self, turn: int) -> None:
        """Refuse to go on with a turn that has ended.

        Raises:
            ConfigError: it has.
        """
        if turn != self.turn:
            raise ConfigError(
                f"the {self.name} was closed, or another epoch was started, while this one was iterated: use one "
                f"{self.name} for each loop that runs at the same time"
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns {"epoch", "batch": how many of its minibatches were received, "source": what minibatches these
        are}.
        """
        epoch = self.epoch if self._started or self._resumes else self.next_epoch
        return {"epoch": epoch, "batch": self.batch, "source": dict(self.identity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `start` of this state's epoch skip what had been received. An epoch chosen before is forgotten.

        Raises:
            ArtifactError: the state is of other minibatches; names what differs.
            ConfigError: not a state of a source.
        """
        try:
            epoch, batch, found = state["epoch"], state["batch"], dict(state["source"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"expected a state from {self.name}.state_dict(), found {state!r}") from error
        names = sorted({*found, *self.identity})
        if differing := [name for name in names if found.get(name) != self.identity.get(name)]:
            raise ArtifactError(
                "the state is of other minibatches: "
                + ", ".join(
                    f"its {name} is {found.get(name)}, expected {self.identity.get(name)}" for name in differing
                )
                + "; go on with what it was saved with"
            )
        if not (isinstance(epoch, int) and isinstance(batch, int) and epoch >= 0 and 0 <= batch <= self.num_batches):
            raise ConfigError(f"expected an epoch and at most {self.num_batches} minibatches, found {epoch}, {batch}")
        self.turn += 1
        self.epoch, self.batch, self._resumes, self._chosen_epoch = epoch, batch, True, None

    def close(self) -> None:
        """End every turn; no other one starts."""
        self._closed = True
        self.turn += 1


def _check_epoch(epoch: int) -> None:
    whole_number("epoch", epoch, 0)


class CursorSource(ABC):
    """Holds what all sources with a `Cursor` share: `for batch in source` works, and iteration can be saved and
    resumed.

    Subclasses give `epoch` and `close`, and the properties of a `BatchSource`.

    Example:
        for _ in range(3):
            for batch in source:  # epoch 0, then 1, then 2
                ...
        source.set_epoch(7)
        for batch in tqdm(source):  # epoch 7
            ...
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: threads and open files stay where they are.

        Raises:
            TypeError: always, with what to send instead.
        """
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: send its path and arguments, and make it with these "
            "in the other process; where it stands is its state_dict()"
        )

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Any]:
        """See `BatchSource.epoch`."""

    @abstractmethod
    def close(self) -> None:
        """See `BatchSource.close`. A closed source stays closed."""

    @property
    def num_batches(self) -> int:
        """Returns the number of minibatches in one epoch."""
        return self._cursor.num_batches

    def __len__(self) -> int:
        return self._cursor.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Yields the minibatches of the epoch that `set_epoch` chose, or of the next one: epochs count up from 0.

        An iterator that nobody asks for a minibatch starts no epoch: Lightning makes two of them for the first one.
        """
        yield from self.epoch(self._cursor.next_epoch)

    @property
    def next_epoch(self) -> int:
        """Returns the epoch that `for batch in source` would yield now, or go on with after `load_state_dict`."""
        return self._cursor.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Let `for batch in source` yield this epoch from now on, as DistributedSampler.set_epoch does.

        Raises:
            ConfigError: it is negative, or no whole number.
        """
        self._cursor.choose_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns where iteration stands: see `Cursor.state_dict`."""
        return self._cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: its epoch, when it is asked for next, skips what had been received.

        Raises:
            ArtifactError: the state is of other minibatches; names what differs.
            ConfigError: not a state of a source.
        """
        self._cursor.load_state_dict(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
