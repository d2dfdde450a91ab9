"""How fast threads assemble minibatches where the disk is memory, and what that says of a machine with many cores.

    python tools/bench_wide.py --folder /dev/shm/bench-wide --threads 1 2

Prepares a synthetic graph in the folder, which is to be on tmpfs (it is deleted in the end), and reads its epoch with
an idle consumer, with each number of threads in turns. Beside it, `np.copyto` of as many bytes as a minibatch has, with
one thread. The header of a minibatch is read by one thread whatever their number, so a minibatch takes at least

    header + (gather + scatter) / threads

seconds. The kernel's copies from tmpfs take a core, too: with as many threads as cores, they wait for each other. So
the last line counts on from the fewest threads. It says how many bytes of the file 16 threads would take a second, and
how many threads take those of four drives of 6.25 GB/s. What memory can do is not in that: each byte from disk is
written, read, and written again.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path

import numpy as np

import diskgnn

DRIVES_BYTES_PER_SECOND = 4 * 6.25e9
WIDE_THREADS = 16


def copy_rate(num_bytes: int) -> float:
    """Bytes per second that one thread copies, into memory that was touched before."""
    source, destination = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        np.copyto(destination, source)
        seconds.append(time.perf_counter() - started)
    return num_bytes / min(seconds)


def read_epoch(packed: Path, threads: int) -> tuple[float, float, float, float]:
    """(bytes of x, bytes read, header seconds, gather and scatter seconds) a minibatch, of the second epoch."""
    with diskgnn.Loader(packed, threads=threads) as loader:
        for _ in loader.epoch(0):
            pass
        before, x_bytes = loader.stats(), 0
        for batch in loader.epoch(1):
            x_bytes += batch.x.nbytes
        spent, count = loader.stats() - before, loader.num_batches
    moving = spent.gather_seconds + spent.scatter_seconds
    return x_bytes / count, spent.read_bytes / count, spent.header_seconds / count, moving / count


def main() -> None:
    """Parse arguments, prepare, measure in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on tmpfs; must not be there")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    graph, packed = options.folder / "graph", options.folder / "packed"
    options.folder.mkdir(parents=True)
    try:
        diskgnn.generate(graph, num_nodes=options.nodes, avg_degree=12, num_classes=47, homophily=0.5, num_features=128,
                         train_fraction=0.008, valid_fraction=0, test_fraction=0)  # fmt: skip
        diskgnn.prepare(graph, packed, fanouts=[10, 10, 10], batch_size=1024, cpu_cache="10%", static_cache=0)
        measured = {threads: [] for threads in options.threads}
        for _ in range(options.turns):
            for threads, found in measured.items():
                found.append(read_epoch(packed, threads))
        medians = {threads: [statistics.median(column) for column in zip(*found, strict=True)]
                   for threads, found in measured.items()}  # fmt: skip
    finally:
        shutil.rmtree(options.folder)
    x_bytes, read_bytes, *_ = next(iter(medians.values()))
    copied = copy_rate(round(x_bytes))
    print(f"a minibatch: {x_bytes / 1e6:.0f} MB of x, {read_bytes / 1e6:.0f} MB from the file")
    print(f"np.copyto of as much, one thread: {copied / 1e9:.1f} GB/s")
    for threads, (x_bytes, read_bytes, header, moving) in medians.items():
        rate = x_bytes / moving
        print(
            f"{threads} threads: header {header * 1e3:.1f} ms, gather and scatter {moving * 1e3:.1f} ms: x at "
            f"{rate / 1e9:.1f} GB/s, {rate / threads / 1e9:.1f} a thread ({rate / threads / copied:.2f} of np.copyto); "
            f"from the file {read_bytes / (header + moving) / 1e9:.1f} GB/s"
        )
    fewest = min(medians)
    _, read_bytes, header, moving = medians[fewest]
    work = moving * fewest  # thread seconds
    wide = read_bytes / (header + work / WIDE_THREADS)
    needed = read_bytes / DRIVES_BYTES_PER_SECOND - header
    enough = f"{work / needed:.0f} threads" if needed > 0 else "no number of threads: the header alone takes longer"
    print(f"by arithmetic, {WIDE_THREADS} threads: {wide / 1e9:.1f} GB/s from the file; 25 GB/s take {enough}")


if __name__ == "__main__":
    main()
