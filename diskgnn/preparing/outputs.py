"""Where `prepare` writes: one directory, or a folder with one for each rank, that nobody else writes meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diskgnn.errors import ArtifactError, ConfigError, OutputExistsError
from diskgnn.preparing.request import PrepareRequest
from diskgnn.storage import artifacts
from diskgnn.storage.locks import alone
from diskgnn.storage.manifest import read_manifest

_SETTINGS = "ranks.json"  # in the scratch of a folder of ranks: what they are being prepared with


@contextmanager
def preparing_alone(out: Path) -> Iterator[None]:
    """Nobody else prepares `out` within the block.

    Raises:
        BusyError: another process does now.
        ConfigError: its folder cannot be written to.
    """
    with ExitStack() as held:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            busy = f"another process is preparing {out} now; wait for it or stop it"
            held.enter_context(alone(out.with_name(f".{out.name}.preparing.lock"), busy))
        except OSError as error:
            raise ConfigError(
                f"cannot write {out}: {error.strerror or error}; choose an output in another folder"
            ) from error
        yield


@contextmanager
def unfinished_ranks(request: PrepareRequest, ranks: int, *, overwrite: bool) -> Iterator[list[PrepareRequest]]:
    """What is still to be prepared of `ranks` ranks: one request for each, in order, which may be done anywhere.

    `request` is for all minibatches, and its output the folder. Caches are those of each rank. A rank whose directory
    is there is done, if a run with the same settings was stopped before all were; when the block ends without an error,
    all are.

    Raises:
        BusyError: another process prepares this folder.
        OutputExistsError: it holds something else, or all of this already and `overwrite` is False.
    """
    names = [artifacts.rank_directory(rank, ranks) for rank in range(ranks)]
    with preparing_alone(request.out):
        there = _ranks_there(request.out, names)
        settings, record = _settings(request), request.scratch / _SETTINGS
        found = _read(record)
        if there and not overwrite and found != settings:
            raise OutputExistsError(
                f"{request.out} holds "
                + (f"all of {ranks} ranks already" if found is None else f"{', '.join(there)} of other settings")
                + "; pass overwrite=True to replace it, or choose another output"
            )
        request.scratch.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(settings))
        of_ranks = [
            replace(
                request,
                plan=request.plan.shard(rank, ranks),
                out=request.out / name,
                samples=None if request.samples is None else request.samples / name,
            )
            for rank, name in enumerate(names)
        ]
        yield [each for each in of_ranks if overwrite or each.out.name not in there]
        for each in (request, *of_ranks):
            shutil.rmtree(each.scratch, ignore_errors=True)


def _ranks_there(out: Path, names: list[str]) -> list[str]:
    """Which of the ranks called `names` are in the folder `out`.

    Raises:
        OutputExistsError: something else is.
    """
    if not out.exists():
        return []
    entries = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else [""]
    hidden = tuple(f".{name}." for name in names)  # what a run left that was stopped
    if foreign := [entry for entry in entries if entry not in names and not entry.startswith(hidden)]:
        found = "a packed directory for one rank" if artifacts.MANIFEST in foreign else ", ".join(foreign[:5])
        raise OutputExistsError(
            f"{out} holds {found or 'a file'}, expected nothing but {names[0]} to {names[-1]}: choose another output, "
            "or remove it by hand"
        )
    there = [name for name in names if name in entries]
    for name in there:
        try:
            read_manifest(out / name, artifacts.PACKED)
        except ArtifactError as error:
            raise OutputExistsError(f"{error}; remove it by hand, or choose another output") from error
    return there


def _settings(request: PrepareRequest) -> dict[str, Any]:
    """All that the ranks' directories depend on."""
    settings = {
        "graph": request.graph.manifest.digest,
        "samples": request.plan.config().to_json(),
        "cache": {name: str(size) for name, size in asdict(request.cache).items()},
        "keep_input_nodes": request.keep_input_nodes,
        "keep_edge_ids": request.keep_edge_ids,
    }
    return dict(json.loads(json.dumps(settings)))  # as `_read` finds it


def _read(record: Path) -> Any:
    """None if there is none, or it is damaged."""
    with suppress(OSError, ValueError):
        return json.loads(record.read_text())
    return None
