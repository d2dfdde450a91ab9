"""Count the rows and bytes that an epoch reads from disk, for several ways of preparing and sizes of the cache.

    python tools/count_rows.py graph --fanouts 10,10 --batch-size 512 --caches 5%,10%,30% \
        --ways independent,coordinated,coordinated:16,coordinated:64:32

A way is DRAWS, DRAWS:PERIOD or DRAWS:PERIOD:GROUP, as `--draws`, `--draw-period` and `--group-seeds` take them. All
minibatches are sampled in memory, and rows are counted as `prepare` counts them; no feature is read, so the graph may
have features of one column. `--row-bytes` says how long rows are to be taken to be. The first way is what the others
are compared with, with float32 rows. Where there are more than `--max-accesses`, those of a part of the nodes are kept,
and the last column says by how much counts may be off.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from diskgnn.graph.graph import Graph
from diskgnn.packing.space import read_bytes
from diskgnn.preparing.sequence_samples import sample_sequences
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import cache_rows
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources
from diskgnn.units import format_size


def main() -> None:
    """Sample, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--fanouts", default="10,10,10")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--caches", default="5%,10%,30%", help="shares of all rows")
    parser.add_argument("--ways", default="independent,coordinated,coordinated:16,coordinated:64")
    parser.add_argument("--row-bytes", type=int, default=512, help="of float32 rows; int8 rows have a quarter")
    parser.add_argument("--max-accesses", type=int, default=200_000_000)
    parser.add_argument("--memory", default="auto")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()

    graph = Graph.open(options.graph)
    ways, caches = options.ways.split(","), options.caches.split(",")
    widths = {"float32": options.row_bytes, "int8": options.row_bytes // 4}
    heads = [f"rows, {cache}" for cache in caches] + [f"{dtype}, {cache}" for dtype in widths for cache in caches]
    print(f"| way | {' | '.join(heads)} | off by |\n|{'---|' * (len(heads) + 2)}")
    first: dict[str, int] = {}  # of each column: the first way's
    for way in ways:  # one after the other, so that each may keep as many accesses
        plan = SamplingPlan(graph, spec_of(way, options))
        (samples,), _ = sample_sequences(
            [plan],
            Resources.of(options.memory, options.threads),
            max_seconds=math.inf,
            max_accesses=options.max_accesses,
        )
        sample, epochs = samples["train"], options.epochs
        structure_bytes = sample.structure_bytes * sample.size.num_batches
        counted = {
            cache: sample.forecast.rows(
                sample.forecast.hottest(0), cache_rows(cache, options.row_bytes, graph.num_nodes)
            )
            for cache in caches
        }
        cells = [f"{rows.disk // epochs:,}" for rows in counted.values()]
        values = [rows.disk // epochs for rows in counted.values()]
        for row_bytes in widths.values():
            for rows in counted.values():
                read = read_bytes(rows, sample.size.num_batches, structure_bytes, row_bytes, 0) // epochs
                cells.append(format_size(read))
                values.append(read)
        compared = [*heads[: 2 * len(caches)], *heads[len(caches) : 2 * len(caches)]]  # int8 with float32
        shares = [value / max(1, first.setdefault(name, value)) for name, value in zip(compared, values, strict=True)]
        error = max(rows.disk_error for rows in counted.values())
        cells = [f"{cell} ({share:.2f})" for cell, share in zip(cells, shares, strict=True)]
        print(f"| {' | '.join([way, *cells])} | {f'{error:.1%}' if error else ''} |", flush=True)


def spec_of(way: str, options: argparse.Namespace) -> SamplingSpec:
    """What one of `--ways` stands for."""
    draws, period, group_seeds, *_ = [*way.split(":"), "1", "1"]
    fanouts = [int(each) for each in options.fanouts.split(",")]
    return SamplingSpec(fanouts, options.batch_size, options.epochs, splits=["train"], draws=draws,
                        draw_period=int(period), group_seeds=int(group_seeds))  # fmt: skip


if __name__ == "__main__":
    main()
