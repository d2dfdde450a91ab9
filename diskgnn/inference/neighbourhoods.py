"""Neighbourhoods of the nodes or pairs that a model is asked about, prepared beside the output as for training."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

from diskgnn.graph.graph import Graph
from diskgnn.inference.asking import fanouts_of
from diskgnn.inference.minibatch_memory import predicting_bytes
from diskgnn.inference.scratch import Scratch
from diskgnn.loading.loader import Loader
from diskgnn.preparing.memory_needs import require_memory
from diskgnn.preparing.prepare import prepare
from diskgnn.progress import Reporter, stages_of
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.sampling import SamplingOptions, SamplingSpec
from diskgnn.specs.targets import Target
from diskgnn.system.allocators import return_freed_memory
from diskgnn.system.resources import Resources

SPLIT = "test"  # what seeds are prepared as: not shuffled


@dataclass(frozen=True)
class Neighbourhoods:
    """How neighbourhoods are drawn, and what that may take: see `predict`, whose arguments these are.

    Args:
        scratch: where they lie until the output is there.
        opened: closes what reads them.
    """

    scratch: Scratch
    opened: ExitStack
    fanouts: Fanouts | None
    batch_size: int
    device: torch.device
    seed: int
    memory: int | str
    disk: int | str | None
    threads: int | None
    reporter: Reporter

    def loader(
        self, graph: Graph, net: nn.Module, target: Target, num_outputs: int, output_columns: int | None = None
    ) -> Loader:
        """Draw those of the seeds of `target`, and read them.

        Args:
            graph: the seeds are of.
            net: that is to be asked about them.
            target: what seeds are, with some given for SPLIT.
            num_outputs, output_columns: of what is said of them; see `predicting_bytes`.

        Raises:
            ConfigError: it takes more memory than there is.
            DiskFullError, InputError, ArtifactError: see `prepare`.
        """
        sampling = SamplingOptions(
            fanouts=fanouts_of(net, self.fanouts), batch_size=self.batch_size, target=target, seed=self.seed
        )
        plan = SamplingPlan(graph, SamplingSpec.of(**sampling))
        resources = Resources.of(self.memory, self.threads, self.reporter)
        needed_bytes = predicting_bytes(plan, net, num_outputs, output_columns)
        require_memory(plan, resources, lambda: resources.within("to predict", needed_bytes))
        packed = self.scratch.folder / "packed"
        prepare(
            graph, packed, cpu_cache=0, static_cache=0, memory=self.memory, disk=self.disk, threads=self.threads,
            reporter=stages_of(self.reporter), **sampling,
        )  # fmt: skip
        self.scratch.disk.look()
        return_freed_memory()
        return self.opened.enter_context(Loader(packed, SPLIT, device=self.device))
