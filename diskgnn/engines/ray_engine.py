"""Workers of Ray as an engine. Ray schedules and retries; this process owns locks, journals and progress.

Tasks ask Ray for the cores and the memory that they use. Their bytes are reproducible, so running one again does no
harm. Only this module knows Ray, which is imported when an engine is made.
"""

from __future__ import annotations

import importlib
import itertools
import pickle
import shutil
import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from diskgnn.engines import worker_tasks
from diskgnn.engines.ray_nodes import PROCESS_BYTES, alive_nodes, worker_resources
from diskgnn.engines.ray_progress import Board, Telling
from diskgnn.engines.sent import Sent
from diskgnn.engines.telling import Arrived, Event, ShownStages
from diskgnn.engines.work_units import Made, Make, Unit
from diskgnn.errors import ConfigError, UnavailableError, WorkerLostError, callers_level
from diskgnn.files.disk_space import UNLIMITED
from diskgnn.ordered import Threads
from diskgnn.progress.reporter import SILENT, Advance, Reporter
from diskgnn.system.resources import Resources
from diskgnn.units import format_size
from diskgnn.work.work_folder import WorkFolder

_MAX_RETRIES = 3  # of a task whose worker or node died
_POLL_SECONDS = 0.5
_POLLS_PER_LOOK = 20  # whether there are still nodes
_CANCEL_SECONDS = 10  # that tasks get to end by themselves
_MAX_ITEMS = 64  # that `each` has at the same time, in a thread here for each
_BOARD = "diskgnn board of {}"  # its name, with the connection's job

_boards: dict[str, Any] = {}  # by their names: Ray ends an actor that its driver does not hold any more
_starting_board = threading.Lock()

Item = TypeVar("Item")
Result = TypeVar("Result")


