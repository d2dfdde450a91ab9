"""What one thread can assemble at most: the copies and checksums that a row takes, each by itself, beside memcpy.

    python tools/bench_assembly.py --rows 356000 --row-bytes 512 --from-disk 0.48

A row that a tier has is gathered: copied from a random place. One that was read is copied in order and checksummed.
With a share m of the rows from disk, x cannot be filled faster than

    1 / ((1 - m) / gather + m (1 / memcpy + 1 / checksum))

bytes a second. All is in huge pages and touched before. Seconds are those of the thread's CPU time, best of --turns, so
that other jobs count less; nothing is read from a disk, which would take memory's time, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from diskgnn._native import crc32c, gather_rows, page_memory


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=356_000, help="of a minibatch")
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--tier-rows", type=int, default=400_000)
    parser.add_argument("--from-disk", type=float, default=0.48, help="share of the rows")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    num_bytes = options.rows * options.row_bytes
    tier, source, x = (page_memory(rows * options.row_bytes) for rows in (options.tier_rows, *[options.rows] * 2))
    for memory in (tier, source, x):
        memory[:] = 1
    nodes = np.random.default_rng(0).integers(0, options.tier_rows, options.rows)

    def rate(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(options.turns):
            started = time.thread_time()
            work()
            seconds.append(time.thread_time() - started)
        return num_bytes / min(seconds) / 1e9

    tier_rows, x_rows = tier.reshape(-1, options.row_bytes), x.reshape(-1, options.row_bytes)
    copied = rate(lambda: np.copyto(x, source))
    gathered = rate(lambda: gather_rows(tier, options.row_bytes, nodes, x, 1))
    taken = rate(lambda: np.take(tier_rows, nodes, 0, out=x_rows, mode="clip"))
    summed = rate(lambda: crc32c(source))
    share = options.from_disk
    most = 1 / ((1 - share) / gathered + share * (1 / copied + 1 / summed))
    for name, found in [
        ("memcpy", copied),
        ("rows gathered at random, prefetched", gathered),
        ("rows gathered at random, np.take", taken),
        ("checksums", summed),
        (f"x at most, {share:.0%} of it from disk", most),
    ]:
        print(f"{name:<40}{found:>7.2f} GB/s{found / copied:>7.2f} of memcpy")


if __name__ == "__main__":
    main()
