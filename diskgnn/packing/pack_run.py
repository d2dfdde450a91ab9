"""One run for a request: what it may spend is known before anything is written, then its rows are placed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from diskgnn._native import PageWriter
from diskgnn.files.traffic import Traffic
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.graph.source_schema import label_target
from diskgnn.packing.pack_folder import PackFolder
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.packing_need import kept_numbers_within, minibatch_bytes_of, packing_need
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.split_placer import SplitPlacer
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Work
from diskgnn.work.seed_files import read_given, write_given
from diskgnn.work.writer import ArtifactWriter


@dataclass(frozen=True)
class PackRun:
    """One run for a request. It may go on with what an earlier run has done."""

    request: PackRequest
    spec: SamplingSpec  # of the samples, with the seeds that were given
    config: PackedConfig  # as far as it is known before placing
    resources: Resources  # what `packing_need` leaves
    traffic: Traffic

    @staticmethod
    def of(request: PackRequest, resources: Resources) -> PackRun:
        """Describes it.

        Raises:
            SmallBudgetError: the memory is too small; names the smallest budget that works.
            ArtifactError: seeds that were given are damaged.
        """
        graph, samples = request.graph, request.samples
        spec = read_given(samples.manifest, samples.config.spec)
        need = packing_need(
            graph, samples.config, spec.target, minibatch_bytes_of(samples), labels_are_held=request.labels is not None
        )
        config = request.config(label_target(graph, spec.target))
        return PackRun(request, spec, config, resources.within(need), Traffic())

    @contextmanager
    def placing(self, work: Work, writer: ArtifactWriter) -> Iterator[SplitPlacer]:
        """Yields what places the rows. What was placed can be packed until the block ends.

        Args:
            work: the steps of placing and packing.
            writer: of the packed directory.

        Raises:
            ArtifactError: the graph is damaged.
        """
        request = self.request
        numbers, resources = kept_numbers_within(self.resources, request.graph, self.config.samples, self.traffic)
        write_given(writer, self.spec)
        with closing(PageWriter()) as pages, work.scratch("tails") as tails:
            yield SplitPlacer(
                PackFolder(work, writer, pages, tails, resources, self.traffic), request, self.config,
                labels=request.labels or partial(SplitLabels.of, request.graph, self.spec.target), kept_numbers=numbers,
            )  # fmt: skip