class RayEngine:
    """Runs tasks on a cluster. A context manager: leaving it cancels what is under way.

    Args:
        address: of a running Ray; None for the one that Ray finds by itself (RAY_ADDRESS), or a new one on this
            machine. A Ray that this process is connected to already is used.

    Raises:
        UnavailableError: Ray is not installed.
        ConfigError: no Ray at this address.
    """

    is_here = False

    def __init__(self, address: str | None = None) -> None:
        self._ray = _import_ray()
        self._address = address
        self._stopping = threading.Event()

    def __enter__(self) -> RayEngine:
        with ExitStack() as exits:
            self._connect(exits)
            self._exits = exits.pop_all()
        return self

    def _connect(self, exits: ExitStack) -> None:
        ray = self._ray
        try:
            if not ray.is_initialized():
                _require_listener(self._address)
                ray.init(self._address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
                exits.callback(ray.shutdown)
            elif self._address not in (None, "auto", there := ray.get_runtime_context().gcs_address):
                raise ValueError(f"this process is connected to Ray at {there} already")
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            found = f"expected that of a running Ray, found {self._address!r}"
            raise ConfigError(f"address: {found} ({_first_line(error)})") from error
        self._work = ray.remote(worker_tasks.work)

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._exits.close()

    def resources(
        self, memory: int | str, threads: int | None, reporter: Reporter, sending_bytes: int = 0
    ) -> Resources:
        """Returns those of one worker. By default it has half of the smallest node, and all of its cores.

        Raises:
            ConfigError: no node has as much.
        """
        return worker_resources(alive_nodes(self._ray), memory, threads, reporter)

    def num_workers(self, resources: Resources) -> int:
        """Returns as many as the nodes that are there now have room for."""
        return sum(node.workers(resources.threads, resources.memory_bytes) for node in alive_nodes(self._ray))

    def send(self, value: Any, expected: str, instead: str, libraries: Sequence[str] = ()) -> Sent:
        """Pickles it. Each worker holds the pickle while it loads `value` from it.

        Raises:
            ConfigError: it holds what cannot be sent.
        """
        try:
            pickled = self._ray.cloudpickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{expected}, to be sent to workers ({_first_line(error)}); {instead}") from error
        return Sent(self._ray.put(pickled), 2 * len(pickled), worker_tasks.versions(libraries))

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
        """Makes them by tasks of units that follow each other. What arrives gets its name in `folder` here."""
        arriving = folder.path("arriving")  # a folder in the staging directory is scratch: stragglers go with it
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir()
        missing = dict.fromkeys(units)
        resources = replace(resources, reporter=SILENT, disk=UNLIMITED)
        parts = _parts(list(missing), num_tasks)
        folder.disk.look()
        calls = [
            (worker_tasks.make_units, sent, make, part, resources, str(arriving), disk_bytes)
            for part, disk_bytes in zip(parts, _disk_of_parts(folder.disk.left_bytes, parts), strict=True)
        ]
        results: list[tuple[list[Arrived], Any]] = []

        def take(arrived: Event) -> Iterator[Made]:
            assert isinstance(arrived, Arrived), arrived
            unit = arrived.made.unit
            if unit not in missing:  # made twice, or told twice
                for file, _ in arrived.files.values():
                    (arriving / file).unlink(missing_ok=True)
                return
            for file, num_bytes in arrived.files.values():
                _require_whole(arriving / file, num_bytes)
            for name, (file, _) in arrived.files.items():
                (arriving / file).rename(folder.path(name))
            del missing[unit]
            advance(unit.amount)
            yield arrived.made  # type: ignore[misc]  # as `make` made it

        def events() -> Generator[Event, None, None]:
            nonlocal results
            results = yield from self._events(calls, resources)

        for event in events():
            yield from take(event)
        for arrived, _ in results:
            for each in arrived:  # events may be lost
                yield from take(each)
        assert not missing, missing
        return [result for _, result in results]

    def call(self, task: Callable[..., Result], sent: Sent, resources: Resources, *arguments: Any) -> Result:
        """Calls it in a worker."""
        with ShownStages(resources.reporter) as stages:
            [result] = self._results([(task, sent, *arguments)], resources, stages.show)
        found: Result = result
        return found

    def each(self, items: Iterable[Item], do: Callable[[Item], Result]) -> list[Result]:
        """Returns the results of all at the same time, each in a thread that waits for its tasks. The first error
        ends all."""
        items = list(items)
        if len(items) == 1:
            return [do(items[0])]
        with Threads(_MAX_ITEMS) as pool:
            waiting = futures = [pool.submit(do, item) for item in items]
            try:
                while waiting:
                    done, not_done = wait(waiting, timeout=_POLL_SECONDS)  # a signal is handled in between
                    for future in done:
                        future.result()
                    waiting = list(not_done)
            except BaseException:
                self._stopping.set()
                raise
        return [future.result() for future in futures]

    def _results(
        self, calls: Sequence[tuple[Any, ...]], resources: Resources, show: Callable[[Event], None]
    ) -> list[Any]:
        """Returns what `_events` does, and has its events shown."""
        events = self._events(calls, resources)
        while True:
            try:
                show(next(events))
            except StopIteration as ended:
                results: list[Any] = ended.value
                return results

    def _events(self, calls: Sequence[tuple[Any, ...]], resources: Resources) -> Generator[Event, None, list[Any]]:
        """Yields what calls tell, and returns what they return, in order.

        Args:
            calls: each a function of `worker_tasks`, what it is given, and arguments.
            resources: what each takes.

        Raises:
            WorkerLostError: workers died again and again.
            Exception: what the step raised.
            CancelledError: another thread failed.
        """
        ray, topic, board = self._ray, uuid.uuid4().hex, _board(self._ray)
        remote = self._work.options(
            num_cpus=resources.threads, memory=resources.memory_bytes + PROCESS_BYTES, max_retries=_MAX_RETRIES,
            scheduling_strategy="SPREAD", name=f"diskgnn {calls[0][0].__name__}" if calls else "",
        )  # fmt: skip
        tell = Telling(board, topic)
        results = [remote.remote(step, sent.value, sent.versions, tell, *rest) for step, sent, *rest in calls]
        waiting = results
        try:
            for polls in itertools.count():
                if not waiting:
                    break
                if self._stopping.is_set():
                    raise CancelledError
                if polls % _POLLS_PER_LOOK == 0:
                    self._warn_of_no_room(resources)
                done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_SECONDS)
                yield from self._take_events(board, topic)
                for each in done:
                    self._result(each)
            return [self._result(each) for each in results]
        except GeneratorExit:
            self._cancel(waiting)
            raise
        except BaseException as error:
            self._cancel(waiting)
            yield from self._take_events(board, topic)  # what arrived meanwhile is kept
            if isinstance(error, ray.exceptions.RayError) and not isinstance(error, ray.exceptions.RayTaskError):
                raise _lost(ray.exceptions, error) from error
            raise
        finally:
            with suppress(ray.exceptions.RayError):
                board.close.remote(topic)

    def _warn_of_no_room(self, resources: Resources) -> None:
        if not any(node.workers(resources.threads, resources.memory_bytes) for node in alive_nodes(self._ray)):
            warnings.warn(
                f"no node of Ray has room for a worker of {resources.threads} cores and "
                f"{format_size(resources.memory_bytes)} any more: waiting for one to join. Ctrl-C ends this, and keeps "
                f"what is done",
                stacklevel=callers_level(),
            )

    def _take_events(self, board: Any, topic: str) -> list[Event]:
        """Returns the events that came since it was asked last."""
        try:
            events: list[Event] = self._ray.get(board.take.remote(topic))
        except self._ray.exceptions.RayError:  # progress is lost with the board, results are not
            return []
        return events

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if not isinstance(error.cause, Exception):
                raise
            if isinstance(error.cause, errors.RayError):  # Ray failed within the task, not what it runs
                raise _lost(errors, error.cause) from error
            raise error.cause from error
        except errors.RayError as error:
            raise WorkerLostError(
                f"Ray lost a worker or its node {_MAX_RETRIES + 1} times in one task ({_first_line(error)}). What is "
                f"done was kept: the same command goes on with it. If workers ran out of memory, start nodes with "
                f"more, or pass less `memory`"
            ) from error

    def _cancel(self, references: Sequence[Any]) -> None:
        """Ask tasks to end, then make them."""
        ray = self._ray
        for force in (False, True):
            for each in references:
                with suppress(Exception):  # it has ended
                    ray.cancel(each, force=force)
            if references:
                _, references = ray.wait(list(references), num_returns=len(references), timeout=_CANCEL_SECONDS)


