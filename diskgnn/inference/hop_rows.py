"""Rows of nodes from a model of hop features: their hops are propagated once, then the model maps record by record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from diskgnn.errors import ConfigError
from diskgnn.files.disk_space import file_bytes
from diskgnn.formats.hops_config import ALL_NODES, CHOSEN_NODES, VALUE_BYTES
from diskgnn.graph.graph import Graph
from diskgnn.inference.asking import Asked
from diskgnn.inference.output_folder import OutputFolder
from diskgnn.inference.prediction_files import OutputFormat, output_bytes
from diskgnn.inference.row_writing import NodeRows, write_rows
from diskgnn.loading.hops_loader import HopsLoader
from diskgnn.nn.block_models import BlockModel
from diskgnn.nn.hop_models import HopModel
from diskgnn.nn.typed_models import TypedLayers
from diskgnn.progress.reporter import Advance, Reporter, StageReport
from diskgnn.propagation.hop_paths import OWN
from diskgnn.propagation.propagate import propagate, segments_of
from diskgnn.specs.schema import SourceSchema
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.work.required_space import require_space
from diskgnn.work.runner import Work
from diskgnn.work.step_artifact import StepArtifact

_ROWS = 1024  # that the model maps at a time, whatever the memory: the last bits of products depend on it


def infer_by_hops(rows: HopRows, asked: Asked, out: Path, *, overwrite: bool) -> StageReport:
    """Does what `infer` does, with a model of hop features, which is in evaluation mode.

    Args:
        rows: of the nodes that are asked about.
        asked: what the model is asked for.
        out: the file to write.
        overwrite: as `infer` takes it.

    Raises:
        ConfigError, InputError, ArtifactError, OutputExistsError, DiskFullError: see `infer`.
    """
    started, graph, chosen = time.perf_counter(), rows.graph, rows.chosen
    node_set = graph.nodes[rows.node_type]
    content = OutputFormat(asked.what, asked.kind, rows.columns(), asked.classes)
    digests = graph.manifest.digest, _digest(chosen)
    making = ["diskgnn.inference.hops", 2, *digests, rows.node_type, rows.net.segments, rows.ignore_times]
    folder = OutputFolder(out, making, overwrite=overwrite, resumable=True, disk=rows.disk)
    num_rows = node_set.num_nodes if chosen is None else len(chosen)
    hops_bytes = rows.hops_bytes

    def stage(work: Work) -> tuple[StageReport | None, int]:
        hops = rows.propagated(work)
        return hops.made, write_rows(folder, node_set, content, chosen, rows.windows(hops))

    with graph.manifest.copies_claimed_of(folder.disk):
        written_bytes = file_bytes(output_bytes(content, num_rows, out.suffix, node_set))
        require_space(folder, hops_bytes + written_bytes, "inference")
        with folder:
            report, size = Work(folder, "infer").run(stage)
    read_bytes, made_bytes = (0, 0) if report is None else (report.read_bytes, report.written_bytes)
    return StageReport(
        "infer", time.perf_counter() - started, read_bytes + hops_bytes, made_bytes + size,
        {"hops_bytes": hops_bytes, **({} if report is None else report.details), "output_bytes": size},
    )  # fmt: skip


def _digest(chosen: npt.NDArray[np.int64] | None) -> str:
    return ALL_NODES if chosen is None else SplitArrays({"test": chosen}).digest


@dataclass(frozen=True)
class HopRows:
    """Computes rows of nodes from the hops that a model takes.

    Raises:
        ConfigError: the graph's features have other widths than those that the model was trained on, or it has other
            types.
    """

    graph: Graph
    node_type: str  # of the nodes
    net: HopModel
    chosen: npt.NDArray[np.int64] | None  # [n] of some nodes; None: of all
    embeddings: bool  # those that enter the last layer
    ignore_times: bool
    memory: int | str
    disk: int | str | None  # that the hops may take, and then they and the output
    threads: int | None
    reporter: Reporter

    def __post_init__(self) -> None:
        again = "give a graph with the features that it was trained on, or train a model on this one"
        path = self.graph.manifest.path
        try:
            made = [(each.name, each.width) for each in segments_of(self.graph, **self._arguments)]
        except ConfigError as error:
            raise ConfigError(f"the model was trained on segments that {path} lacks: {error}; {again}") from error
        for (name, width), (_, trained_width) in zip(made, self.net.segments, strict=False):
            if width != trained_width:
                raise ConfigError(
                    f"{path} has features of {width} columns, and the model was trained on hops of {trained_width} "
                    f"({name}): {again}"
                )
        if made != [*self.net.segments]:
            found, wanted = (", ".join(name for name, _ in each) for each in (made, self.net.segments))
            raise ConfigError(f"{path} has the segments {found}, and the model was trained on {wanted}: {again}")

    @property
    def _arguments(self) -> dict[str, Any]:
        """Returns the arguments of `propagate` that make the model's segments, read from their names."""
        names = [name for name, _ in self.net.segments if name != OWN]
        if self.net.has_paths:
            return {"target": self.node_type, "paths": names}
        parts = [name.split("/") for name in names]
        operators = [*dict.fromkeys(operator for operator, _ in parts)]
        return {"hops": max(int(hop) for _, hop in parts), "operators": operators}

    @torch.no_grad()
    def columns(self) -> int:
        """Returns how many numbers a row has.

        Raises:
            ConfigError: the model has no rows before its last layer.
        """
        return self._rows_of({name: torch.zeros(1, width) for name, width in self.net.segments}).shape[1]

    def _rows_of(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        return self.net.embed(x) if self.embeddings else self.net(x)

    @property
    def hops_bytes(self) -> int:
        """Returns the bytes of the records."""
        count = self.graph.nodes[self.node_type].num_nodes if self.chosen is None else len(np.unique(self.chosen))
        return count * VALUE_BYTES * sum(width for _, width in self.net.segments)

    def propagated(self, work: Work) -> StepArtifact[StageReport]:
        """Makes the hops directory, or goes on with that of a killed run.

        Raises:
            ConfigError, InputError, DiskFullError: see `propagate`.
        """
        return work.artifact("hops", lambda path: propagate(
            self.graph, path, **self._arguments, nodes=ALL_NODES if self.chosen is None else np.unique(self.chosen),
            ignore_times=self.ignore_times, memory=self.memory, disk=self.disk, threads=self.threads,
            reporter=self.reporter,
        ))  # fmt: skip

    def windows(self, hops: StepArtifact[StageReport]) -> Iterator[NodeRows]:
        """Yields ascending nodes and their rows, some at a time.

        Raises:
            DamagedStepError: what was propagated is damaged.
        """
        with (
            hops.reading() as path,
            open_hops(path, "cpu") as loader,
            self.reporter.stage("apply the model", loader.num_batches, "minibatches") as advance,
        ):
            yield from self._rows(loader, advance)

    @torch.no_grad()
    def _rows(self, loader: HopsLoader, advance: Advance) -> Iterator[NodeRows]:
        for batch in loader:
            yield batch.seeds.numpy(), self._rows_of(batch.x).numpy()
            advance(1)


def open_hops(path: Path, device: str | torch.device) -> HopsLoader:
    """Opens what `HopRows.propagated` made."""
    return HopsLoader(path, CHOSEN_NODES, device=device, batch_size=_ROWS, rank=0, world_size=1)


def require_segments(net: nn.Module, schema: SourceSchema, source: object) -> None:
    """Refuses a model of hop features for minibatches of others, and any other model for hop features.

    Raises:
        ConfigError: they do not fit.
    """
    if not isinstance(net, HopModel | BlockModel | TypedLayers):
        return  # a module of the user's own takes what it takes
    wanted = net.segments if isinstance(net, HopModel) else ()
    if wanted != schema.segments:
        takes, has = (", ".join(name for name, _ in each) or "sampled neighbours" for each in (wanted, schema.segments))
        raise ConfigError(f"the model takes {takes}; {source} has {has}: give the graph that it was made from")
