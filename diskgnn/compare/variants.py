"""The loaders that can be compared: their names, and what limits each at best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from diskgnn.batches.batch_source import BatchSource
from diskgnn.compare import loader_setup
from diskgnn.compare.loader_setup import MAX_SEVERAL_EPOCHS, PREPARED_EPOCHS, PYG_PLUS_THREADS, LoaderInputs
from diskgnn.compare.variant_draws import Drawing
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget

SEQUENTIAL, RANDOM, MEMORY = "sequential reads", "random reads", "memory"
# What minibatches may need that a loader lacks:
TYPES, LINKS, TIMES = "this graph has several types", "seeds are links", "draws have times"
WEIGHTS, COORDINATED, GROUPS = "draws are weighted", "draws are coordinated", "seeds are grouped"
GIVEN, COLUMNS = "seeds are given", "columns are left out"


@dataclass(frozen=True)
class Variant:
    """One row of the comparison."""

    loader: str
    variant: str  # '' where a loader has but one
    name: str  # as shown
    open: Callable[[LoaderInputs], BatchSource]
    bound: str  # SEQUENTIAL, RANDOM or MEMORY: what its design cannot beat
    prepare: Callable[[LoaderInputs], None] | None = None  # writes to the inputs' `folder`
    cached: bool = False  # whether it keeps rows in `cache_bytes`: then Belady's bound is a bound for it
    has_own_model: bool = False  # of what it prepares: it is evaluated on the same, of the other splits
    whole_rows: bool = False  # reads rows as the graph has them, with columns that are left out
    has_columns: bool = False  # minibatches have the columns that tables keep, and times, beside x
    uncapped: bool = False  # runs without the cap, too, where it does not fit: the upper bound
    about: str = ""  # what its design is, for somebody who has never heard of it
    # What it cannot take of TYPES, LINKS, TIMES and so on, and why.
    lacks: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, graph: Graph, sampling: SamplingSpec) -> str:
        """Says why it cannot load these minibatches; '' if it can."""
        asked = {
            TYPES: graph.is_typed,
            LINKS: isinstance(sampling.target, LinkTarget),
            TIMES: sampling.is_temporal,
            WEIGHTS: sampling.weighted,
            COORDINATED: sampling.draws != "independent",
            GROUPS: sampling.group_seeds > 1,
            GIVEN: sampling.target.seeds is not None,
            COLUMNS: bool(sampling.without),
        }
        return next((f"{what}: {why}" for what, why in self.lacks.items() if asked[what]), "")


def _all_but_plain(types: str, draws: str) -> dict[str, str]:
    """Says what a loader with its own way of drawing lacks: `types` why it takes one type, `draws` how it draws."""
    return {TYPES: types, LINKS: draws, TIMES: draws, WEIGHTS: draws, COORDINATED: draws}


def _library(name: str) -> dict[str, str]:
    adapter = f"the adapter of {name}'s loader"
    draws = _all_but_plain(f"{adapter} takes graphs of one type", f"{adapter} draws uniformly")
    return draws | {COLUMNS: f"{adapter} delivers whole rows"}


_PARTITIONED = {
    **_all_but_plain(
        "a partition buffer divides the nodes of one type",
        "a partition buffer draws among what is in memory, uniformly",
    ),
    GROUPS: "its seeds are those of the partitions in memory",
    GIVEN: "its seeds are those of the partitions in memory",
    COLUMNS: "partitions hold whole rows",
}

LOADERS: dict[str, tuple[Variant, ...]] = {
    "in-memory": (
        Variant("in-memory", "", "in-memory", loader_setup.in_memory, MEMORY, uncapped=True,
                about="All features and edges in main memory; the disk is read only before the first epoch."),
    ),
    "mmap": (
        Variant("mmap", "normal", "mmap, kernel reads ahead",
                partial(loader_setup.mapped, advice="normal", touching_threads=1), SEQUENTIAL, whole_rows=True,
                about="Features in a memory-mapped file; the kernel caches pages and reads more than was asked for."),
        Variant("mmap", "random", "mmap, random advice",
                partial(loader_setup.mapped, advice="random", touching_threads=1), RANDOM, whole_rows=True,
                about="Features in a memory-mapped file; the kernel is told to read only the pages needed."),
        Variant("mmap", "parallel", "mmap, touched in parallel",
                partial(loader_setup.mapped, advice="random", touching_threads=PYG_PLUS_THREADS), RANDOM,
                whole_rows=True,
                about="Memory-mapped features, touched by many threads: the disk works on many pages at once (PyG+)."),
    ),
    "cached-reads": tuple(
        Variant("cached-reads", policy, f"cached reads, {name}", loader_setup.cached_reads(policy), RANDOM, cached=True,
                whole_rows=True,
                about=f"A cache of rows in memory that evicts by {name}; rows that it lacks are read one by one.")
        for policy, name in (("lru", "LRU"), ("s3-fifo", "S3-FIFO"), ("sieve", "SIEVE"))
    ),
    "ginex": (
        Variant("ginex", "", "Ginex", loader_setup.ginex, RANDOM, cached=True,
                about="Samples many minibatches ahead, so that its cache keeps what they need soonest (VLDB 2022).",
                lacks={
                    TYPES: "Ginex caches the neighbour lists of one type of edges",
                    LINKS: "its superbatches are of nodes", TIMES: "its cache holds neighbours without times",
                    WEIGHTS: "its cache holds neighbours without weights", COLUMNS: "its cache holds whole rows",
                }),
    ),
    "partition-buffer": (
        Variant("partition-buffer", "comet", "partition buffer, COMET", loader_setup.partition_buffer("comet"),
                SEQUENTIAL, loader_setup.prepare_partitions(train_first=False),
                about="Samples only among the parts of the graph that are in memory, and swaps them during an epoch "
                      "(MariusGNN, EuroSys 2023).",
                lacks=_PARTITIONED),
        Variant("partition-buffer", "cached", "partition buffer, fixed", loader_setup.partition_buffer("cached"),
                SEQUENTIAL, loader_setup.prepare_partitions(train_first=True),
                about="A partition buffer in which the parts with the training nodes stay for the whole epoch.",
                lacks=_PARTITIONED),
    ),
    "static-packed": (
        Variant("static-packed", "plain", "static cache, packed", loader_setup.static_packed, SEQUENTIAL,
                loader_setup.prepare_static, cached=True, has_columns=True,
                about="The rows needed most often stay in memory; what else a minibatch needs lies in one piece on "
                      "disk, sampled and packed beforehand."),
        Variant("static-packed", "segmented", "DiskGNN's design, segments", loader_setup.segmented_packed, RANDOM,
                loader_setup.prepare_segmented, cached=True,
                about="A static cache and packed minibatches in limited disk space; what similar minibatches share is "
                      "stored once (DiskGNN, SIGMOD 2025).",
                lacks={TYPES: "segments hold the rows of one type", LINKS: "its seeds are nodes",
                       TIMES: "segments hold each row once for a minibatch",
                       COORDINATED: "its sampler draws independently", GROUPS: "its sampler shuffles seeds",
                       WEIGHTS: "its sampler draws uniformly", COLUMNS: "segments hold whole rows",
                       GIVEN: "its sampler takes the graph's splits, and its headers the graph's labels"}),
    ),
    "diskgnn": (
        Variant("diskgnn", "one", "diskgnn, one epoch reused", loader_setup.loader, SEQUENTIAL,
                loader_setup.prepare_epochs(1), cached=True, has_columns=True,
                about="This project: sampled and packed beforehand, with a cache that knows all that comes. One epoch "
                      "is prepared and trained on again and again."),
        Variant("diskgnn", "several", "diskgnn, several epochs", loader_setup.loader, SEQUENTIAL,
                loader_setup.prepare_epochs(MAX_SEVERAL_EPOCHS), cached=True, has_columns=True,
                about=f"This project, with as many different epochs as are trained, at most {MAX_SEVERAL_EPOCHS}."),
        Variant("diskgnn", "fresh", "diskgnn, every epoch fresh", loader_setup.fresh, SEQUENTIAL, cached=True,
                has_columns=True,
                about="This project; each epoch is sampled and packed anew while the one before is trained on."),
    ),
    "propagated": (
        Variant("propagated", "", "propagated, nothing sampled", loader_setup.propagated, SEQUENTIAL,
                loader_setup.prepare_propagated, has_own_model=True,
                about="This project, without sampling: whole neighbourhoods are averaged once, and a model that learns "
                      "from these means is trained in place of the others' (SIGN, SeHGNN).",
                lacks={LINKS: "records of hops are those of nodes", TIMES: "whole neighbourhoods have no times",
                       GIVEN: "records have the labels of the graph", COLUMNS: "hops are averaged of whole vectors"}),
    ),
    "pyg": (
        Variant("pyg", "", "PyG", loader_setup.pyg, RANDOM,
                about="PyTorch Geometric's NeighborLoader on mapped features.",
                lacks=_library("PyG")),
    ),
    "dgl": (
        Variant("dgl", "threads", "DGL, threads", loader_setup.dgl(workers=False), RANDOM,
                about="DGL's DataLoader on mapped features, sampling in threads.",
                lacks=_library("DGL")),
        Variant("dgl", "workers", "DGL, worker processes", loader_setup.dgl(workers=True), RANDOM,
                about="DGL's DataLoader on mapped features, sampling in processes.",
                lacks=_library("DGL")),
    ),
    "graphbolt": (  # does not tell what its cache had
        Variant("graphbolt", "", "GraphBolt", loader_setup.graphbolt, RANDOM,
                about="DGL's GraphBolt, with features on disk.",
                lacks=_library("GraphBolt")),
    ),
}  # fmt: skip


# What most people ask first: ours, the bound above it, and the two ways to read rows from disk without preparing.
USUAL = ("in-memory", "mmap:parallel", "cached-reads:sieve", "diskgnn:one", "diskgnn:fresh")


def find(loader: str, variant: str) -> Variant:
    """Returns the variant of those names; 'one' and 'several' of diskgnn may be followed by a way of drawing, see
    `Drawing`.

    Raises:
        ConfigError: there is none.
    """
    for found in LOADERS.get(loader, ()):
        if found.variant == variant:
            return found
    base, colon, drawing = variant.partition(":")
    if colon and loader == "diskgnn" and base in PREPARED_EPOCHS:
        return _drawn(find(loader, base), Drawing.parse(drawing))
    raise _unknown_error(f"{loader}:{variant}")


def _drawn(base: Variant, drawing: Drawing) -> Variant:
    """Returns the same with other minibatches, for which Belady's bound of the others is none."""
    variant = ":".join(str(each) for each in (base.variant, *drawing.arguments.values()))
    return replace(
        base, variant=variant, name=f"{base.name}, {drawing.words}", cached=False,
        prepare=loader_setup.prepare_epochs(PREPARED_EPOCHS[base.variant], drawing),
        about=f"{base.about} Its minibatches need fewer rows: {drawing.words}.",
    )  # fmt: skip


def select(names: str | Sequence[str], epochs: int | None = None) -> list[Variant]:
    """Returns the variants that `names` stands for: 'usual', 'all', or a list such as 'usual,ginex,mmap:normal'.

    A loader's name alone stands for all its variants, but for 'diskgnn:several' where only one of `epochs` is trained:
    then it is 'diskgnn:one'. Each comes once, in the order of `names`.

    Raises:
        ConfigError: a name is none of a loader, or of a variant.
    """
    given = [part.strip() for part in (names.split(",") if isinstance(names, str) else names)]
    parts = [each for part in given for each in (USUAL if part == "usual" else (part,))]
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
            raise _unknown_error(part)
        selected += [variant for variant in found if variant not in selected]
    if epochs == 1 and "diskgnn:several" not in parts:
        selected = [variant for variant in selected if (variant.loader, variant.variant) != ("diskgnn", "several")]
    return selected


def _unknown_error(name: str) -> ConfigError:
    return ConfigError(f"loaders: found {name!r}, expected 'usual', 'all' or some of {', '.join(_names())}")


def _names() -> list[str]:
    names = []
    for loader, variants in LOADERS.items():
        names.append(loader)
        names += [f"{loader}:{variant.variant}" for variant in variants if variant.variant]
    return names
