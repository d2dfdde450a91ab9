"""Generating, and preparing against the disk's own rates."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import diskgnn
from benchmarks import limits
from benchmarks.settings import Settings
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.graph.graph import Graph
from diskgnn.progress.reporter import StageReport


def generate(settings: Settings) -> dict[str, Any]:
    """The graph that all others work on."""
    report = make_graph(settings)
    return {"seconds": report.seconds, "written_bytes": report.written_bytes, **report.details}


def make_graph(settings: Settings) -> StageReport:
    """Generate the graph. With `quantise`, the generated one is converted, as a user's would be, and removed."""
    report = diskgnn.generate(
        settings.graph if settings.quantise is None else settings.plain_graph,
        num_nodes=settings.nodes,
        avg_degree=settings.degree,
        num_classes=settings.classes,
        num_features=settings.width,
        feature_dtype=settings.dtype,
        train_fraction=settings.train_fraction,
        valid_fraction=0,
        test_fraction=0,
        homophily=0.7,
        memory=settings.memory,
    )
    if settings.quantise is not None:
        plain = Graph.open(settings.plain_graph)
        edges, nodes = plain.only_edges("edges to quantise"), plain.only_nodes("features to quantise")
        indptr, indices = (plain.manifest.file(name) for name in edges.topology_files)
        features, labels, train = (
            plain.manifest.file(artifacts.node_file(kind, nodes.name))
            for kind in (artifacts.FEATURES, artifacts.LABELS, "train")
        )
        diskgnn.convert(settings.graph, indptr=indptr, indices=indices, features=features, labels=labels, train=train,
                        bfloat16=settings.dtype == "bfloat16", quantise=settings.quantise, num_classes=settings.classes,
                        memory=settings.memory)  # fmt: skip
        shutil.rmtree(settings.plain_graph)
    return report


def make_packed(settings: Settings) -> dict[str, float]:
    """Seconds of each step, publishing (fsync) included, and the bytes of source rows that packing needed.

    `seconds` is all that the user waits for, also before and between the steps. Placing writes the headers meanwhile.
    """
    clock = limits.StageClock()
    for old in (settings.samples, settings.packed):
        shutil.rmtree(old, ignore_errors=True)
    started = perf_counter()
    sampled, packing = diskgnn.prepare(
        settings.graph,
        settings.packed,
        fanouts=settings.fanouts,
        batch_size=settings.batch_size,
        **settings.drawing,
        cpu_cache=settings.cpu_cache,
        static_cache=0,
        memory=settings.memory,
        samples=settings.samples,
        reporter=clock,
    )
    seconds = perf_counter() - started
    place_seconds = clock.seconds["place train"]
    return {
        "seconds": seconds,
        "sample_seconds": sampled.seconds,
        "place_seconds": place_seconds,
        "pack_seconds": packing.seconds - place_seconds,
        "pack_loop_seconds": clock.seconds["pack"],  # without fsync
        "needed_bytes": clock.totals["pack"],
    }


def prepare(settings: Settings) -> dict[str, Any]:
    """Sampling, placement and packing; raw rates of the same disk after each packing."""
    features = Graph.open(settings.graph).feature_file
    turns = []
    for _ in range(settings.repeat):
        limits.drop_page_cache(settings.folder)
        found = make_packed(settings)
        headers_bytes = int(np.load(settings.packed / artifacts.rows_file("train"))["rows_offset"].sum())
        written_bytes = sum(file.stat().st_size for file in settings.packed.iterdir()) - headers_bytes
        read_rate = limits.read_rate(features.path)
        mixed_rate = limits.mixed_rate(features.path, int(found["needed_bytes"]), written_bytes)
        rate = (found["needed_bytes"] + written_bytes) / found["pack_seconds"]
        turns.append(
            {**found, "written_bytes": written_bytes, "read_rate": read_rate, "mixed_rate": mixed_rate, "rate": rate}
        )
    return {
        "turns": turns,
        "place_share": [turn["place_seconds"] / turn["seconds"] for turn in turns],
        "of_mixed_rate": [turn["rate"] / turn["mixed_rate"] for turn in turns],
        "of_read_rate": [turn["rate"] / turn["read_rate"] for turn in turns],
        "seconds": median(turn["seconds"] for turn in turns),
        "rows": asdict(Packed.open(settings.packed).sequence("train").rows),
        "peak_bytes": limits.peak_bytes(),
        "budget_bytes": settings.memory,
    }
