"""What a comparison is asked to do: typed, and checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diskgnn.compare.variants import LOADERS, Variant, select
from diskgnn.errors import ConfigError
from diskgnn.formats.samples_config import fanouts_to_json, spec_to_json
from diskgnn.graph.feature_files import feature_files
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import label_target
from diskgnn.nn.model_spec import ONE_TYPE_MODELS, RELATIONAL, TYPED_MODELS, ModelSpec
from diskgnn.paths import PathLike
from diskgnn.specs.caches import cache_rows
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget
from diskgnn.stores.locations import local
from diskgnn.units import format_size, parse_size, whole_number

DEFAULT_CACHE_SHARE = 0.1  # of the features, as far as that leaves most of the cap to everything else
DEFAULT_CACHE_CAP_SHARE = 0.2


@dataclass(frozen=True)
class ComparedRows:
    """The feature rows of a graph, of all its types together."""

    num_rows: int
    num_bytes: int
    whole_bytes: int  # of the same rows, with the columns that are left out

    @staticmethod
    def of(graph: Graph) -> ComparedRows:
        """Returns those of all files.

        Raises:
            ConfigError: there are none.
        """
        files = feature_files(graph).values()
        if not files:
            raise ConfigError(
                f"expected rows of features, by reading which loaders are compared, found none in {graph.manifest.path}"
                + f" without {', '.join(graph.left_out)}; leave fewer columns out" * bool(graph.left_out)
            )
        return ComparedRows(
            sum(file.num_rows for file in files),
            sum(file.num_bytes for file in files),
            sum(file.whole.num_bytes for file in files),
        )

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of a row; the mean where types differ."""
        return self.num_bytes // max(self.num_rows, 1)

    def has_others(self, variant: Variant) -> bool:
        """Returns True if rows are wider to a variant, which reads them whole: a cache has room for fewer of them."""
        return variant.whole_rows and self.whole_bytes != self.num_bytes

    def row_bytes_of(self, variant: Variant) -> int:
        """Returns the bytes of a row as a variant reads it; the mean where types differ."""
        return self.whole_bytes // max(self.num_rows, 1) if variant.whole_rows else self.row_bytes


