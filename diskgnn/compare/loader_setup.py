"""How each loader of a comparison is prepared and opened, with what its design is given.

Memory is shared out alike. All run under one cap, page cache included. Those with a cache of rows get the same
`cache_bytes`; what the cap leaves beyond that is everybody's for minibatches, the model, and (through the page cache)
topology or memory-mapped features. Those that sample while training may hold a quarter of the cap of topology: they
load it if that suffices, and otherwise map it (or, Ginex and the partition buffer, hold what they can of it) and
sample in more threads, so that many pages are waited for at the same time, as the authors' programs do. Preparing may
use half of the cap; a quarter where it runs beside training. Other libraries' loaders hold topology as they do, and
PyG's has a worker process for every core, as its users would: it has no threads. DGL's runs with as many workers, and
without: then its sampler has threads, but nothing overlaps; workers take more memory, and are not always faster.

Where columns of tables are left out, all deliver x without them. Those that read the graph's own file read whole rows,
as it has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskgnn.batches.batch_source import BatchSource
from diskgnn.compare.variant_draws import Drawing
from diskgnn.graph.graph import Graph
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.memory import available_cores

TOPOLOGY_SHARE = 4  # of the cap, one part in so many may be topology in memory
MAPPED_SAMPLING_THREADS = 8  # each with a minibatch of its own in memory, and a page that it waits for
SEGMENTED_BLOWUP = 3  # times the features' bytes for packed rows: the tightest limit that DiskGNN's authors measure
PYG_PLUS_THREADS = 128  # that touch pages of a memory map, as in PyG+
MAX_SEVERAL_EPOCHS = 4  # that 'diskgnn:several' prepares
_DRAWN = (
    "fanouts", "batch_size", "seed", "draws", "draw_period", "group_seeds", "target", "temporal", "temporal_window",
    "strict_time", "weighted", "edge_ids", "keep_times", "without",
)  # fmt: skip
PREPARED_EPOCHS = {"one": 1, "several": MAX_SEVERAL_EPOCHS}  # of diskgnn's variants


@dataclass(frozen=True)
class LoaderInputs:
    """Holds what the loaders of a comparison have in common, and where one of them may write."""

    graph: str  # directory; its train split is trained on, and there is no other
    folder: str  # empty, and the loader's own, from preparing until it was measured; on the scratch disk
    sampling: SamplingSpec  # of the minibatches; `epochs` are those that will be trained
    cache_bytes: int  # for rows in main memory
    memory_bytes: int  # the cap
    device: str = "cpu"

    @property
    def epochs(self) -> int:
        """Returns how many epochs will be trained."""
        return self.sampling.epochs

    @property
    def drawn(self) -> dict[str, Any]:
        """Returns what decides the minibatches, as all sources take it."""
        return {name: getattr(self.sampling, name) for name in _DRAWN}

    @property
    def plain(self) -> dict[str, Any]:
        """Returns the same for what draws independently around nodes."""
        return {name: self.drawn[name] for name in ("fanouts", "batch_size", "seed", "temporal")}

    @property
    def online(self) -> dict[str, Any]:
        """Returns what sources take that sample while training."""
        graph = Graph.open(self.graph)
        topology = "memory" if self.holds_topology(graph) else "mmap"
        return {"graph": graph, "topology": topology, "threads": self.sampling_threads(graph), **self.drawn}

    def holds_topology(self, graph: Graph) -> bool:
        """Returns True if what samples while training may load all of the topology."""
        return graph.topology_bytes <= self.memory_bytes // TOPOLOGY_SHARE

    def sampling_threads(self, graph: Graph) -> int | None:
        """Returns the default; more than there are cores where each waits for pages of the topology, one at a time."""
        return None if self.holds_topology(graph) else max(available_cores(), MAPPED_SAMPLING_THREADS)

    @property
    def packed(self) -> Path:
        """Returns where those that pack do so."""
        return Path(self.folder) / "packed"


def in_memory(inputs: LoaderInputs) -> BatchSource:
    """Holds features and topology, with or without room for them."""
    from diskgnn.baselines.in_memory import InMemory

    return InMemory(inputs.graph, "train", **inputs.drawn)


def mapped(inputs: LoaderInputs, *, advice: str, touching_threads: int) -> BatchSource:
    """Maps the features; so many threads touch a minibatch's pages."""
    from diskgnn.baselines.mmap import MMap

    return MMap(**inputs.online, advice=advice, gather_threads=touching_threads)


