"""Measure inference over all nodes, and count what other schedules would move.

    python tools/bench_inference.py run graph --memory 1900MiB --limit 2GiB --hidden 64 --layers 2
    python tools/bench_inference.py count --nodes 100000 --shares 50%,20%,10%,5%

`run` computes a model with new weights for all nodes of a graph of one type, in a cgroup of `--limit`. It prints the
seconds of each layer, bytes against the least there can be, and the most memory that was in use. With `--reference` it
also computes the model (sage) on the whole graph in memory with PyG's layers, and compares.

`count` makes two graphs, one whose degrees follow a power law and whose ids say nothing, and one whose edges join
near ids, and counts the bytes of one layer for rows of `--row-bytes`, with memory for a share of all rows:

- windows: destinations in windows that fit in memory; for each, the rows that it needs are read from front to back,
  gaps of up to 32 KiB included;
- broadcast: rows pass once, and are added to the sums of their destinations; a sum that does not fit in memory is
  written, and read again when it is needed next. Which ones are chosen with hindsight (Belady), so that no rule does
  better;
- panels: what `diskgnn infer` does.

The minimum is: rows in once, sums out once. All but `broadcast` read a row of each destination itself as well.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from diskgnn.compare.measurement import Measurement, run
from diskgnn.files.row_reading import requests
from diskgnn.system.memory import available_cores
from diskgnn.system.memory_cgroup import refusal
from diskgnn.units import format_size, parse_size

CACHE_LINE_COLUMNS = 16


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("graph", type=Path)
    one.add_argument("--model", choices=["sage", "gcn", "gat"], default="sage")
    one.add_argument("--hidden", type=int, default=64)
    one.add_argument("--layers", type=int, default=2)
    one.add_argument("--memory", default="1GiB")
    one.add_argument("--limit", help="of the cgroup; none by default")
    one.add_argument("--threads", type=int)
    one.add_argument("--folder", type=Path, help="for the output and what is between layers")
    one.add_argument("--reference", action="store_true", help="compare with the whole graph in memory")
    one.add_argument("--in-cgroup", action="store_true", help=argparse.SUPPRESS)
    count = commands.add_parser("count")
    count.add_argument("--nodes", type=int, default=100_000)
    count.add_argument("--degree", type=int, default=12)
    count.add_argument("--row-bytes", type=int, default=512)
    count.add_argument("--shares", default="50%,20%,10%,5%")
    options = parser.parse_args()
    if options.command == "count":
        print_counts(options)
    elif options.in_cgroup or options.limit is None:
        print(json.dumps(measure(options), indent=1))
    else:
        run_limited(options)


def run_limited(options: argparse.Namespace) -> None:
    """The same command again, in a cgroup."""
    if reason := refusal():
        sys.exit(f"no memory cgroup can be made here ({reason}); leave --limit out")
    done = run(Measurement("infer", [sys.executable, *sys.argv, "--in-cgroup"], parse_size(options.limit)))
    print(done.said, end="")
    peak = f"{format_size(done.peak_bytes or 0)} at most, page cache included"
    print(f"in a cgroup of {options.limit}: {peak}; {done.oom_kills} kills")
    sys.exit(done.exit_code)


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Run `diskgnn.infer`."""
    import torch

    import diskgnn
    from diskgnn.nn.block_models import make_model

    graph = diskgnn.Graph.open(options.graph)
    torch.manual_seed(0)
    width = graph.feature_file.rows.num_features
    net = make_model(options.model, width, options.hidden, graph.num_classes, options.layers).eval()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        out, peak = Path(folder) / "out.npy", PeakMemory()
        with peak:
            report = diskgnn.infer(graph, out, net, memory=options.memory, threads=options.threads)
        details = dict(report.details)
        found = {
            "seconds": round(report.seconds, 1),
            **details,
            "read_bytes": report.read_bytes,
            "written_bytes": report.written_bytes,
            "moved_over_minimum": round(details["moved_bytes"] / details["minimum_bytes"], 2),
            "with_edges_over_minimum": round(
                (details["moved_bytes"] + details["edge_bytes"]) / (details["minimum_bytes"] + graph.topology_bytes), 2
            ),
            "peak_anonymous_bytes": peak.num_bytes,
        }
        return found | (reference(graph, net, np.load(out)) if options.reference else {})


