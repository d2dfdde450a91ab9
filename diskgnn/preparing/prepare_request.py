"""What a packed directory is to be made from and with: what `prepare` and `estimate` are told, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.files.destination import Destination, staging_of
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.row_sets import features_of, row_sets_of
from diskgnn.packing.tiers import TierBudgets
from diskgnn.paths import PathLike, resolved
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import CacheSpec
from diskgnn.system.resources import Resources


@dataclass(frozen=True)
class PrepareRequest:
    """One packed directory before it is made."""

    plan: SamplingPlan
    tiers: TierBudgets
    cache: CacheSpec  # what `tiers` came from
    resources: Resources
    destination: Destination
    samples: Path | None  # where to keep the samples; None for scratch beside `out`
    keep_input_nodes: bool
    static_from: Path | None = None  # a folder that says which rows are static, if all ranks have decided that together

    @staticmethod
    def of(
        plan: SamplingPlan,
        cache: CacheSpec,
        resources: Resources,
        out: PathLike,
        *,
        samples: Path | None = None,
        keep_input_nodes: bool = False,
    ) -> PrepareRequest:
        """Check everything against the graph of `plan`.

        Raises:
            ConfigError: see `TierBudgets`.
        """
        tiers = TierBudgets.of(cache, features_of(plan.graph, plan.config()), resources)
        return PrepareRequest(plan, tiers, cache, resources, Destination.of(out), samples, keep_input_nodes)

    @property
    def out(self) -> Path:
        """Returns where the packed directory is made."""
        return self.destination.path

    @property
    def graph(self) -> Graph:
        """Returns what is sampled and packed."""
        return self.plan.graph

    @property
    def samples_path(self) -> Path:
        """Returns where the samples go."""
        return self.samples or self.scratch / "samples"

    @property
    def scratch(self) -> Path:
        """Returns what is only needed while preparing, and goes when that is done."""
        return scratch_of(self.out)

    def packing(self, samples: Samples) -> PackRequest:
        """Returns what is to be packed, of the samples that were made.

        Raises:
            ArtifactError, ConfigError: see `PackRequest`.
        """
        return PackRequest(
            self.graph,
            samples,
            self.tiers,
            keep_input_nodes=self.keep_input_nodes,
            static_nodes=self._static_nodes(),
        )

    def _static_nodes(self) -> dict[str, npt.NDArray[np.int64]] | None:
        """Returns, by row set, the nodes that `static_from` names."""
        if self.static_from is None:
            return None
        names = [row_set.config.name for row_set in row_sets_of(self.graph, self.plan.config())]
        return {name: np.load(self.static_from / artifacts.static_nodes_file(name)) for name in names}

    def written(self, ranks: int) -> list[Path]:
        """Returns all places that preparing so many ranks writes to, but for an output that it replaces in one step."""
        out = resolved(self.out)
        samples = [] if self.samples is None else [self.samples, staging_of(resolved(self.samples))]
        return [self.scratch, staging_of(out) if ranks == 1 else out, *samples]

    def is_sampled(self) -> bool:
        """Returns True if just the samples that would be made are there, damaged or not: those of a run that was
        killed."""
        try:
            samples = Samples(read_manifest(self.samples_path, artifacts.SAMPLES))
            source = samples.manifest.source or {}
            return samples.config == self.plan.config() and source.get("digest") == self.graph.manifest.digest
        except ArtifactError:
            return False


def scratch_of(out: Path) -> Path:
    """Returns where preparing `out` keeps what it needs only meanwhile."""
    return out.with_name(f".{out.name}.preparing")
