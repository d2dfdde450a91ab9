"""Count the rows and bytes that an epoch reads from disk, for several ways of preparing and sizes of the cache.

    python tools/count_rows.py graph --fanouts 10,10 --batch-size 512 --caches 5%,10%,30% \
        --ways independent,coordinated,coordinated:16,coordinated:64:32

A way is DRAWS, DRAWS:PERIOD or DRAWS:PERIOD:GROUP, as `--draws`, `--draw-period` and `--group-seeds` take them. All
minibatches are sampled in memory, and rows are counted as `prepare` counts them; no feature is read, so the graph may
have features of one column. `--row-bytes` says how long rows are to be taken to be. The first way is what the others
are compared with, with float32 rows. Where there are more than `--max-accesses`, those of a part of the nodes are kept,
and a line before the table says by how much counts may be off.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from diskgnn.graph.graph import Graph
from diskgnn.packing.space import extents_bytes
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
    widths = {"": 0, "float32": options.row_bytes, "int8": options.row_bytes // 4}  # "" counts rows
    lines = {(width, cache): [f"{options.graph.name}, {cache}{width and f', {width}'}"]
             for width in widths for cache in caches}  # fmt: skip
    first: dict[tuple[str, str], int] = {}  # what others are compared with
    for way in ways:  # one after the other, so that each may keep as many accesses
        plan = SamplingPlan(graph, spec_of(way, options))
        (samples,), _ = sample_sequences(
            [plan],
            Resources.of(options.memory, options.threads),
            keep_input_nodes=False,
            max_seconds=math.inf,
            max_accesses=options.max_accesses,
        )
        sample, epochs = samples["train"], options.epochs
        (forecast,), num_batches = sample.forecasts, sample.size.num_batches
        for (width, cache), cells in lines.items():
            held = cache_rows(cache, options.row_bytes, graph.num_nodes)
            rows = forecast.rows(forecast.hottest(0), held)
            value = rows.disk // epochs
            if width:
                header_bytes = sample.header_bytes * num_batches
                value = extents_bytes([rows], [widths[width]], num_batches, header_bytes) // epochs
            share = value / max(1, first.setdefault(("float32" if width else "", cache), value))  # int8 with float32
            cells.append(f"{format_size(value) if width else f'{value:,}'}{f' ({share:.2f})' if share != 1 else ''}")
            if rows.disk_error:
                print(f"{way}, {cache}: counts may be off by {rows.disk_error:.1%}")
    print(f"| rows from disk | {' | '.join(ways)} |\n|{'---|' * (len(ways) + 1)}")
    for cells in lines.values():
        print(f"| {' | '.join(cells)} |")


def spec_of(way: str, options: argparse.Namespace) -> SamplingSpec:
    """What one of `--ways` stands for."""
    draws, period, group_seeds, *_ = [*way.split(":"), "1", "1"]
    fanouts = [int(each) for each in options.fanouts.split(",")]
    return SamplingSpec(fanouts, options.batch_size, options.epochs, splits=["train"], draws=draws,
                        draw_period=int(period), group_seeds=int(group_seeds))  # fmt: skip


if __name__ == "__main__":
    main()
