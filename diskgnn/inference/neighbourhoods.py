"""Neighbourhoods of the nodes or pairs that a model is asked about, prepared beside the output as for training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from diskgnn.files.disk_space import DiskBudget
from diskgnn.graph.graph import Graph
from diskgnn.inference.asked_times import Draws, is_temporal
from diskgnn.inference.asking import fanouts_of
from diskgnn.inference.minibatch_memory import predicting_bytes
from diskgnn.inference.output_folder import OutputFolder
from diskgnn.loading.loader import Loader
from diskgnn.nn.relational_models import RelationalModel
from diskgnn.preparing.prepare import prepare_request
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.preparing.preparing_need import require_memory
from diskgnn.progress.reporter import Reporter, stages_of
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import CacheSpec
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import Target
from diskgnn.system.allocators import return_freed_memory
from diskgnn.system.resources import Need, Resources
from diskgnn.work.runner import Work

SPLIT = "test"  # what seeds are prepared as: not shuffled


@dataclass(frozen=True)
class Neighbourhoods:
    """Says how neighbourhoods are drawn, and what that may take: see `predict`, whose arguments these are.

    Args:
        folder: where they lie until the output is there.
        opened: closes what reads them.
    """

    folder: OutputFolder
    opened: ExitStack
    fanouts: Fanouts | None
    batch_size: int
    device: torch.device
    seed: int
    memory: int | str
    disk: int | str | None
    threads: int | None
    reporter: Reporter

    def spec(self, net: nn.Module, sampling: Mapping[str, Any] | None) -> SamplingSpec:
        """Returns how to draw for `net`, whatever the seeds are: by default all neighbours; or if it was trained by
        times, as its `sampling` says, as many as evaluation drew.

        Raises:
            ConfigError: fanouts or a size of batches that make no sense.
        """
        fanouts = self.fanouts
        if fanouts is None and sampling is not None and is_temporal(sampling):
            fanouts = sampling["eval_fanouts"] or sampling["fanouts"]
        return SamplingSpec(
            fanouts_of(net, fanouts), self.batch_size, seed=self.seed, shuffle=False,
            keep_times=isinstance(net, RelationalModel) and net.takes_times,
        )  # fmt: skip

    def loader(
        self, graph: Graph, net: nn.Module, target: Target, draws: Draws, output_columns: int | None = None,
        split: str = SPLIT,
    ) -> Loader:  # fmt: skip
        """Draw those of the seeds of `target`, and read them in the order in which they are given.

        Args:
            graph: the seeds are of.
            net: that is to be asked about them.
            target: what seeds are, with some given for `split`.
            draws: how to draw around them; their times are put into `target`.
            output_columns: of what is said of each; see `predicting_bytes`.
            split: what they are prepared as; no others are.

        Raises:
            ConfigError: it takes more memory than there is.
            DiskFullError, InputError, ArtifactError: see `prepare`.
        """
        assert target.seeds is not None
        num_seeds = len(target.seeds[split])
        if (of_split := draws.times(num_seeds)) is not None:
            times = {each: of_split if each == split else np.zeros(len(seeds), np.int64)
                     for each, seeds in target.seeds.items()}  # fmt: skip
            target = replace(target, times=times)
        plan = SamplingPlan(graph, replace(draws.spec, target=target, splits=(split,)))
        plan.warn_of_times()
        resources = Resources.of(self.memory, self.threads, self.reporter)
        needed_bytes = predicting_bytes(plan, net, num_seeds, output_columns)
        require_memory(plan, resources, Need("to predict", needed_bytes))
        packed = Work(self.folder, "predict").artifact("packed", partial(self._prepare, plan))
        return_freed_memory()
        return self.opened.enter_context(Loader(packed.path, split, device=self.device))

    def _prepare(self, plan: SamplingPlan, out: Path) -> None:
        resources = Resources.of(self.memory, self.threads, stages_of(self.reporter))
        request = PrepareRequest.of(plan, CacheSpec(0, 0), resources, out)
        budget = DiskBudget(self.disk, request.written(ranks=1))
        with plan.graph.manifest.copies_claimed_of(budget):
            prepare_request(replace(request, resources=replace(resources, disk=budget)))
