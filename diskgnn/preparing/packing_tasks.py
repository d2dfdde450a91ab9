"""Placing and packing as tasks of an engine that has workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from diskgnn.engines.engine import Engine
from diskgnn.engines.telling import Tell, TellingReporter
from diskgnn.engines.worker_tasks import seen_by_all
from diskgnn.errors import ArtifactError, BusyError
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.samples import Samples
from diskgnn.packing.pack import pack_request, place_request
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.progress.reporter import SILENT, StageReport
from diskgnn.sampling.sample import send_sampling
from diskgnn.stores.locations import Location

_BUSY_SECONDS = 120  # file systems of a network give up the locks of a dead machine after 90 seconds or so


def pack_by_tasks(engine: Engine, request: PrepareRequest, *, overwrite: bool) -> StageReport:
    """Packs by one task that places and one that packs, each where the one before it ended, finished or not."""
    resources = request.resources
    sent = send_sampling(engine, replace(request, resources=replace(resources, reporter=SILENT)))
    arguments = (read_manifest(request.samples_path).digest, published(request.destination.there), overwrite)
    placed = engine.call(place, sent, resources, *arguments)
    packed = engine.call(pack, sent, resources, *arguments)
    seconds, read_bytes = placed.seconds + packed.seconds, placed.read_bytes + packed.read_bytes
    return replace(packed, seconds=seconds, read_bytes=read_bytes)


def place(request: PrepareRequest, tell: Tell, digest: str, there: str | None, overwrite: bool) -> StageReport:
    """Place the samples of `request`, which are those of `digest`: what that gives lies beside the output."""
    report = _published_or(place_request, "place", request, tell, digest, there, overwrite)
    faults.point("worker.placed")
    return report


def pack(request: PrepareRequest, tell: Tell, digest: str, there: str | None, overwrite: bool) -> StageReport:
    """Pack the samples of `request` where `place` ended; or place them as well, if that is lost or damaged.

    `there` is the digest of what `overwrite` replaces: another one is what an earlier run of this task published.
    """
    report = _published_or(pack_request, "pack", request, tell, digest, there, overwrite)
    faults.point("worker.packed")
    return report


def _published_or(
    step: Callable[..., StageReport],
    stage: str,
    request: PrepareRequest,
    tell: Tell,
    digest: str,
    there: str | None,
    overwrite: bool,
) -> StageReport:
    """Returns `step`, unless an earlier run of this task has published the output."""
    with seen_by_all():
        samples = Samples.open(request.samples_path)
        if samples.manifest.digest != digest:
            raise ArtifactError(f"{request.samples_path} holds other samples")
    resources = replace(request.resources, reporter=TellingReporter(tell))
    resources.disk.look()
    out = request.destination.there

    def write() -> StageReport:
        if published(out) not in (None, there):
            return StageReport(stage, 0.0, 0, read_manifest(out).total_bytes if stage == "pack" else 0)
        return step(request.packing(samples), request.destination, resources, overwrite=overwrite)

    return _when_free(write)


def published(out: Location) -> str | None:
    """Returns the digest of the packed directory `out`; None if there is none."""
    with suppress(ArtifactError):
        return read_manifest(out, artifacts.PACKED).digest
    return None


def _when_free(write: Callable[[], StageReport]) -> StageReport:
    """Returns `write`, as soon as whoever ran this task before has died."""
    give_up = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return write()
        except BusyError:
            if time.monotonic() > give_up:
                raise
            time.sleep(1)
