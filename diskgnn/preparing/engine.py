"""Where the work of `prepare` is done: in this process, or wherever somebody's scheduler has room."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from diskgnn.errors import ConfigError
from diskgnn.formats.samples import Samples
from diskgnn.packing.pack import pack_request
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import write_shards
from diskgnn.specs.sampling import ENGINES
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter


class Engine(Protocol):
    """Does the work of `prepare`. What it makes is the same, byte for byte, whichever it is."""

    def resources(self, memory: int | str, threads: int | None, reporter: Reporter, sending_bytes: int) -> Resources:
        """What each of its processes may spend; `sending_bytes` of memory are for sending to a store.

        Raises:
            ConfigError: sizes that make no sense, or that it does not have.
        """
        ...

    def write_shards(self, writer: ArtifactWriter, plan: SamplingPlan, resources: Resources) -> tuple[int, int]:
        """Write and register the shards of `plan`; (edges sampled, bytes read)."""
        ...

    def pack(self, request: PrepareRequest, overwrite: bool) -> StageReport:
        """Place and pack the samples of `request`, which are there."""
        ...

    def each(
        self, requests: Iterable[PrepareRequest], prepare: Callable[[PrepareRequest], list[StageReport]]
    ) -> list[StageReport]:
        """What `prepare` reports of each request, in order. It calls this engine, from several threads maybe."""
        ...


class LocalEngine:
    """This process, one thing after the other. A context manager, as others are."""

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def resources(self, memory: int | str, threads: int | None, reporter: Reporter, sending_bytes: int) -> Resources:
        """Those of this machine."""
        return Resources.of(memory, threads, reporter, sending_bytes=sending_bytes)

    def write_shards(self, writer: ArtifactWriter, plan: SamplingPlan, resources: Resources) -> tuple[int, int]:
        """By the threads of this process."""
        return write_shards(writer, plan, resources)

    def pack(self, request: PrepareRequest, overwrite: bool) -> StageReport:
        """By the threads of this process."""
        to_pack = request.packing(Samples.open(request.samples_path))
        return pack_request(to_pack, request.destination, request.resources, overwrite=overwrite)

    def each(
        self, requests: Iterable[PrepareRequest], prepare: Callable[[PrepareRequest], list[StageReport]]
    ) -> list[StageReport]:
        """One after the other."""
        return [report for request in requests for report in prepare(request)]


def open_engine(name: str, address: str | None = None) -> AbstractContextManager[Engine]:
    """The engine called `name`, connected.

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
    from diskgnn.preparing.ray_engine import RayEngine

    return RayEngine(address)
