"""The loaders that can be compared: how each prepares, how each is opened, and what limits it at best.

Memory is shared out alike. All run under one cap, page cache included. Those with a cache of rows get the same
`cache_bytes`; what the cap leaves beyond that is everybody's for minibatches, the model, and (through the page cache)
topology or memory-mapped features. Those that sample while training may hold a quarter of the cap of topology: they
load it if that suffices, and otherwise map it (or, Ginex and the partition buffer, hold what they can of it) and
sample in more threads, so that many pages are waited for at the same time, as the authors' programs do. Preparing may
use half of the cap; a quarter where it runs beside training. Other libraries' loaders hold topology as they do, and
PyG's has a worker process for every core, as its users would: it has no threads. DGL's runs with as many workers, and
without: then its sampler has threads, but nothing overlaps; workers take more memory, and are not always faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskgnn.batch_source import BatchSource
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.system.memory import available_cores

SEQUENTIAL, RANDOM, MEMORY = "sequential reads", "random reads", "memory"
TOPOLOGY_SHARE = 4  # of the cap, one part in so many may be topology in memory
SEGMENTED_BLOWUP = (
    3  # times the features' bytes for rows in segments: the tightest limit that DiskGNN's authors measure
)
MAPPED_SAMPLING_THREADS = 8  # each with a minibatch of its own in memory, and a page that it waits for
MAX_SEVERAL_EPOCHS = 4  # that 'diskgnn:several' prepares


@dataclass(frozen=True)
class Setting:
    """What the loaders of a comparison have in common, and where one of them may write."""

    graph: str  # directory; its train split is trained on, and there is no other
    folder: str  # empty, and the loader's own, from preparing until it was measured; on the scratch disk
    fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    epochs: int  # that will be trained
    cache_bytes: int  # for rows in main memory
    memory_bytes: int  # the cap
    device: str = "cpu"

    @property
    def sampling(self) -> dict[str, Any]:
        """What decides the minibatches, as all sources take it."""
        return {"fanouts": list(self.fanouts), "batch_size": self.batch_size, "seed": self.seed}

    @property
    def online(self) -> dict[str, Any]:
        """What sources take that sample while training."""
        graph = Graph.open(self.graph)
        topology = "memory" if self.holds_topology(graph) else "mmap"
        return {"graph": graph, "topology": topology, "threads": self.sampling_threads(graph), **self.sampling}

    def holds_topology(self, graph: Graph) -> bool:
        """Whether what samples while training may load all of the topology."""
        return graph.topology_bytes <= self.memory_bytes // TOPOLOGY_SHARE

    def sampling_threads(self, graph: Graph) -> int | None:
        """The default; more than there are cores where each waits for pages of the topology, one at a time."""
        return None if self.holds_topology(graph) else max(available_cores(), MAPPED_SAMPLING_THREADS)

    @property
    def packed(self) -> Path:
        """Where those that pack do so."""
        return Path(self.folder) / "packed"


@dataclass(frozen=True)
class Variant:
    """One row of the comparison."""

    loader: str
    variant: str  # '' where a loader has but one
    name: str  # as shown
    open: Callable[[Setting], BatchSource]
    bound: str  # SEQUENTIAL, RANDOM or MEMORY: what its design cannot beat
    prepare: Callable[[Setting], None] | None = None  # writes to the setting's folder
    cached: bool = False  # whether it keeps rows in `cache_bytes`: then Belady's bound is a bound for it
    uncapped: bool = False  # runs without the cap, too, where it does not fit: the upper bound


def _in_memory(setting: Setting) -> BatchSource:
    from diskgnn.baselines.in_memory import InMemory

    return InMemory(setting.graph, "train", **setting.sampling)


def _mapped(advice: str, parallel: bool) -> Callable[[Setting], BatchSource]:
    def open_mapped(setting: Setting) -> BatchSource:
        from diskgnn.baselines.mmap import TOUCHING_THREADS, MMap

        return MMap(**setting.online, advice=advice, gather_threads=TOUCHING_THREADS if parallel else 1)

    return open_mapped


def _cached_reads(policy: str) -> Callable[[Setting], BatchSource]:
    def open_cached(setting: Setting) -> BatchSource:
        from diskgnn.baselines.cached_reads import CachedReads

        return CachedReads(**setting.online, cpu_cache=setting.cache_bytes, policy=policy)

    return open_cached


def _ginex(setting: Setting) -> BatchSource:
    from diskgnn.baselines.ginex import Ginex

    graph = Graph.open(setting.graph)
    share_bytes = setting.memory_bytes // TOPOLOGY_SHARE
    fixed_bytes = 2 * graph.indptr.nbytes  # offsets, and the table of what is cached
    whole = setting.holds_topology(graph)
    return Ginex(
        graph,
        **setting.sampling,
        threads=setting.sampling_threads(graph) or available_cores(),  # at first, nothing else runs
        cpu_cache=setting.cache_bytes,
        neighbor_cache="100%" if whole else max(0, share_bytes - fixed_bytes),
        scratch=setting.folder,
    )


def _partition_buffer_bytes(setting: Setting, graph: Graph) -> int:
    """Rows and edges share the buffer, so it gets what the others have for a cache and for topology."""
    return setting.cache_bytes + min(graph.topology_bytes, setting.memory_bytes // TOPOLOGY_SHARE)


def _prepare_partitions(train_first: bool) -> Callable[[Setting], None]:
    def prepare(setting: Setting) -> None:
        from diskgnn.baselines.partition_buffer import fitting_partitions
        from diskgnn.baselines.partitioning import prepare_partitions

        graph = Graph.open(setting.graph)
        prepare_partitions(
            graph,
            setting.packed,
            num_partitions=fitting_partitions(graph, _partition_buffer_bytes(setting, graph)),
            train_first=train_first,
            seed=setting.seed,
            memory=setting.memory_bytes // 2,
        )

    return prepare


def _partition_buffer(order: str) -> Callable[[Setting], BatchSource]:
    def open_buffer(setting: Setting) -> BatchSource:
        from diskgnn.baselines.partition_buffer import PartitionBuffer

        graph = Graph.open(setting.graph)
        memory = _partition_buffer_bytes(setting, graph)
        return PartitionBuffer(graph, setting.packed, **setting.sampling, memory=memory, order=order)

    return open_buffer


def _prepare_static(setting: Setting) -> None:
    from diskgnn.baselines.static_packed import prepare_static_packed

    prepare_static_packed(
        setting.graph,
        setting.packed,
        **setting.sampling,
        static_cache=setting.cache_bytes,
        memory=setting.memory_bytes // 2,
    )


def _static_packed(setting: Setting) -> BatchSource:
    from diskgnn.baselines.static_packed import StaticPacked

    return StaticPacked(setting.packed, seed=setting.seed, device=setting.device)


def _prepare_segmented(setting: Setting) -> None:
    from diskgnn.baselines.segmented_packing import prepare_segmented_packed

    features = Graph.open(setting.graph).feature_file
    prepare_segmented_packed(
        setting.graph,
        setting.packed,
        **setting.sampling,
        static_cache=setting.cache_bytes,
        disk_limit=SEGMENTED_BLOWUP * features.num_bytes,
        memory=setting.memory_bytes // 2,
    )


def _segmented_packed(setting: Setting) -> BatchSource:
    from diskgnn.baselines.segmented_packed import SegmentedPacked

    return SegmentedPacked(setting.graph, setting.packed, seed=setting.seed)


def _fresh(setting: Setting) -> BatchSource:
    from diskgnn.training.fresh_epochs import FreshEpochs

    return FreshEpochs(
        setting.graph,
        setting.folder,
        **setting.sampling,
        cpu_cache=setting.cache_bytes,
        num_epochs=setting.epochs,
        memory=setting.memory_bytes // 4,
        device=setting.device,
    )


def _prepare_epochs(num_epochs: Callable[[Setting], int]) -> Callable[[Setting], None]:
    def prepare(setting: Setting) -> None:
        from diskgnn.preparing.prepare import prepare

        prepare(
            setting.graph,
            setting.packed,
            **setting.sampling,
            epochs=num_epochs(setting),
            cpu_cache=setting.cache_bytes,
            static_cache=0,
            memory=setting.memory_bytes // 2,
        )

    return prepare


def _loader(setting: Setting) -> BatchSource:
    from diskgnn.loading.loader import Loader

    return Loader(setting.packed, "train", device=setting.device)


def _pyg(setting: Setting) -> BatchSource:
    from diskgnn.baselines.pyg import PyG

    return PyG(setting.graph, **setting.sampling, workers=available_cores())


def _dgl(workers: bool) -> Callable[[Setting], BatchSource]:
    def open_dgl(setting: Setting) -> BatchSource:
        from diskgnn.baselines.dgl_loader import DGL

        return DGL(setting.graph, **setting.sampling, workers=available_cores() if workers else 0)

    return open_dgl


def _graphbolt(setting: Setting) -> BatchSource:
    from diskgnn.baselines.graphbolt import GraphBolt

    return GraphBolt(setting.graph, **setting.sampling, cpu_cache=setting.cache_bytes)


LOADERS: dict[str, tuple[Variant, ...]] = {
    "in-memory": (Variant("in-memory", "", "in-memory", _in_memory, MEMORY, uncapped=True),),
    "mmap": (
        Variant("mmap", "normal", "mmap, kernel reads ahead", _mapped("normal", parallel=False), SEQUENTIAL),
        Variant("mmap", "random", "mmap, random advice", _mapped("random", parallel=False), RANDOM),
        Variant("mmap", "parallel", "mmap, touched in parallel", _mapped("random", parallel=True), RANDOM),
    ),
    "cached-reads": tuple(
        Variant("cached-reads", policy, f"cached reads, {name}", _cached_reads(policy), RANDOM, cached=True)
        for policy, name in (("lru", "LRU"), ("s3-fifo", "S3-FIFO"), ("sieve", "SIEVE"))
    ),
    "ginex": (Variant("ginex", "", "Ginex", _ginex, RANDOM, cached=True),),
    "partition-buffer": (
        Variant("partition-buffer", "comet", "partition buffer, COMET", _partition_buffer("comet"), SEQUENTIAL,
                _prepare_partitions(train_first=False)),
        Variant("partition-buffer", "cached", "partition buffer, training nodes stay", _partition_buffer("cached"),
                SEQUENTIAL, _prepare_partitions(train_first=True)),
    ),
    "static-packed": (
        Variant("static-packed", "plain", "static cache, packed", _static_packed, SEQUENTIAL,
                _prepare_static, cached=True),
        Variant("static-packed", "segmented", "static cache, segments", _segmented_packed, RANDOM,
                _prepare_segmented, cached=True),
    ),
    "diskgnn": (
        Variant("diskgnn", "one", "diskgnn, one epoch reused", _loader, SEQUENTIAL,
                _prepare_epochs(lambda _: 1), cached=True),
        Variant("diskgnn", "several", "diskgnn, several epochs", _loader, SEQUENTIAL,
                _prepare_epochs(lambda setting: min(setting.epochs, MAX_SEVERAL_EPOCHS)), cached=True),
        Variant("diskgnn", "fresh", "diskgnn, every epoch fresh", _fresh, SEQUENTIAL, cached=True),
    ),
    "pyg": (Variant("pyg", "", "PyG", _pyg, RANDOM),),
    "dgl": (
        Variant("dgl", "threads", "DGL, threads", _dgl(workers=False), RANDOM),
        Variant("dgl", "workers", "DGL, worker processes", _dgl(workers=True), RANDOM),
    ),
    "graphbolt": (Variant("graphbolt", "", "GraphBolt", _graphbolt, RANDOM),),  # does not tell what its cache had
}  # fmt: skip


def find(loader: str, variant: str) -> Variant:
    """The variant of those names.

    Raises:
        ConfigError: there is none.
    """
    for found in LOADERS.get(loader, ()):
        if found.variant == variant:
            return found
    raise _unknown(f"{loader}:{variant}")


def select(names: str | Sequence[str], epochs: int | None = None) -> list[Variant]:
    """The variants that `names` stands for: 'all', or a list such as 'diskgnn,cached-reads:sieve,mmap'.

    A loader's name alone stands for all its variants, but for 'diskgnn:several' where only one of `epochs` is trained:
    then it is 'diskgnn:one'. Each comes once, in the order of `names`.

    Raises:
        ConfigError: a name is none of a loader, or of a variant.
    """
    parts = [part.strip() for part in (names.split(",") if isinstance(names, str) else names)]
    selected: list[Variant] = []
    for part in parts:
        loader, colon, variant = part.partition(":")
        if part == "all":
            found = [variant for variants in LOADERS.values() for variant in variants]
        elif colon:
            found = [find(loader, variant)]
        else:
            found = list(LOADERS.get(loader, ()))
        if not found:
            raise _unknown(part)
        selected += [variant for variant in found if variant not in selected]
    if epochs == 1 and "diskgnn:several" not in parts:
        selected = [variant for variant in selected if (variant.loader, variant.variant) != ("diskgnn", "several")]
    return selected


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"--loaders: found {name!r}, expected 'all' or some of {', '.join(_names())}")


def _names() -> list[str]:
    names = []
    for loader, variants in LOADERS.items():
        names.append(loader)
        names += [f"{loader}:{variant.variant}" for variant in variants if variant.variant]
    return names