class PeakMemory:
    """Looks at this process's anonymous memory every 20 ms."""

    def __init__(self) -> None:
        self.num_bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        from diskgnn.system.memory import anonymous_bytes

        while not self._over.wait(0.02):
            self.num_bytes = max(self.num_bytes, anonymous_bytes())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def reference(graph, net, found) -> dict[str, object]:
    """The layers of PyG with the same weights, each over all nodes in memory."""
    import torch
    from torch_geometric.nn import SAGEConv

    torch.set_num_threads(available_cores())
    started = time.perf_counter()
    x = torch.from_numpy(np.array(graph.features)).float()
    degrees = np.diff(graph.indptr)
    destinations = torch.from_numpy(np.repeat(np.arange(graph.num_nodes), degrees))
    edges = torch.stack([torch.from_numpy(graph.indices.astype(np.int64)), destinations])
    with torch.no_grad():
        for number, layer in enumerate(net.layers):
            theirs = SAGEConv(layer.in_channels, layer.out_channels)
            theirs.lin_l.weight.copy_(layer.neighbours.weight)
            theirs.lin_l.bias.copy_(layer.own.bias)
            theirs.lin_r.weight.copy_(layer.own.weight)
            x = theirs(x, edges)
            x = x.relu() if number < len(net.layers) - 1 else x
    difference = float(np.abs(x.numpy() - found).max())
    return {"reference_seconds": round(time.perf_counter() - started, 1), "largest_difference": difference}


def print_counts(options: argparse.Namespace) -> None:
    """A table of bytes over the minimum."""
    shares = [float(share.rstrip("%")) / 100 for share in options.shares.split(",")]
    names = "windows", "broadcast", "panels", "of it edges"
    print(f"| graph | memory for rows | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}")
    for name, (indptr, indices) in graphs(options.nodes, options.degree).items():
        for share in shares:
            capacity, row_bytes = int(options.nodes * share), options.row_bytes
            least = 2 * options.nodes * row_bytes
            edges = panel_edge_bytes(indptr, indices, row_bytes, share)
            moved = (
                window_bytes(indptr, indices, capacity, row_bytes),
                broadcast_bytes(indptr, indices, capacity, row_bytes),
                5 * options.nodes * row_bytes + edges,
                edges,
            )
            print(f"| {name} | {share:.0%} | {' | '.join(f'{each / least:.2f}' for each in moved)} |")


def graphs(num_nodes: int, degree: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """CSC by name."""
    random = np.random.default_rng(0)
    num_edges = num_nodes * degree
    skewed = random.permutation(num_nodes)[(num_nodes * random.random((2, num_edges)) ** 3).astype(np.int64)]
    near = random.integers(0, num_nodes, num_edges)
    far = (near + np.round(random.standard_cauchy(num_edges) * num_nodes / 1000)).astype(np.int64) % num_nodes
    return {name: csc(*ends, num_nodes) for name, ends in (("power law", skewed), ("clustered", (near, far)))}


def csc(sources: np.ndarray, destinations: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, indices) without repeated edges."""
    pairs = np.unique(destinations * num_nodes + sources)
    return np.searchsorted(pairs // num_nodes, np.arange(num_nodes + 1)), pairs % num_nodes


def window_bytes(indptr: np.ndarray, indices: np.ndarray, capacity: int, row_bytes: int) -> int:
    """Of all windows of `capacity` destinations."""
    num_nodes = len(indptr) - 1
    total = 2 * num_nodes * row_bytes  # own rows, and sums out
    for first in range(0, num_nodes, capacity):
        needed = np.unique(indices[indptr[first] : indptr[min(first + capacity, num_nodes)]])
        if len(needed):
            total += int(requests(needed, row_bytes)[1].sum())
    return total


def broadcast_bytes(indptr: np.ndarray, indices: np.ndarray, capacity: int, row_bytes: int) -> int:
    """With `capacity` sums in memory."""
    num_nodes, num_edges = len(indptr) - 1, len(indices)
    destinations = np.repeat(np.arange(num_nodes), np.diff(indptr))
    by_source = destinations[np.argsort(indices, kind="stable")]
    following = np.full(num_edges, num_edges)  # the next time that the destination is needed
    order = np.argsort(by_source, kind="stable")
    same = by_source[order][1:] == by_source[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    held: dict[int, int] = {}  # destination: when it is needed next
    farthest: list[tuple[int, int]] = []
    spilled: set[int] = set()
    moved = 2 * num_nodes * row_bytes
    for destination, next_use in zip(by_source.tolist(), following.tolist(), strict=True):
        if destination in spilled:
            spilled.remove(destination)
            moved += 2 * row_bytes  # it was written, and is read
        if next_use == num_edges:
            held.pop(destination, None)
            continue
        held[destination] = next_use
        heapq.heappush(farthest, (-next_use, destination))
        while len(held) > capacity:
            use, victim = heapq.heappop(farthest)
            if held.get(victim) == -use:
                del held[victim]
                spilled.add(victim)
    return moved


def panel_edge_bytes(indptr: np.ndarray, indices: np.ndarray, row_bytes: int, share: float) -> int:
    """Edges, once for each panel."""
    columns = row_bytes // 4
    fitting = max(1, int(columns * share))
    fitting = fitting // CACHE_LINE_COLUMNS * CACHE_LINE_COLUMNS or fitting
    return -(-columns // fitting) * (8 * len(indptr) + 4 * len(indices))


if __name__ == "__main__":
    main()
