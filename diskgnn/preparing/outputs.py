"""Where `prepare` writes: one directory, or a folder with one for each rank, that nobody else writes meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
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
_REPLACED = "replaced"  # in the record: digests of ranks that an overwriting run found there


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
    is there is done, if a run with the same settings was stopped before all were, and made it; when the block ends
    without an error, all are.

    Raises:
        BusyError: another process prepares this folder.
        OutputExistsError: it holds something else, or all of this already and `overwrite` is False.
    """
    names = [artifacts.rank_directory(rank, ranks) for rank in range(ranks)]
    with preparing_alone(request.out):
        there = _ranks_there(request.out, names)
        settings, record = _settings(request), request.scratch / _SETTINGS
        found = _read(record)
        replaced = {} if found is None else found.pop(_REPLACED)
        if found != settings:  # no run of these was stopped
            replaced = there
        others = [name for name in there if there[name] == replaced.get(name)]
        if others and not overwrite:
            raise OutputExistsError(
                f"{request.out} holds "
                + (f"{', '.join(others)} of other settings" if found is not None else _said_of(there, names))
                + "; pass overwrite=True to replace it, or choose another output"
            )
        request.scratch.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({**settings, _REPLACED: replaced}))
        of_ranks = [
            replace(
                request,
                plan=request.plan.shard(rank, ranks),
                out=request.out / name,
                samples=None if request.samples is None else request.samples / name,
            )
            for rank, name in enumerate(names)
        ]
        yield [each for each in of_ranks if each.out.name not in there or each.out.name in others]
        for each in (request, *of_ranks):
            shutil.rmtree(each.scratch, ignore_errors=True)


def _said_of(there: Collection[str], names: list[str]) -> str:
    """Of ranks that no stopped run is known to have made."""
    missing = [name for name in names if name not in there]
    if not missing:
        return f"all of {len(names)} ranks already"
    return f"{', '.join(sorted(there))} of a run that is finished, and {', '.join(missing)} is missing"


def _ranks_there(out: Path, names: list[str]) -> dict[str, str]:
    """Which of the ranks called `names` are in the folder `out`, and their digests.

    Raises:
        OutputExistsError: something else is.
    """
    if not out.exists():
        return {}
    entries = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else [""]
    hidden = tuple(f".{name}." for name in names)  # what a run left that was stopped
    if foreign := [entry for entry in entries if entry not in names and not entry.startswith(hidden)]:
        found = "a packed directory for one rank" if artifacts.MANIFEST in foreign else ", ".join(foreign[:5])
        raise OutputExistsError(
            f"{out} holds {found or 'a file'}, expected nothing but {names[0]} to {names[-1]}: choose another output, "
            "or remove it by hand"
        )
    there = {}
    for name in [name for name in names if name in entries]:
        try:
            there[name] = read_manifest(out / name, artifacts.PACKED).digest
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
        found = json.loads(record.read_text())
        return found if isinstance(found, dict) and isinstance(found.get(_REPLACED), dict) else None
    return None