def cached_reads(policy: str) -> Callable[[LoaderInputs], BatchSource]:
    """Caches rows by `policy`, and reads the others."""

    def open_cached(inputs: LoaderInputs) -> BatchSource:
        from diskgnn.baselines.cached_reads import CachedReads

        return CachedReads(**inputs.online, cpu_cache=inputs.cache_bytes, policy=policy)

    return open_cached


def ginex(inputs: LoaderInputs) -> BatchSource:
    """Caches rows and neighbour lists; may use its folder for what it samples ahead."""
    from diskgnn.baselines.ginex import Ginex

    graph = Graph.open(inputs.graph)
    share_bytes = inputs.memory_bytes // TOPOLOGY_SHARE
    fixed_bytes = 2 * graph.indptr.nbytes  # offsets, and the table of what is cached
    whole = inputs.holds_topology(graph)
    return Ginex(
        graph,
        **inputs.drawn,
        threads=inputs.sampling_threads(graph) or available_cores(),  # at first, nothing else runs
        cpu_cache=inputs.cache_bytes,
        neighbor_cache="100%" if whole else max(0, share_bytes - fixed_bytes),
        scratch=inputs.folder,
    )


def _partition_buffer_bytes(inputs: LoaderInputs, graph: Graph) -> int:
    """Rows and edges share the buffer, so it gets what the others have for a cache and for topology."""
    return inputs.cache_bytes + min(graph.topology_bytes, inputs.memory_bytes // TOPOLOGY_SHARE)


def prepare_partitions(train_first: bool) -> Callable[[LoaderInputs], None]:
    """Writes as many partitions as fit the buffer; `train_first` puts training nodes into the first ones."""

    def prepare(inputs: LoaderInputs) -> None:
        from diskgnn.baselines.partition_sizes import fitting_partitions
        from diskgnn.baselines.partitioning import write_partitions

        graph = Graph.open(inputs.graph)
        write_partitions(
            graph,
            inputs.packed,
            num_partitions=fitting_partitions(graph, _partition_buffer_bytes(inputs, graph)),
            train_first=train_first,
            seed=inputs.sampling.seed,
            memory=inputs.memory_bytes // 2,
        )

    return prepare


def partition_buffer(order: str) -> Callable[[LoaderInputs], BatchSource]:
    """Swaps partitions in `order`."""

    def open_buffer(inputs: LoaderInputs) -> BatchSource:
        from diskgnn.baselines.partition_buffer import PartitionBuffer

        graph = Graph.open(inputs.graph)
        memory = _partition_buffer_bytes(inputs, graph)
        return PartitionBuffer(graph, inputs.packed, **inputs.drawn, memory=memory, order=order)

    return open_buffer


def prepare_static(inputs: LoaderInputs) -> None:
    """Packs one epoch around the rows that stay."""
    from diskgnn.baselines.static_packed import prepare_static_packed

    prepare_static_packed(
        inputs.graph,
        inputs.packed,
        **inputs.drawn,
        static_cache=inputs.cache_bytes,
        memory=inputs.memory_bytes // 2,
    )


def static_packed(inputs: LoaderInputs) -> BatchSource:
    """Reads that."""
    from diskgnn.baselines.static_packed import StaticPacked

    return StaticPacked(inputs.packed, seed=inputs.sampling.seed, device=inputs.device)


def prepare_segmented(inputs: LoaderInputs) -> None:
    """Packs one epoch into segments, within a limit of disk space."""
    from diskgnn.baselines.segmented_packing import prepare_segmented_packed

    features = Graph.open(inputs.graph).feature_file
    prepare_segmented_packed(
        inputs.graph,
        inputs.packed,
        **inputs.plain,
        static_cache=inputs.cache_bytes,
        disk_limit=SEGMENTED_BLOWUP * features.num_bytes,
        memory=inputs.memory_bytes // 2,
    )


def segmented_packed(inputs: LoaderInputs) -> BatchSource:
    """Reads that."""
    from diskgnn.baselines.segmented_packed import SegmentedPacked

    return SegmentedPacked(inputs.graph, inputs.packed, seed=inputs.sampling.seed)


def fresh(inputs: LoaderInputs) -> BatchSource:
    """Prepares each epoch while the one before trains."""
    from diskgnn.fresh.fresh_epochs import FreshEpochs

    return FreshEpochs(
        inputs.graph,
        inputs.folder,
        **inputs.drawn,
        cpu_cache=inputs.cache_bytes,
        num_epochs=inputs.epochs,
        memory=inputs.memory_bytes // 2,  # topology included
        device=inputs.device,
    )


def prepare_epochs(most: int, drawing: Drawing | None = None) -> Callable[[LoaderInputs], None]:
    """Prepares as many epochs as are trained, but at most so many; with draws of its own if they are given."""

    def prepare(inputs: LoaderInputs) -> None:
        from diskgnn.preparing.prepare import prepare

        prepare(
            inputs.graph,
            inputs.packed,
            **(inputs.drawn if drawing is None else inputs.drawn | drawing.arguments),
            epochs=min(inputs.epochs, most),
            cpu_cache=inputs.cache_bytes,
            static_cache=0,
            memory=inputs.memory_bytes // 2,
        )

    return prepare


def loader(inputs: LoaderInputs) -> BatchSource:
    """Reads prepared epochs."""
    from diskgnn.loading.loader import Loader

    return Loader(inputs.packed, "train", device=inputs.device)


def prepare_propagated(inputs: LoaderInputs) -> None:
    """Averages neighbourhoods over as many hops as minibatches have; typed ones by the mean alone."""
    from diskgnn.propagation.propagate import propagate

    typed = Graph.open(inputs.graph).is_typed
    hops, operators = inputs.sampling.num_layers, "mean" if typed else "mean,symmetric"
    propagate(
        inputs.graph, inputs.packed, hops=hops, operators=operators, seed=inputs.sampling.seed,
        memory=inputs.memory_bytes // 2, progress=False,
    )  # fmt: skip


def propagated(inputs: LoaderInputs) -> BatchSource:
    """Reads records of hops; they stay in memory where they fit the cache."""
    from diskgnn.loading.hops_loader import HopsLoader

    return HopsLoader(
        inputs.packed, "train", device=inputs.device, batch_size=inputs.sampling.batch_size,
        shuffle_seed=inputs.sampling.seed, memory=max(1, inputs.cache_bytes),
    )  # fmt: skip


def pyg(inputs: LoaderInputs) -> BatchSource:
    """Opens PyG's loader, with a worker for each core."""
    from diskgnn.baselines.pyg_loader import PyG

    return PyG(inputs.graph, **inputs.drawn, workers=available_cores())


def dgl(workers: bool) -> Callable[[LoaderInputs], BatchSource]:
    """Opens DGL's loader, with a worker for each core or with none."""

    def open_dgl(inputs: LoaderInputs) -> BatchSource:
        from diskgnn.baselines.dgl_loader import DGL

        return DGL(inputs.graph, **inputs.drawn, workers=available_cores() if workers else 0)

    return open_dgl


def graphbolt(inputs: LoaderInputs) -> BatchSource:
    """Opens GraphBolt's loader, with its cache in front of features on disk."""
    from diskgnn.baselines.graphbolt_loader import GraphBolt

    return GraphBolt(inputs.graph, **inputs.drawn, cpu_cache=inputs.cache_bytes)