@dataclass(frozen=True)
class ComparisonSettings:
    """Says what `compare` measures, and how.

    Raises:
        ConfigError: a value that makes no sense.
    """

    # The cap of each process: a cgroup's limit, where this process may make one; otherwise it is warned that nothing
    # caps the page cache. Preparing may use half of it.
    memory: int | str
    # Of the minibatches, which are the same for all loaders with the same seed: `epochs` are those to train. Seeds of
    # minibatches, weights and dropout are counted from 0, whatever it says.
    sampling: SamplingSpec
    loaders: str | Sequence[str] = "usual"  # see `registry.select`
    max_batches: int | None = None  # per epoch; the rest of the train split is left out, for preparing, too
    num_seeds: int = 1  # to train with; all but the first are for scores only
    # Rows in main memory for those that cache: bytes, '512MiB', or '10%' of all rows; by default 10 %, but at most 20 %
    # of `memory`.
    cpu_cache: int | str | None = None
    sweep: Sequence[str] = ()  # cache sizes at which to count the rows that caches would read
    model: ModelSpec = field(default_factory=ModelSpec)  # that every loader feeds
    lr: float = 0.003  # of its training
    device: str = "cpu"  # where the model is
    evaluate: bool = True  # measure the task's scores on the other splits after every epoch, outside the clock
    best_by: str | None = None  # the score that epochs are chosen by; the first that the task has
    scratch: PathLike | None = None  # where to prepare, on the disk to measure; made if missing; the graph's parent
    timeout_seconds: float = 3600.0  # of each process
    rate_file_bytes: int = 1 << 30  # size of the file that the disk's rates are measured with

    def __post_init__(self) -> None:
        whole_number("num_seeds", self.num_seeds)
        if self.max_batches is not None:
            whole_number("max_batches", self.max_batches)
        if self.memory_bytes == 0:
            raise ConfigError("memory: expected the cap that all loaders run under, such as 2GiB, found 0")
        assert self.variants
        if self.best_by is not None and not self.evaluate:
            raise ConfigError(
                "best_by: expected scores to choose epochs by, found evaluate=False, which measures none: leave out "
                "the one or the other"
            )
        if self.device != "cpu":
            from diskgnn.system.device import checked_device  # with torch, which this process does without otherwise

            checked_device(self.device)

    @property
    def memory_bytes(self) -> int:
        """Returns `memory` in bytes."""
        return parse_size(self.memory)

    @property
    def variants(self) -> list[Variant]:
        """Returns those selected; the ones that may run without the cap last: giving back that much memory slows the
        next."""
        return sorted(select(self.loaders, self.sampling.epochs), key=lambda variant: variant.uncapped)

    def fitting(self, graph: Graph) -> ComparisonSettings:
        """Returns the same with a model for this graph. Of labels that are given, with the classes of all splits: each
        loader is given those of the train split alone.

        Raises:
            ConfigError: a model that not all loaders have minibatches for.
        """
        sampling, target = self.sampling, self.sampling.target
        if self.model.name == RELATIONAL:
            if lacking := [_variant_name(each) for each in self.variants if not each.has_columns]:
                having = [_variant_name(each) for all_of in LOADERS.values() for each in all_of if each.has_columns]
                raise ConfigError(
                    "loaders: model='relational' takes columns and times, and expected loaders that have them "
                    f"({', '.join(having)}), found {', '.join(lacking)}; leave these out, or compare another model"
                )
            sampling = replace(sampling, keep_times=sampling.keep_times or sampling.is_temporal)
        if target.labels is not None:
            labels = label_target(graph, target)
            assert labels is not None
            if labels.kind == "class":
                sampling = replace(sampling, target=replace(target, num_classes=labels.num_outputs))
        name = self.model.name or (TYPED_MODELS if graph.is_typed else ONE_TYPE_MODELS)[0]
        return replace(self, sampling=sampling, model=replace(self.model, name=name))

    def cached_rows(self, features: ComparedRows) -> int:
        """Returns the rows of these features that the cache of a loader holds.

        Raises:
            ConfigError: they take more than `memory`.
        """
        row_bytes, memory_bytes = features.row_bytes, self.memory_bytes
        if self.cpu_cache is None:
            most_bytes = int(memory_bytes * DEFAULT_CACHE_CAP_SHARE)
            return min(int(features.num_rows * DEFAULT_CACHE_SHARE), most_bytes // row_bytes)
        rows = cache_rows(self.cpu_cache, row_bytes, features.num_rows)
        if rows * row_bytes > memory_bytes:
            raise ConfigError(
                f"cpu_cache: {self.cpu_cache} is {format_size(rows * row_bytes)}, more than `memory` "
                f"({format_size(memory_bytes)}): take less of the one or more of the other"
            )
        return rows

    def sweep_rows(self, features: ComparedRows) -> list[tuple[str, int]]:
        """Returns the caches of the sweep, as given and in rows of these features."""
        return [(size, cache_rows(size, features.row_bytes, features.num_rows)) for size in self.sweep]

    def scratch_parent(self, graph: Path) -> Path:
        """Returns the folder to prepare in."""
        return graph.absolute().parent if self.scratch is None else local(self.scratch, "comparing")

    def described(self, features: ComparedRows) -> dict[str, Any]:
        """Returns what the report and the results' file say of them."""
        return {
            "memory_bytes": self.memory_bytes, "fanouts": fanouts_to_json(self.sampling.fanouts),
            "batch_size": self.sampling.batch_size, "epochs": self.sampling.epochs, "max_batches": self.max_batches,
            "seeds": self.num_seeds, "cpu_cache": self.cpu_cache,
            "cpu_cache_bytes": self.cached_rows(features) * features.row_bytes, "model": self.model.name,
            "hidden": self.model.hidden, "dropout": self.model.dropout, "lr": self.lr, "device": self.device,
            "evaluate": self.evaluate, **_told_if_asked(self.sampling),
        }  # fmt: skip


def _variant_name(variant: Variant) -> str:
    """Returns what `loaders` calls it."""
    return ":".join(filter(None, (variant.loader, variant.variant)))


def _told_if_asked(sampling: SamplingSpec) -> dict[str, Any]:
    """Returns what of `sampling` is not what one gets without asking, but fanouts and sizes."""
    usual = spec_to_json(SamplingSpec(sampling.fanouts, sampling.batch_size, target=NodeTarget()))
    told = (
        "draws", "draw_period", "group_seeds", "target", "temporal", "temporal_window", "strict_time", "weighted",
        "without",
    )  # fmt: skip
    return {name: value for name, value in spec_to_json(sampling).items() if name in told and value != usual.get(name)}
