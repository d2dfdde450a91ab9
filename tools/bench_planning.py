"""What planning takes, step by step, on a synthetic sequence: nothing is sampled, read or packed.

    python tools/bench_planning.py --folder data/planning --nodes 100000000 --minibatches 200 --rows 390000

Each minibatch needs distinct nodes, in no order; a node's weight falls with its rank as 1 / rank^skew, and ranks are
spread over all ids. Memory is what the process has resident at most. docs/PERFORMANCE.md has the results.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn.packing.accesses import Accesses
from diskgnn.packing.placement import Schedule
from diskgnn.packing.reuse import Reuse

Result = TypeVar("Result")


def minibatches(nodes: int, count: int, rows: int, skew: float) -> Iterator[npt.NDArray[np.int32]]:
    """Ids are scattered by a multiplication that permutes them."""
    random = np.random.default_rng(0)
    multiplier = next(m for m in range(nodes * 3 // 5 | 1, nodes, 2) if np.gcd(m, nodes) == 1)
    for _ in range(count):
        ranks = (nodes * random.random(rows) ** (1 / (1 - skew))).astype(np.int64)
        distinct = np.unique(ranks * multiplier % nodes).astype(np.int32)
        yield random.permutation(distinct)


def main() -> None:
    """Generate, plan, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for scratch files; must not exist; removed")
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--minibatches", type=int, default=80)
    parser.add_argument("--rows", type=int, default=400_000, help="drawn for each minibatch; fewer where some repeat")
    parser.add_argument("--skew", type=float, default=0.5, help="from 0 (all alike) to below 1")
    parser.add_argument("--cache", type=float, default=0.1, help="share of all rows")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Result]) -> Result:
        started = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - started
        return result

    try:
        sequence = options.folder / "sequence"
        lengths = _write(sequence, minibatches(options.nodes, options.minibatches, options.rows, options.skew))
        scratch, threads = options.folder / "x.accesses", options.threads
        accesses = timed(
            "sort", lambda: Accesses.sort(_read(sequence, lengths), options.nodes, scratch, threads=threads)
        )
        reuse = timed("next uses", lambda: Reuse(accesses, np.empty(0, np.int64), threads=threads))
        schedule = timed("find what is resident", lambda: Schedule(reuse, int(options.nodes * options.cache)))
        misses = timed("place", lambda: sum(len(placement.disk_nodes) for placement in schedule))
    finally:
        shutil.rmtree(options.folder)
    total = sum(lengths)
    print(json.dumps({
        "accesses": total, "misses": misses, "initial_rows": len(schedule.initial_cpu_nodes),
        "ns_per_access": {name: round(each / total * 1e9, 1) for name, each in seconds.items()},
        "total_ns_per_access": round(sum(seconds.values()) / total * 1e9, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }))  # fmt: skip


def _write(path: Path, sequence: Iterator[npt.NDArray[np.int32]]) -> list[int]:
    lengths = []
    with path.open("wb") as file:
        for nodes in sequence:
            file.write(nodes.data)
            lengths.append(len(nodes))
    return lengths


def _read(path: Path, lengths: list[int]) -> Iterator[npt.NDArray[np.int32]]:
    with path.open("rb") as file:
        for length in lengths:
            yield np.fromfile(file, np.int32, length)


if __name__ == "__main__":
    main()
