"""Preparing on Ray: `prepare --engine ray`. Ray schedules and retries; this process owns locks, journals and progress.

Tasks ask Ray for the cores and the memory that they use. Their bytes are reproducible, so running one again does no
harm. Only this module knows Ray, which is imported when an engine is made.
"""

from __future__ import annotations

import importlib
import itertools
import math
import pickle
import shutil
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diskgnn.errors import ConfigError, UnavailableError, WorkerLostError, callers_level
from diskgnn.files.disk_space import UNLIMITED, DiskBudget
from diskgnn.formats.manifest import read_manifest
from diskgnn.preparing import ray_tasks
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.preparing.ray_nodes import PROCESS_BYTES, alive_nodes, worker_resources
from diskgnn.preparing.ray_progress import Board, NamedReporter, Stages, Telling
from diskgnn.preparing.ray_tasks import Arrived, Event
from diskgnn.progress.reporter import SILENT, Advance, Reporter, StageReport
from diskgnn.sampling.memory_division import fits
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import run_units
from diskgnn.sampling.sample_units import SampledUnit, SampleUnit, sample_units
from diskgnn.system.resources import Resources
from diskgnn.units import format_size
from diskgnn.work.writer import ArtifactWriter

_MAX_RETRIES = 3  # of a task whose worker or node died
_TASKS_PER_WORKER = 4  # of sampling with topology in memory, so that workers end at nearly the same time
_POLL_SECONDS = 0.5
_POLLS_PER_LOOK = 20  # whether there are still nodes
_CANCEL_SECONDS = 10  # that tasks get to end by themselves
_MAX_RANKS = 64  # prepared at the same time, by a thread here for each


