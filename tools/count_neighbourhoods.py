"""Count the bytes of sampling in advance: a neighbourhood for each seed by itself, and minibatches that share rows.

    python datasets/debian_packages.py packages
    python tools/count_neighbourhoods.py packages --fanouts 10,10 --batch-size 512 --caches 0%,10%

What one epoch needs is counted, with the same fanouts, for the same train split: feature rows, and everything stored
(rows, edges, labels, and for minibatches where each row lies). A neighbourhood has the rows of its distinct nodes.
Those of `--max-seeds` seeds, drawn at random, stand for all. What a cache leaves to the disk is counted as `prepare`
does.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from diskgnn.graph.graph import Graph
from diskgnn.packing.space import extents_bytes
from diskgnn.preparing.sequence_samples import SequenceSample, sample_sequences
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import cache_rows
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.resources import Resources


def main() -> None:
    """Sample, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--fanouts", default="10,10,10")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--caches", default="0%,10%", help="shares of all rows")
    parser.add_argument("--row-bytes", type=int, help="of a feature row.  [default: as the graph has it]")
    parser.add_argument("--max-seeds", type=int, default=2000)
    options = parser.parse_args()

    graph = Graph.open(options.graph)
    row_bytes = options.row_bytes or graph.feature_file.rows.row_bytes
    fanouts = [int(each) for each in options.fanouts.split(",")]
    seeds = graph.splits["train"]
    some = np.random.default_rng(0).permutation(seeds)[: options.max_seeds]
    alone = _sample(graph, SamplingSpec(fanouts, 1, splits=["train"], target=NodeTarget(seeds={"train": some})))
    shared = _sample(graph, SamplingSpec(fanouts, options.batch_size, splits=["train"]))

    caches = options.caches.split(",")
    (forecast,), num_batches = shared.forecasts, shared.size.num_batches
    rows = [alone.requested / len(some)]  # of a seed
    first = (rows[0] * row_bytes + alone.header_bytes) * len(seeds)
    cells = [f"{first / 1e6:,.0f} MB"]
    for cache in caches:
        found = forecast.rows(forecast.hottest(0), cache_rows(cache, row_bytes, graph.num_nodes))
        stored = extents_bytes([found], [row_bytes], num_batches, shared.header_bytes * num_batches)
        rows.append(found.disk / len(seeds))
        cells.append(f"{stored / 1e6:,.0f} MB ({stored / first:.2f})")
    heads = ("neighbourhoods", *(f"minibatches, {cache} in memory" for cache in caches), "rows of a seed")
    print(f"| graph, fanouts | {' | '.join(heads)} |\n|{'---|' * (1 + len(heads))}")
    shown = ", ".join(f"{each:,.0f}" for each in rows)
    print(f"| {options.graph.name}, {options.fanouts} | {' | '.join(cells)} | {shown} |")


def _sample(graph: Graph, spec: SamplingSpec) -> SequenceSample:
    """The whole train split under `spec`."""
    (samples,), _ = sample_sequences(
        [SamplingPlan(graph, spec)], Resources.of("auto", None), keep_input_nodes=False, max_seconds=math.inf,
        max_accesses=200_000_000,
    )  # fmt: skip
    return samples["train"]


if __name__ == "__main__":
    main()
