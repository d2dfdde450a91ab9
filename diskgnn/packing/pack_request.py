"""Describes the packed directory that is to be made. It is checked before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.row_sets import RowSet, row_sets_of
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.tiers import TierBudgets, Tiers

_NOTES_VERSION = 3  # of what a killed run noted: other versions are not believed


@dataclass(frozen=True, eq=False)
class PackRequest:
    """One packed directory before it is made.

    Raises:
        ArtifactError: the samples are those of another graph.
    """

    graph: Graph
    samples: Samples
    tiers: Tiers
    keep_input_nodes: bool = False
    # By row set, [S] int64: nodes whose rows are to be static, hottest first, where other samples had a say in that.
    static_nodes: Mapping[str, npt.NDArray[np.int64]] | None = None
    # The sequences are not repeated: then their cpu tiers are empty at the start, and a killed run begins again.
    once: bool = False
    labels: Callable[[str], SplitLabels | None] | None = None  # of a split, where they are in memory already
    by_reference: bool = False  # rows of extents stay where they are, see `formats.extents`; of what is used `once`

    def __post_init__(self) -> None:
        source, samples = {"format": artifacts.GRAPH, "digest": self.graph.manifest.digest}, self.samples
        if samples.manifest.source != source:
            raise ArtifactError(
                f"{samples.manifest.path} was sampled from another graph than {self.graph.manifest.path}; "
                f"run `diskgnn sample {self.graph.manifest.path} ...` again"
            )
        config = samples.config
        found = dict(config.num_nodes), dict(config.num_edges)
        expected = (
            {name: nodes.num_nodes for name, nodes in self.graph.nodes.items()},
            {name: edges.num_edges for name, edges in self.graph.edges.items()},
        )
        if found != expected:
            raise ArtifactError(
                f"{samples.manifest.path} is damaged: it says that its graph has {found}, which has {expected}; sample "
                f"again"
            )
        assert self.once or not self.by_reference  # a graph may change under what is kept

    @cached_property
    def row_sets(self) -> tuple[RowSet, ...]:
        """Returns [K] the feature files whose rows are packed."""
        return tuple(row_sets_of(self.graph, self.samples.config))

    @property
    def chosen_static(self) -> Sequence[npt.NDArray[np.int64]] | None:
        """Returns [K] `static_nodes` in the order of the row sets, or None."""
        if self.static_nodes is None:
            return None
        return [self.static_nodes[row_set.config.name] for row_set in self.row_sets]

    def config(self, target: TargetConfig | None) -> PackedConfig:
        """Returns the config of the packed directory, as far as it is known before placing."""
        return PackedConfig.before_placing(
            self.samples.config, target, [row_set.config for row_set in self.row_sets],
            keep_input_nodes=self.keep_input_nodes, graph=self.graph.manifest.digest, by_reference=self.by_reference,
            constants=self.graph.without(self.samples.config.spec.without).constants,
            time_unit=self.graph.config.time_unit,
        )  # fmt: skip

    def made_with(self, config: PackedConfig) -> dict[str, Any]:
        """Returns what must be equal in a killed run, so that this one may go on with what that has done."""
        found = {"records": _NOTES_VERSION, "config": config.to_json(), "tiers": _tiers_json(self.tiers)}
        if self.static_nodes is not None:
            found["static"] = {name: crc32c(nodes.view(np.uint8)) for name, nodes in self.static_nodes.items()}
        return found


def _tiers_json(tiers: Tiers) -> Any:
    """Returns what was asked for. What 'auto' came to depends on the machine and the moment, so it is left out."""
    if not isinstance(tiers, TierBudgets):
        return [asdict(rows) for rows in tiers]
    return asdict(tiers) | ({"static": "auto"} if tiers.static_is_auto else {})
