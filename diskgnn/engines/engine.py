"""An engine does the work of a stage: in this process, or wherever a scheduler has room."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from diskgnn.engines.sent import Sent
from diskgnn.engines.telling import ShownStages
from diskgnn.engines.work_units import Made, Make, Unit
from diskgnn.errors import ConfigError
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.specs.engines import ENGINES
from diskgnn.system.resources import Resources
from diskgnn.work.work_folder import WorkFolder

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Does the work of stages. What it makes is the same, byte for byte, whichever it is."""

    @property
    def is_here(self) -> bool:
        """Returns True if this process does the work: one thing after the other, and nothing is sent."""
        ...

    def resources(
        self, memory: int | str, threads: int | None, reporter: Reporter, sending_bytes: int = 0
    ) -> Resources:
        """Returns what each of its processes may spend; `sending_bytes` of memory are for sending to a store.

        Raises:
            ConfigError: sizes that make no sense, or that it does not have.
        """
        ...

    def num_workers(self, resources: Resources) -> int:
        """Returns how many of its processes may spend `resources` at the same time."""
        ...

    def send(self, value: Any, expected: str, instead: str, libraries: Sequence[str] = ()) -> Sent:
        """Has all its processes know `value`, for units and tasks that need it.

        Args:
            value: from which they make something.
            expected: what it should have been, if it cannot be sent: "sampler: expected a function that ...".
            instead: what to do then.
            libraries: that results depend on, beside those that all stages use; see `worker_tasks.versions`.

        Raises:
            ConfigError: it holds what cannot be sent.
        """
        ...

    def made(
        self,
        make: Make[Made],
        sent: Sent,
        folder: WorkFolder,
        units: Iterator[Any],
        resources: Resources,
        advance: Advance,
        num_tasks: int,
    ) -> Generator[Made, None, list[Any]]:
        """Has units made, yields each whose files are complete in `folder`, and returns what each `make` returned.

        Args:
            make: makes them.
            sent: what `make` is given.
            folder: where the files lie under their names in the end; to commit them is up to the caller.
            units: see `work_units.Unit`. Those that follow each other are made by the same process, as far as possible:
                if they share something that is dear to load, put them side by side.
            resources: of each process.
            advance: told how much is done.
            num_tasks: into how many parts units are divided, where several processes share them.
        """
        ...

    def call(self, task: Callable[..., Result], sent: Sent, resources: Resources, *arguments: Any) -> Result:
        """Returns what a task returns: a function of what was sent, of a `telling.Tell`, and of `arguments`.

        What it tells is shown by the reporter of `resources`, which are those of its process. It may run twice.
        """
        ...

    def each(self, items: Iterable[Item], do: Callable[[Item], Result]) -> list[Result]:
        """Returns what `do` returns of each item, in order. It calls this engine, from several threads maybe."""
        ...


class LocalEngine:
    """This process, one thing after the other. A context manager, as others are."""

    is_here = True

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def resources(
        self, memory: int | str, threads: int | None, reporter: Reporter, sending_bytes: int = 0
    ) -> Resources:
        """Returns those of this machine."""
        return Resources.of(memory, threads, reporter, sending_bytes=sending_bytes)

    def num_workers(self, resources: Resources) -> int:
        """Returns 1."""
        return 1

    def send(self, value: Any, expected: str, instead: str, libraries: Sequence[str] = ()) -> Sent:
        """Knows it already."""
        return Sent(value)

    def made(
        self,
        make: Make[Made],
        sent: Sent,
        folder: WorkFolder,
        units: Iterator[Unit],
        resources: Resources,
        advance: Advance,
        num_tasks: int,
    ) -> Generator[Made, None, list[Any]]:
        """Makes them by the threads of this process, in `folder` itself."""
        return [(yield from make(sent.value, units, folder.staging, resources, advance))]

    def call(self, task: Callable[..., Result], sent: Sent, resources: Resources, *arguments: Any) -> Result:
        """Calls it in this thread."""
        with ShownStages(resources.reporter) as stages:
            return task(sent.value, stages.show, *arguments)

    def each(self, items: Iterable[Item], do: Callable[[Item], Result]) -> list[Result]:
        """Returns the results of one after the other."""
        return [do(item) for item in items]


def open_engine(name: str, address: str | None = None) -> AbstractContextManager[Engine]:
    """Returns the engine called `name`, connected.

    Args:
        name: one of ENGINES.
        address: of a running Ray; None for the one that Ray finds by itself, or a new one on this machine.

    Raises:
        ConfigError: no such engine, or one that takes no address; Ray is not there.
        UnavailableError: Ray is not installed.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine: expected one of {', '.join(ENGINES)}, found {name!r}")
    if name == "local":
        if address is not None:
            raise ConfigError("address: only engine='ray' takes it; leave it out")
        return LocalEngine()
    from diskgnn.engines.ray_engine import RayEngine

    return RayEngine(address)