class RayEngine:
    """Runs tasks on a cluster. A context manager: leaving it cancels what is under way.

    Args:
        address: of a running Ray; None for the one that Ray finds by itself (RAY_ADDRESS), or a new one on this
            machine. A Ray that this process is connected to already is used.

    Raises:
        UnavailableError: Ray is not installed.
        ConfigError: no Ray at this address.
    """

    def __init__(self, address: str | None = None) -> None:
        self._ray = _imported()
        self._address = address
        self._stopping = threading.Event()
        self._topics = itertools.count()

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
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        board = ray.remote(Board).options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)
        self._board = board.remote()
        exits.callback(ray.kill, self._board)
        self._work = ray.remote(ray_tasks.work)

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._exits.close()

    def resources(self, memory: int | str, threads: int | None, reporter: Reporter, sending_bytes: int) -> Resources:
        """Those of one worker. By default it has half of the smallest node, and all of its cores.

        Raises:
            ConfigError: no node has as much.
        """
        return worker_resources(alive_nodes(self._ray), memory, threads, reporter)

    def write_shards(self, writer: ArtifactWriter, plan: SamplingPlan, resources: Resources) -> tuple[int, int]:
        """By tasks of several units each."""
        units = sample_units(plan)
        num_batches = sum(len(unit.numbers) for unit in units)
        with resources.reporter.stage("sample", num_batches, "minibatches") as advance:
            return run_units(writer, units, partial(self._sample, writer, plan, resources, advance), advance)

    def _sample(
        self,
        writer: ArtifactWriter,
        plan: SamplingPlan,
        resources: Resources,
        advance: Advance,
        units: Iterator[SampleUnit],
    ) -> Generator[SampledUnit, None, int]:
        arriving = writer.path("arriving")  # a folder in the staging directory is scratch: stragglers go with it
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir()
        missing = {unit.name: unit for unit in units}
        given = self._pickled((plan, replace(resources, reporter=SILENT, disk=UNLIMITED)))
        parts = _parts(list(missing.values()), self._num_parts(plan, resources))
        calls = [
            (ray_tasks.sample, given, part, str(arriving), disk_bytes)
            for part, disk_bytes in zip(parts, _disk_of_parts(resources.disk.left_bytes, parts), strict=True)
        ]

        results: list[Any] = []

        def take(arrived: Event) -> Iterator[SampledUnit]:
            assert isinstance(arrived, Arrived), arrived
            path, name = arriving / arrived.file, arrived.sampled.unit.name
            if missing.pop(name, None) is None:  # made twice, or told twice
                path.unlink(missing_ok=True)
                return
            _require_whole(path, arrived)
            path.rename(writer.path(name))
            advance(len(arrived.sampled.unit.numbers))
            yield arrived.sampled

        def events() -> Generator[Event, None, None]:
            nonlocal results
            results = yield from self._events(calls, resources)

        for event in events():
            yield from take(event)
        for arrived, _ in results:
            for each in arrived:  # events may be lost
                yield from take(each)
        assert not missing, missing
        return sum(read_bytes for _, read_bytes in results)

    def pack(self, request: PrepareRequest, overwrite: bool) -> StageReport:
        """By one task that places and one that packs, each where the one before it ended, finished or not."""
        digest = read_manifest(request.samples_path).digest
        given = self._pickled(replace(request, resources=replace(request.resources, reporter=SILENT)))
        arguments = (given, digest, ray_tasks.published(request.destination.there), overwrite)
        with Stages(request.resources.reporter) as stages:
            [placed] = self._results([(ray_tasks.place, *arguments)], request.resources, stages.show)
            [packed] = self._results([(ray_tasks.pack, *arguments)], request.resources, stages.show)
        assert isinstance(placed, StageReport), placed
        assert isinstance(packed, StageReport), packed
        seconds, read_bytes = placed.seconds + packed.seconds, placed.read_bytes + packed.read_bytes
        return replace(packed, seconds=seconds, read_bytes=read_bytes)

    def each(
        self, requests: Iterable[PrepareRequest], prepare: Callable[[PrepareRequest], list[StageReport]]
    ) -> list[StageReport]:
        """All at the same time, each in a thread that waits for its tasks. The first error ends all."""
        requests, lock = list(requests), threading.Lock()
        if len(requests) == 1:
            return prepare(requests[0])

        def own(request: PrepareRequest, disk: DiskBudget) -> PrepareRequest:
            reporter = NamedReporter(request.resources.reporter, request.out.name, lock)
            return replace(request, resources=replace(request.resources, reporter=reporter, disk=disk))

        disks = requests[0].resources.disk.divided([each.written(1) for each in requests]) if requests else []
        with ThreadPoolExecutor(_MAX_RANKS) as pool:
            waiting = futures = [pool.submit(prepare, own(*each)) for each in zip(requests, disks, strict=True)]
            try:
                while waiting:
                    done, not_done = wait(waiting, timeout=_POLL_SECONDS)  # a signal is handled in between
                    for future in done:
                        future.result()
                    waiting = list(not_done)
            except BaseException:
                self._stopping.set()
                raise
        return [report for future in futures for report in future.result()]

    def _num_parts(self, plan: SamplingPlan, resources: Resources) -> int:
        """Tasks to sample `plan` by: some for each worker that there is room for; one if each sweeps the topology."""
        workers = sum(node.workers(resources.threads, resources.memory_bytes) for node in alive_nodes(self._ray))
        per_rank = math.ceil(workers / plan.spec.shard.world_size)
        return max(1, per_rank * (_TASKS_PER_WORKER if fits(plan, resources.memory_bytes) else 1))

    def _pickled(self, given: Any) -> Any:
        """A reference to what all tasks are given.

        Raises:
            ConfigError: it holds what cannot be sent.
        """
        try:
            return self._ray.put(self._ray.cloudpickle.dumps(given))
        except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"sampler: expected a function that can be pickled, to be sent to workers ({_first_line(error)}); give "
                f"it by its name 'module:function', of a module that workers can import"
            ) from error

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
            calls: each a step of `ray_tasks`, a reference to what it is given, and arguments.
            resources: what each takes.

        Raises:
            WorkerLostError: workers died again and again.
            Exception: what the step raised.
            CancelledError: another thread failed.
        """
        ray, topic = self._ray, next(self._topics)
        remote = self._work.options(
            num_cpus=resources.threads, memory=resources.memory_bytes + PROCESS_BYTES, max_retries=_MAX_RETRIES,
            scheduling_strategy="SPREAD", name=f"diskgnn {calls[0][0].__name__}" if calls else "",
        )  # fmt: skip
        tell, expected = Telling(self._board, topic), ray_tasks.versions()
        results = [remote.remote(step, given, expected, tell, *rest) for step, given, *rest in calls]
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
                yield from self._told(topic)
                for each in done:
                    self._result(each)
            return [self._result(each) for each in results]
        except GeneratorExit:
            self._cancel(waiting)
            raise
        except BaseException:
            self._cancel(waiting)
            yield from self._told(topic)  # what arrived meanwhile is kept
            raise

    def _warn_of_no_room(self, resources: Resources) -> None:
        if not any(node.workers(resources.threads, resources.memory_bytes) for node in alive_nodes(self._ray)):
            warnings.warn(
                f"no node of Ray has room for a worker of {resources.threads} cores and "
                f"{format_size(resources.memory_bytes)} any more: waiting for one to join. Ctrl-C ends this, and keeps "
                f"what is done",
                stacklevel=callers_level(),
            )

    def _told(self, topic: int) -> list[Event]:
        """Returns the events that came since it was asked last."""
        try:
            events: list[Event] = self._ray.get(self._board.take.remote(topic))
        except self._ray.exceptions.RayError:  # progress is lost with the board, results are not
            return []
        return events

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if not isinstance(error.cause, Exception) or isinstance(error.cause, errors.RayError):
                raise
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


def _imported() -> Any:
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


def _parts(units: Sequence[SampleUnit], number: int) -> list[list[SampleUnit]]:
    """`units` in order in at most so many parts, whose lengths differ by 1 at most; none is empty."""
    number = min(number, len(units))
    return [list(units[len(units) * n // number : len(units) * (n + 1) // number]) for n in range(number)]


def _disk_of_parts(left_bytes: int | None, parts: Sequence[Sequence[SampleUnit]]) -> list[int | None]:
    """What the files of each part may take, of all that is left: as much for each minibatch."""
    minibatches = [sum(len(unit.numbers) for unit in part) for part in parts]
    return [None if left_bytes is None else left_bytes * number // sum(minibatches) for number in minibatches]


def _require_whole(path: Path, arrived: Arrived) -> None:
    found = path.stat().st_size if path.exists() else None
    if found != arrived.sampled.bytes:
        raise ConfigError(
            f"{path} is {'not there' if found is None else f'{found} bytes long'}, where a worker wrote "
            f"{arrived.sampled.bytes} bytes: the output must lie in a folder that all nodes share, at the same path"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
