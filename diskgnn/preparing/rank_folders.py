"""Where `prepare` writes: one directory, or a folder with one for each rank, that nobody else writes meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from diskgnn.errors import ArtifactError, OutputExistsError
from diskgnn.files.locks import hold_lock
from diskgnn.files.own_files import require_own_folder
from diskgnn.files.write_errors import beginning
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.packed import Packed
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.packing.tiers import TierBudgets
from diskgnn.preparing.prepare_request import PrepareRequest, scratch_of
from diskgnn.stores.locations import Location, StoredPath, names_in
from diskgnn.work.overwriting import artifact_at, require_replaceable_there


@contextmanager
def preparing_alone(out: Path) -> Iterator[None]:
    """Keeps others from preparing `out` within the block.

    Raises:
        BusyError: another process does now.
        ConfigError: its folder cannot be written to.
    """
    with beginning(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    busy = f"another process is preparing {out} now; wait for it or stop it"
    with hold_lock(out.with_name(f".{out.name}.preparing.lock"), out, busy):
        require_own_folder(scratch_of(out))
        yield


@contextmanager
def unfinished_ranks(request: PrepareRequest, ranks: int, *, overwrite: bool) -> Iterator[list[PrepareRequest]]:
    """Yields what is still to be prepared of `ranks` ranks: one request for each, in order, which may be done anywhere.

    `request` is for all minibatches, and its output the folder. Caches are those of each rank. A rank whose directory
    is there, made with the same settings, is done; when all are, `overwrite` makes them all again. When the block ends
    without an error, all are done.

    Raises:
        BusyError: another process prepares this folder.
        OutputExistsError: it holds something else, or all of this already and `overwrite` is False.
    """
    of_ranks = [_of_rank(request, rank, ranks) for rank in range(ranks)]
    with preparing_alone(request.out):
        named = {each.out.name: each for each in of_ranks}
        out = request.destination.there
        there = _ranks_there(out, list(named))
        differing = {name: _difference(named[name], config) for name, config in there.items()}
        done = {name for name, difference in differing.items() if difference is None}
        if not overwrite:
            _refuse_others(out, differing, ranks)
        elif len(done) == ranks:
            done = set()
        request.scratch.mkdir(parents=True, exist_ok=True)
        yield [each for name, each in named.items() if name not in done]
        for each in (request, *of_ranks):
            shutil.rmtree(each.scratch, ignore_errors=True)


def _refuse_others(out: Location, differing: Mapping[str, str | None], ranks: int) -> None:
    """Refuse ranks that are there and differ in something, or are all that were asked for.

    Raises:
        OutputExistsError: names them.
    """
    others = [f"{name} of another {what}" for name, what in differing.items() if what is not None]
    if others or len(differing) == ranks:
        replaced = "remove that there" if isinstance(out, StoredPath) else "pass overwrite=True to replace it"
        found = ", ".join(others) or f"all of {ranks} ranks already"
        raise OutputExistsError(f"{out} holds {found}; {replaced}, or choose another output")


def _of_rank(request: PrepareRequest, rank: int, ranks: int) -> PrepareRequest:
    """Returns what one rank has of `request`, which is for all of them."""
    name = artifacts.rank_directory(rank, ranks)
    samples = None if request.samples is None else request.samples / name
    return replace(
        request, plan=request.plan.shard(rank, ranks), destination=request.destination / name, samples=samples
    )


def _ranks_there(out: Location, names: list[str]) -> dict[str, PackedConfig]:
    """Returns which of the ranks called `names` are in the folder `out`, and what each was made with.

    Raises:
        OutputExistsError: something else is.
    """
    entries = [""] if out.is_file() else names_in(out)
    hidden = tuple(f".{name}." for name in names)  # what a run left that was stopped
    if foreign := [entry for entry in entries if entry not in names and not entry.startswith(hidden)]:
        found = "a packed directory for one rank" if artifacts.MANIFEST in foreign else ", ".join(foreign[:5])
        raise OutputExistsError(
            f"{out} holds {found or 'a file'}, expected nothing but {names[0]} to {names[-1]}: choose another output, "
            "or remove it by hand"
        )
    found_there = {name: _rank_at(out / name) for name in names if name in entries}
    return {name: config for name, config in found_there.items() if config is not None}


def _rank_at(place: Location) -> PackedConfig | None:
    """Returns what the rank there was made with; None of one that a stopped run has sent in part.

    Raises:
        OutputExistsError: something else is there.
    """
    if isinstance(place, StoredPath) and artifact_at(place) is None:
        require_replaceable_there(place, artifacts.PACKED, None, overwrite=False)
        return None
    try:
        return Packed(read_manifest(place, artifacts.PACKED)).config
    except ArtifactError as error:
        raise OutputExistsError(f"{error}; remove it by hand, or choose another output") from error


def _difference(request: PrepareRequest, there: PackedConfig) -> str | None:
    """Says in what `request` is not for what is there already; None if it would make just that, byte for byte."""
    of_request = {
        "graph": request.graph.manifest.digest,
        "way of sampling": request.plan.config(),
        "`keep_input_nodes`": request.keep_input_nodes,
    }
    of_there = there.graph, there.samples, there.keep_input_nodes
    for (what, wanted), found in zip(of_request.items(), of_there, strict=True):
        if wanted != found:
            return what
    return _other_cache(request.tiers, there)


def _other_cache(budgets: TierBudgets, there: PackedConfig) -> str | None:
    """Says which cache of what is there was made for another budget. One that holds all rows fits any."""
    row_bytes = [each.rows.row_bytes for each in there.row_sets]

    def fits(rows: list[int], budget: int, *, holds_all: bool) -> bool:
        left_bytes = budget - sum(number * width for number, width in zip(rows, row_bytes, strict=True))
        return left_bytes >= 0 and (holds_all or left_bytes < sum(row_bytes))  # dividing leaves less than a row of each

    first, *_ = there.splits.values()  # which chose the static rows
    static = [each.num_static for each in there.row_sets]
    all_static = first.rows.static == first.rows.requested
    if not budgets.static_is_auto and not fits(static, budgets.static, holds_all=all_static):
        return "`static_cache`"
    for name, split in there.splits.items():
        cpu = [each.cpu_rows for each in split.row_sets]
        if not fits(cpu, budgets.cpu(name), holds_all=split.rows.disk == 0):
            return "`cpu_cache`" if name == "train" else "`eval_cpu_cache`"
    return None
