"""What somebody may do with an artifact of each kind, a bit of everything."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.formats.hops import Hops
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import find_damage
from diskgnn.graph.artifact_description import describe
from diskgnn.preparing.repair import repair
from diskgnn.system.resources import Resources

SAMPLING = {"fanouts": [2, 2], "batch_size": 5}


def use(kind: str, folder: Path, sound: Path, scratch: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """(what is done, a call that does it) with the artifact of a kind of `fuzz_targets.sound_directories`."""
    yield "inspect", lambda: describe(folder)
    yield "verify", lambda: find_damage(folder)
    if kind in ("graph", "typed", "tables"):
        yield "open", lambda: _open_graph(folder)
        target = {"graph": None, "typed": diskgnn.LinkTarget("author:writes:paper"), "tables": "left"}[kind]
        temporal = None if kind == "graph" else "uniform"
        options = {**SAMPLING, "target": target, "temporal": temporal}
        yield "prepare", lambda: _fresh(scratch / "out", lambda out: diskgnn.prepare(
            folder, out, **options, group_seeds=2, cpu_cache="10%", edge_ids=kind == "typed",
            keep_times=kind != "graph", threads=1,
        ))  # fmt: skip
        if kind == "graph":
            yield "propagate", lambda: _fresh(scratch / "out", lambda out: diskgnn.propagate(
                folder, out, hops=2, operators="symmetric", threads=1
            ))  # fmt: skip
        yield "in memory", lambda: _first(InMemory(folder, **options))
    elif kind == "hops":
        yield "open", lambda: _open_hops(folder)
        yield "load", lambda: _first(diskgnn.HopsLoader(folder))
        yield "train", lambda: diskgnn.train(folder, epochs=1, hidden=2)
    elif kind == "samples":
        yield "open", lambda: _open_samples(folder)
        yield "pack", lambda: _fresh(scratch / "out", lambda out: diskgnn.pack(
            sound / "graph", folder, out, threads=1, cpu_cache="10%"
        ))  # fmt: skip
        yield "repair", lambda: repair(folder, graph=sound / "graph", resources=Resources.of("auto", 1))
    else:
        yield "open", lambda: Packed.open(folder)
        yield "load", lambda: _first(diskgnn.Loader(folder))
        yield "train", lambda: diskgnn.train(folder, epochs=1, hidden=2)
        graph = {"packed": "graph", "links": "typed", "columns": "tables"}[kind]
        yield "repair", lambda: repair(folder, graph=sound / graph, resources=Resources.of("auto", 1))


def _open_graph(folder: Path) -> None:
    graph = diskgnn.Graph.open(folder)
    for nodes in graph.nodes.values():
        nodes.categories()
        assert nodes.labels is None or len(nodes.labels) == nodes.num_nodes
    for edges in graph.edges.values():
        edges.topology()
        assert edges.splits is not None


def _open_hops(folder: Path) -> None:
    hops = Hops.open(folder)
    for split in hops.config.num_rows:
        assert hops.records(split).shape[1] == hops.config.num_values
    mean, deviation = hops.statistics()
    assert mean.shape == deviation.shape == (hops.config.num_values,)


def _open_samples(folder: Path) -> None:
    samples = Samples.open(folder)
    for split in samples.splits:
        for _ in islice(samples.read(split), 3):
            pass


def _first(source: object) -> None:
    with source as opened:
        for _ in islice(opened.epoch(0), 3):
            pass


def _fresh(out: Path, call: Callable[[Path], object]) -> None:
    for left in out.parent.glob(f"*{out.name}*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    call(out)
