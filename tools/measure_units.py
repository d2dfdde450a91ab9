"""What going on after a kill costs a run that nobody kills: python tools/measure_units.py FOLDER.

Each stage runs with units of 1/32 of it, however small that is, and without any, in turns. Counted are the CPU seconds
of the process (the least of some runs), its records and their bytes, and how often it waited for the disk (fsync):
these do not depend on what else the machine does, as seconds would. A unit is no less than 512 MiB in truth, so the CPU
seconds of a record are put beside those that the stage takes for so much.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from diskgnn import convert, generate, pack, sample
from diskgnn.storage import faults
from diskgnn.storage.journal import Journal

WITH, WITHOUT = 1, 1 << 60  # bytes of a unit, at least
COMMIT_BYTES = 512 << 20  # what a stage handles between two commits in truth, at least


class Counts:
    """What is waited for and recorded in this process."""

    def __init__(self) -> None:
        self.fsyncs = self.record_bytes = self.records = 0
        fsync, add = os.fsync, Journal.add

        def counted_fsync(descriptor: int) -> None:
            self.fsyncs += 1
            fsync(descriptor)

        def counted_add(journal: Journal, name: str, num_bytes: int, crc32c: int) -> None:
            if name.endswith(".npz"):
                self.records, self.record_bytes = self.records + 1, self.record_bytes + num_bytes
            add(journal, name, num_bytes, crc32c)

        os.fsync, Journal.add = counted_fsync, counted_add  # type: ignore[method-assign]


def cpu_seconds() -> float:
    """Of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def stages(folder: Path, nodes: int) -> dict[str, Callable[[Path], object]]:
    """What is measured, and its inputs."""
    sizes = {"num_nodes": nodes, "avg_degree": 10, "num_classes": 16, "num_features": 256, "homophily": 0.7,
             "train_fraction": 0.1, "valid_fraction": 0.01, "test_fraction": 0.01, "memory": "256MiB"}  # fmt: skip
    generate(folder / "graph", **sizes)
    sample(folder / "graph", folder / "samples", fanouts=[10, 10], batch_size=1024, epochs=2)
    random = np.random.default_rng(0)
    np.save(folder / "features.npy", random.standard_normal((nodes, 256), np.float32))
    np.save(folder / "edges.npy", random.integers(0, nodes, (2, 10 * nodes)))
    given = {"features": folder / "features.npy", "edges": folder / "edges.npy", "memory": "256MiB",
             "labels": random.integers(0, 16, nodes), "train": np.arange(nodes // 10)}  # fmt: skip
    names = np.char.add("user/", random.permutation(nodes).astype(str))
    np.save(folder / "ids.npy", names)
    np.save(folder / "named.npy", names[np.load(folder / "edges.npy")])
    np.save(folder / "weights.npy", random.random(10 * nodes, np.float32) + 1)
    carried = {"edges": folder / "edges.npy", "weights": folder / "weights.npy", "keep_ids": True}
    schema = {"nodes": {"n": {"num_nodes": nodes}}, "edges": {"n:to:n": carried}}
    by_id = {**given, "edges": folder / "named.npy", "ids": folder / "ids.npy", "train": names[: nodes // 10]}
    return {
        "generate": lambda out: generate(out, **sizes),
        "convert": lambda out: convert(out, **given),
        "convert --quantise int8": lambda out: convert(out, **given, quantise="int8"),
        "convert edges with weights": lambda out: convert(out, schema=schema, memory="256MiB"),
        "convert --ids": lambda out: convert(out, **by_id),
        "pack": lambda out: pack(folder / "graph", folder / "samples", out, cpu_cache="10%", memory="256MiB"),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    counts, out = Counts(), given.folder / "out"
    print("| stage | written | CPU without | with | records | CPU each | of 512 MiB | bytes | fsync without | with |")
    print("|---|" + "---:|" * 9)
    for name, run in stages(given.folder, given.nodes).items():
        seconds: dict[int, list[float]] = {WITH: [], WITHOUT: []}
        found: dict[int, tuple[int, int, int]] = {}
        for unit_bytes in (WITHOUT, WITH) * given.repeat:
            counts.fsyncs = counts.record_bytes = counts.records = 0
            before = cpu_seconds()
            with faults.pretending("unit.bytes", unit_bytes):
                run(out)
            seconds[unit_bytes].append(cpu_seconds() - before)
            found[unit_bytes] = counts.fsyncs, counts.record_bytes, counts.records
            written = sum(path.stat().st_size for path in out.iterdir())
            shutil.rmtree(out)
        without, with_units = min(seconds[WITHOUT]), min(seconds[WITH])
        fsyncs, record_bytes, records = found[WITH]
        of_unit = (with_units - without) / max(records, 1) / (without * COMMIT_BYTES / written)
        cells = [
            name, f"{written / 1e6:.0f} MB", f"{without:.2f} s", f"{with_units:.2f} s", str(records),
            f"{1e3 * (with_units - without) / max(records, 1):.1f} ms", f"{of_unit:+.2%}",
            f"{record_bytes / 1e6:.1f} MB", str(found[WITHOUT][0]), str(fsyncs),
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
