"""An epoch of the loader against the disk's own rate, and what assembling minibatches takes of it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import diskgnn
from benchmarks import limits
from benchmarks.settings import Settings
from diskgnn._native import READ_AHEAD_BYTES
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed


def loader(settings: Settings) -> dict[str, Any]:
    """An epoch with a consumer that does nothing, and the same file read front to back; both in turns."""
    threads = len(os.sched_getaffinity(0))
    packed = Packed.open(settings.packed)
    train, row_bytes, index = packed.sequence("train"), packed.config.one_row_set.rows.row_bytes, packed.index("train")
    path = packed.file(artifacts.extents_file("train"))
    with diskgnn.Loader(settings.packed) as source:
        restore_seconds = limits.timed(lambda: next(source.epoch(0)))  # the tier is filled, the first minibatch is here
        turns = [_turn(source, turn, path, row_bytes) for turn in range(settings.repeat)]
        peak_bytes = limits.peak_bytes()
        beside = [limits.rates_beside_each_other(path) for _ in range(settings.repeat)]
        copies = [
            (limits.copy_rate(1), limits.copy_rate(threads), limits.checksum_rate()) for _ in range(settings.repeat)
        ]
    budget_bytes = train.cpu_rows * row_bytes + READ_AHEAD_BYTES
    budget_bytes += 2 * (train.max_inputs * row_bytes + train.max_header_bytes)  # prefetch 1, and the user's
    copy_one, copy_all, checksum_rate = (median(rates) for rates in zip(*copies, strict=True))
    beside_copying, copy_beside_reading = (median(rates) for rates in zip(*beside, strict=True))
    rate, raw_rate, x_rate = (median(turn[name] for turn in turns) for name in ("rate", "raw_rate", "x_rate"))
    return {
        "turns": turns,
        "threads": threads,
        "of_raw_rate": [turn["rate"] / turn["raw_rate"] for turn in turns],
        "rate": rate,
        "raw_rate": raw_rate,
        "of_rate_beside_copying": rate / beside_copying,
        "rate_beside_copying": beside_copying,
        "x_rate": x_rate,
        "copy_rate_beside_reading": copy_beside_reading,
        "copy_rate_one_thread": copy_one,
        "copy_rate_all_threads": copy_all,
        "checksum_rate": checksum_rate,
        "seconds": median(turn["seconds"] for turn in turns),
        # docs/PERFORMANCE.md: whichever is slower, the assembling thread or the disk beside it.
        "predicted_seconds": max(path.stat().st_size / beside_copying, turns[0]["x_bytes"] / x_rate),
        "restore_seconds": restore_seconds,
        "extent_bytes": path.stat().st_size,
        "header_bytes": int(index.extents["header_bytes"].sum()),
        "minibatches": len(index.extents),
        "peak_bytes": peak_bytes,
        "budget_bytes": budget_bytes,
    }


def _turn(source: diskgnn.Loader, epoch: int, path: Path, row_bytes: int) -> dict[str, Any]:
    raw_before, before = limits.read_rate(path), source.stats()
    # The first epoch seeks back to the start, which refills the tier; the others go on.
    batches = source.epoch(epoch)
    restored_bytes = source.stats().restored_bytes - before.restored_bytes
    seconds = limits.timed(lambda: sum(1 for _ in batches))
    # On both sides of the epoch: a host that caches its disks makes whoever reads last the fastest.
    raw_rate = (raw_before + limits.read_rate(path)) / 2
    found = source.stats() - before
    x_bytes = (found.requested_rows - found.device_rows) * row_bytes
    return {
        "seconds": seconds,
        "rate": path.stat().st_size / seconds,
        "raw_rate": raw_rate,
        "x_bytes": x_bytes,
        "x_rate": x_bytes / (found.gather_seconds + found.scatter_seconds),
        "restored_bytes": restored_bytes,
    } | {name: value for name, value in asdict(found).items() if name.endswith(("_seconds", "_rows"))}
