"""What the stages of `tools/bench` have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec


@dataclass(frozen=True)
class Settings:
    """The options of `tools/bench` that the stages need."""

    folder: str
    nodes: int
    degree: float
    width: int
    dtype: str
    quantise: str | None
    classes: int
    train_fraction: float
    fanouts: list[int]
    batch_size: int
    draws: str
    draw_period: int
    group_seeds: int
    cpu_cache: str
    memory: int
    repeat: int
    hidden: int
    train_minibatches: int
    peer_seconds: float
    num_hops: int
    operators: str

    @property
    def graph(self) -> Path:
        """The graph that is measured."""
        return Path(self.folder) / "graph"

    @property
    def plain_graph(self) -> Path:
        """The generated graph before it is quantised."""
        return Path(self.folder) / "plain-graph"

    @property
    def samples(self) -> Path:
        """What was sampled from it."""
        return Path(self.folder) / "samples"

    @property
    def packed(self) -> Path:
        """What training reads."""
        return Path(self.folder) / "packed"

    @property
    def hops(self) -> Path:
        """What models of whole neighbourhoods read."""
        return Path(self.folder) / "hops"

    @property
    def drawing(self) -> dict[str, Any]:
        """How neighbours are drawn and seeds are grouped, as `prepare` takes it."""
        return {name: getattr(self, name) for name in ("draws", "draw_period", "group_seeds")}

    def plan(self, graph: Graph) -> SamplingPlan:
        """The minibatches of training, as `prepare` samples them."""
        return SamplingPlan(graph, SamplingSpec(self.fanouts, self.batch_size, splits=["train"], **self.drawing))


Stage = Callable[[Settings], dict[str, Any]]
