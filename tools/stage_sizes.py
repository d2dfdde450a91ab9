"""Bytes and memory of every stage for a graph of any size, by the formulas of docs/PERFORMANCE.md: arithmetic only.

    python tools/stage_sizes.py --nodes 1e10 --edges 1e11 --row-bytes 1000 --seeds 1e8 --ranks 32 --memory 256e9 \
        --cpu-tier 256e9 --disk-share 0.6 --read-rate 3e9 --write-rate 2e9

What no formula knows comes from measurements at a smaller size: rows, edges and bytes of blocks per seed, the share of
rows that comes from disk (`tools/simulate_ranks`), nanoseconds per access and edge, and rates. Seconds are the larger
of the disk's and the processor's. One epoch is prepared. docs/SCALE.md has the results, and what was checked.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, fields

CHECKSUM_CHUNK_BYTES, READ_AHEAD_BYTES, PAGE_BYTES = 4096, 48 << 20, 4096
_RANGE_NODES = 1 << 21  # of `packing.accesses`
_MAX_BINS = 1 << 18  # of `graph.csc`


@dataclass(frozen=True)
class Setting:
    """A graph of one type, a cluster, and what was measured at a smaller size."""

    nodes: float = 1e10  # N
    edges: float = 1e11  # E
    row_bytes: float = 1000  # r
    seeds: float = 1e8  # of the train split
    batch_size: float = 1024  # of each rank
    layers: int = 3
    ranks: int = 32  # W, one on each machine
    memory: float = 256e9  # M: the budget of each stage
    cpu_tier: float = 256e9  # of each rank
    disk_share: float = 0.6  # m: of the rows that minibatches need, those read from disk
    rows_per_seed: float = 500  # U / B
    edges_per_seed: float = 573
    block_bytes_per_seed: float = 2580  # of seeds, labels and blocks
    source_edge_bytes: float = 16  # of an edge as it is given to `convert`
    hidden: float = 256  # of inference: numbers of a row between layers
    read_rate: float = 3e9  # of a machine's disks
    write_rate: float = 2e9
    threads: float = 16
    convert_ns: float = 100  # of a thread for each edge
    sample_ns: float = 36  # for each row that a minibatch needs, of a thread
    place_ns: float = 65  # for each of these, alone

    @property
    def id_bytes(self) -> int:
        """i."""
        return 4 if self.nodes < 1 << 31 else 8

    @property
    def topology_bytes(self) -> float:
        """T: `indptr` and `indices`."""
        return 8 * (self.nodes + 1) + self.id_bytes * self.edges

    @property
    def feature_bytes(self) -> float:
        """F."""
        return self.nodes * self.row_bytes

    @property
    def feature_checksum_bytes(self) -> float:
        """What `features_crc` takes, on disk and in memory."""
        return 4 * self.feature_bytes / CHECKSUM_CHUNK_BYTES

    @property
    def minibatches(self) -> float:
        """b: of one rank, in an epoch."""
        return -(-self.seeds // self.batch_size) / self.ranks

    @property
    def accesses(self) -> float:
        """A: rows that the minibatches of one rank need, repeated ones too."""
        return self.seeds / self.ranks * self.rows_per_seed

    @property
    def samples_bytes(self) -> float:
        """Of one rank."""
        return self.accesses * self.id_bytes + self.seeds / self.ranks * self.block_bytes_per_seed

    @property
    def extents_bytes(self) -> float:
        """Of one rank: rows from disk and headers."""
        header_bytes = self.seeds / self.ranks * self.block_bytes_per_seed + 4 * self.accesses
        return self.disk_share * self.accesses * self.row_bytes + header_bytes + self.minibatches * PAGE_BYTES / 2

    @property
    def needed_rows(self) -> float:
        """Different rows that the minibatches of one rank need, were all rows needed alike."""
        return self.nodes * (1 - 2.718281828 ** (-self.accesses / self.nodes))


@dataclass(frozen=True)
class Stage:
    """One stage on one machine."""

    name: str
    read_bytes: float
    written_bytes: float
    memory_bytes: float  # at most
    cpu_seconds: float  # of all its threads
    what: str  # takes the memory

    def seconds(self, setting: Setting) -> float:
        """Of the disk or of the processor, whichever takes longer."""
        disk = self.read_bytes / setting.read_rate + self.written_bytes / setting.write_rate
        return max(disk, self.cpu_seconds)


def stages(setting: Setting) -> Iterator[Stage]:
    """All of them, in order; `convert` on one machine, the others on each."""
    yield _convert(setting)
    yield _sample(setting)
    yield _place(setting)
    yield _pack(setting)
    yield _train(setting)
    yield _infer(setting)


def _convert(s: Setting) -> Stage:
    """Edges are read twice, scattered to buckets and read back; features are read and written once."""
    scattered = 2 * s.id_bytes * s.edges
    in_memory = scattered <= s.memory / 2
    return Stage(
        "convert", 2 * s.source_edge_bytes * s.edges + scattered * (not in_memory) + s.feature_bytes,
        scattered * (not in_memory) + s.topology_bytes + s.feature_bytes + s.feature_checksum_bytes,
        s.memory + 8 * _MAX_BINS + s.feature_checksum_bytes, s.edges * s.convert_ns * 1e-9 / s.threads,
        "the budget, and checksums of features",
    )  # fmt: skip


def _sample(s: Setting) -> Stage:
    """Topology in memory, or compared once with its checksums and swept: offsets twice in each layer, sources once.

    That is where all minibatches of a rank grow together, as they do when the edges that they draw fit in the budget.
    """
    indptr, indices = 8 * (s.nodes + 1), s.id_bytes * s.edges
    read = s.topology_bytes
    drawn_bytes = s.seeds / s.ranks * s.edges_per_seed * s.id_bytes
    if s.topology_bytes > s.memory:
        groups = max(1.0, drawn_bytes / (s.memory * 0.875 * 0.6))
        read += s.layers * groups * (2 * indptr + indices)
    cpu_seconds = s.accesses * s.sample_ns * 1e-9 / s.threads
    return Stage("sample", read, s.samples_bytes, s.memory, cpu_seconds, "the budget")


def _place(s: Setting) -> Stage:
    """Nodes, their order and next uses pass through scratch files; only pages of nodes that are needed take memory."""
    per_access = s.id_bytes + 4 + 4
    read = 2 * s.samples_bytes + s.accesses * (5 * s.id_bytes + 3 * 4)
    ranges = max(8, s.nodes / _RANGE_NODES)
    slots = s.cpu_tier / s.row_bytes
    memory = 5 * s.nodes + 8 * s.minibatches * (ranges + 1) + 12 * slots
    header_bytes = s.extents_bytes - s.disk_share * s.accesses * s.row_bytes
    return Stage("place", read, s.accesses * per_access + header_bytes, memory, s.accesses * s.place_ns * 1e-9,
                 "5 bytes a node, 12 a slot")  # fmt: skip


def _pack(s: Setting) -> Stage:
    """The features that a rank needs, gaps of up to 32 KiB included, and its extents; the first cpu tier, too."""
    chance_of_gap = (1 - s.needed_rows / s.nodes) ** (32768 / s.row_bytes)  # that nothing in 32 KiB is needed
    read = s.feature_bytes * (1 - chance_of_gap)
    written = s.disk_share * s.accesses * s.row_bytes + min(s.cpu_tier, s.needed_rows * s.row_bytes)
    memory = s.memory / 2 + s.nodes + s.feature_checksum_bytes
    return Stage("pack", read, written, memory, 0.0, "two windows of a quarter of the budget, 1 byte a node, checksums")


def _train(s: Setting) -> Stage:
    """An epoch without its computing."""
    minibatch_bytes = s.batch_size * (s.rows_per_seed * (s.row_bytes + 4) + s.block_bytes_per_seed)
    memory = s.cpu_tier + 3 * minibatch_bytes + READ_AHEAD_BYTES
    return Stage("train, an epoch", s.extents_bytes, 0.0, memory, 0.0, "the cpu tier, minibatches in flight")


def _infer(s: Setting) -> Stage:
    """All nodes on one machine: panels of columns of all sources in memory, edges read again for each."""
    columns = max(1.0, s.memory / 2 / (4 * s.nodes))
    panels = -(-s.hidden // columns)
    rows = 4 * s.hidden * s.nodes
    read = s.feature_bytes + s.layers * (panels * s.topology_bytes + 3 * rows)
    return Stage("infer, all nodes", read, s.layers * 2 * rows, s.memory, 0.0, f"panels of {columns:.0f} columns")


NOT_DIVIDED = ("convert", "infer, all nodes")  # among machines


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Setting):
        kind = int if field.type == "int" else float
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    setting = Setting(**vars(parser.parse_args()))
    print("| stage, on each machine | reads, GB | writes, GB | memory, GB | of it | hours |\n|---|---|---|---|---|---|")
    for stage in stages(setting):
        sizes = " | ".join(f"{each / 1e9:,.0f}" for each in (stage.read_bytes, stage.written_bytes))
        memory = f"{stage.memory_bytes / 1e9:,.0f} | {stage.what}"
        name = f"{stage.name}, on one machine" if stage.name in NOT_DIVIDED else stage.name
        print(f"| {name} | {sizes} | {memory} | {stage.seconds(setting) / 3600:.2f} |")
    print(f"\n{setting.minibatches:,.0f} minibatches and {setting.accesses / 1e9:,.2f} G accesses a rank and epoch; "
          f"topology {setting.topology_bytes / 1e9:,.0f} GB, features {setting.feature_bytes / 1e12:,.1f} TB, "
          f"packed {setting.ranks * setting.extents_bytes / 1e12:,.1f} TB on all ranks")  # fmt: skip


if __name__ == "__main__":
    main()