def _board(ray: Any) -> Any:
    """Returns the board of this process's connection to Ray, whose engines share it.

    It is a process, so it starts with the first task, and not with a call that is refused. It ends with the connection.
    """
    context = ray.get_runtime_context()
    name = _BOARD.format(context.get_job_id())
    with _starting_board:
        try:
            return ray.get_actor(name)
        except ValueError:  # there is none
            _boards.pop(name, None)  # of an earlier connection that had this job's number
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
        _boards[name] = ray.remote(Board).options(name=name, **options).remote()
        return _boards[name]


def _import_ray() -> Any:
    try:
        ray = importlib.import_module("ray")
        for name in ("ray.cloudpickle", "ray.exceptions", "ray.util.scheduling_strategies"):
            importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"engine: 'ray' needs Ray: pip install 'diskgnn[ray]' ({error})") from error
    return ray


def _require_listener(address: str | None) -> None:
    """Raises OSError if nobody listens at host:port: Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if colon and "://" not in host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CANCEL_SECONDS).close()


def _parts(units: Sequence[Unit], number: int) -> list[list[Unit]]:
    """Returns `units` in order in at most so many parts, whose lengths differ by 1 at most; none is empty."""
    number = min(number, len(units))
    return [list(units[len(units) * n // number : len(units) * (n + 1) // number]) for n in range(number)]


def _disk_of_parts(left_bytes: int | None, parts: Sequence[Sequence[Unit]]) -> list[int | None]:
    """Divides the bytes that are left among parts, by the shares of their units."""
    shares = [sum(unit.disk_share for unit in part) for part in parts]
    return [None if left_bytes is None else left_bytes * share // sum(shares) for share in shares]


def _require_whole(path: Path, num_bytes: int) -> None:
    found = path.stat().st_size if path.exists() else None
    if found != num_bytes:
        raise ConfigError(
            f"{path} is {'not there' if found is None else f'{found} bytes long'}, where a worker wrote {num_bytes} "
            f"bytes: the output must lie in a folder that all nodes share, at the same path"
        )


def _lost(errors: Any, error: Exception) -> WorkerLostError:
    """Returns an error for one of Ray's `errors`. Not all mean that a process is gone: a full disk does not."""
    gone = (
        errors.WorkerCrashedError, errors.NodeDiedError, errors.RayActorError, errors.ObjectLostError,
        errors.LocalRayletDiedError, errors.RaySystemError,
    )  # fmt: skip
    said = f"{type(error).__name__}: {_first_line(error)}"
    if isinstance(error, gone):
        return WorkerLostError(
            f"Ray lost a process or node that others needed ({said}). What is done was kept: the same command goes on "
            f"with it, once Ray runs again (`ray status` says so)"
        )
    return WorkerLostError(f"Ray failed ({said}). What is done was kept: the same command goes on with it")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
