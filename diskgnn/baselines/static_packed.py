"""DiskGNN's design: the hottest rows in memory, each minibatch's others packed on disk, one sampled epoch reused.

Liu et al., DiskGNN: Bridging I/O Efficiency and Model Accuracy for Out-of-Core GNN Training, SIGMOD 2025.
`segmented_packed` is the same with the paper's segmented disk cache, which limits the disk space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diskgnn.errors import ArtifactError
from diskgnn.formats.packed import Packed
from diskgnn.graph.graph import Graph
from diskgnn.loading.loader import Loader
from diskgnn.paths import PathLike
from diskgnn.preparing.prepare import prepare
from diskgnn.progress.reporter import StageReport


def prepare_static_packed(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    static_cache: int | str,
    **options: Any,
) -> list[StageReport]:
    """Write the packed directory that `StaticPacked` reads: one sampled epoch, `static_cache` of static rows, nothing
    else in memory.

    Args, errors and result are those of `diskgnn.prepare`; `options` are any of its others but `epochs`, `cpu_cache`
    and `eval_cpu_cache`.
    """
    return prepare(
        graph,
        out,
        fanouts=fanouts,
        batch_size=batch_size,
        epochs=1,
        cpu_cache=0,
        static_cache=static_cache,
        eval_cpu_cache=0,
        **options,
    )


class StaticPacked(Loader):
    """A `BatchSource` over one split of a directory from `prepare_static_packed`.

    Kept of the original: sampling is done once, before training. The rows that the sampled epoch needs most often are
    fixed in memory (on a GPU first, the rest in host memory). Each minibatch's other rows are contiguous on disk and
    read past the page cache. Reading, assembling and training overlap; minibatches come in a new order each epoch.

    Different: our packer writes the extents, in one pass over the features for all of them, as the paper's batched
    packing does, but out of core; the graph blocks are in the same read instead of a pickled file of their own. Our
    pipeline reads them. Both only make it faster. Evaluation reads its own packed splits, in their order, instead of
    loading all features.

    Args:
        packed: directory.
        split: 'train', 'valid' or 'test'.
        seed: of the order of the minibatches; same seed, same order.
        options: more arguments of `diskgnn.Loader`.

    Raises:
        ArtifactError: not such a directory, or one prepared with a cpu tier or with several epochs.
        ConfigError: options that cannot work.

    Example:
        >>> prepare_static_packed("graph", "packed", fanouts=[10, 10], batch_size=1024, static_cache="10%")
        >>> with StaticPacked("packed") as source:
        ...     diskgnn.train(source, epochs=10)
    """

    name = "static-packed"

    def __init__(self, packed: PathLike | Packed, split: str = "train", *, seed: int = 0, **options: Any) -> None:
        packed = Packed.open(packed)
        if any(sequence.cpu_rows or sequence.epochs != 1 for sequence in packed.config.splits.values()):
            raise ArtifactError(
                f"{packed.path} was prepared with a cpu tier or several epochs, expected one epoch and static rows "
                f"only: make it with prepare_static_packed"
            )
        super().__init__(packed, split, shuffle_seed=seed if split == "train" else None, **options)
