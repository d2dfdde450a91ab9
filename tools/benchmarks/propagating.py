"""Whole neighbourhoods: propagating against what it was predicted to take, and an epoch of hops against the disk."""

from __future__ import annotations

import shutil
from functools import partial
from statistics import median
from typing import Any

import diskgnn
from benchmarks import limits
from benchmarks.settings import Settings
from diskgnn.formats.artifacts import extents_file, records_file
from diskgnn.formats.packed import Packed


def propagate(settings: Settings) -> dict[str, Any]:
    """Hops of the train seeds, the page cache dropped before each turn; the raw rate of the features on both sides."""
    turns = []
    features = diskgnn.Graph.open(settings.graph).feature_file.path
    for _ in range(settings.repeat):
        shutil.rmtree(settings.hops, ignore_errors=True)
        limits.drop_page_cache(settings.folder)
        raw_rate = limits.read_rate(features)
        report = diskgnn.propagate(
            settings.graph, settings.hops, hops=settings.num_hops, operators=settings.operators, memory=settings.memory,
            progress=False,
        )  # fmt: skip
        raw_rate = (raw_rate + limits.read_rate(features)) / 2
        moved_bytes = report.read_bytes + report.written_bytes
        predicted_bytes = int(report.details["predicted_read_bytes"]) + int(report.details["predicted_written_bytes"])
        turns.append({
            "seconds": report.seconds, "read_bytes": report.read_bytes, "written_bytes": report.written_bytes,
            "of_predicted": moved_bytes / predicted_bytes, "rate": moved_bytes / report.seconds, "raw_rate": raw_rate,
            **report.details,
        })  # fmt: skip
    return {
        "turns": turns,
        "seconds": median(turn["seconds"] for turn in turns),
        "peak_bytes": limits.peak_bytes(),
        "budget_bytes": settings.memory,
    }


def hops(settings: Settings) -> dict[str, Any]:
    """An epoch of records that are not kept in memory, with a consumer that does nothing, and the same file read front
    to back; in turns. And what they are in memory.
    """
    path = settings.hops / records_file("train")
    with (
        diskgnn.HopsLoader(settings.hops, batch_size=settings.batch_size, memory=1) as read,
        diskgnn.HopsLoader(settings.hops, batch_size=settings.batch_size, memory="1TiB") as kept,
    ):
        next(kept.epoch(0))
        turns = []
        for epoch in range(settings.repeat):
            raw_rate, before = limits.read_rate(path), read.stats()
            seconds = limits.timed(partial(_consume, read, epoch))
            raw_rate = (raw_rate + limits.read_rate(path)) / 2
            kept_seconds = limits.timed(partial(_consume, kept, epoch))
            turns.append({
                "seconds": seconds, "read_bytes": (read.stats() - before).read_bytes, "raw_rate": raw_rate,
                "rate": path.stat().st_size / seconds, "kept_seconds": kept_seconds,
            })  # fmt: skip
    packed = settings.packed / extents_file("train")
    epochs = Packed.open(settings.packed).sequence("train").epochs if packed.exists() else 1
    return {
        "turns": turns,
        "of_raw_rate": [turn["rate"] / turn["raw_rate"] for turn in turns],
        "record_bytes": path.stat().st_size,
        "packed_epoch_bytes": packed.stat().st_size // epochs if packed.exists() else None,
        "peak_bytes": limits.peak_bytes(),
    }


def _consume(source: diskgnn.HopsLoader, epoch: int) -> None:
    for _ in source.epoch(epoch):
        pass
