"""The cache folder: what was prepared once is known again by its content and by the loader's arguments."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.packing.row_sets import row_sets_of
from diskgnn.paths import PathLike
from diskgnn.preparing.prepare import prepare_request
from diskgnn.preparing.request import PrepareRequest
from diskgnn.progress import SILENT, Advance, Reporter
from diskgnn.pyg.sources import Source, update
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_a_few
from diskgnn.specs.caches import CacheSpec
from diskgnn.storage.artifacts import VERSIONS
from diskgnn.storage.disk_space import free_bytes
from diskgnn.storage.object_stores import local
from diskgnn.storage.packed import Packed
from diskgnn.storage.samples_config import spec_to_json
from diskgnn.system.resources import Resources
from diskgnn.units import format_size

_PROBES = 3  # minibatches that are sampled to say how large it will be


class Bars:
    """A `Reporter` that draws bars on stderr."""

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """See `Reporter`."""
        with tqdm(desc=f"diskgnn: {description}", total=total, unit=unit, unit_scale=True, leave=False) as bar:
            yield lambda count: bar.update(count) and None


@dataclass(frozen=True)
class Cache:
    """Where graphs and packed directories of PyG loaders are, and what making them may spend."""

    folder: Path
    memory: int | str
    threads: int | None
    progress: bool

    @staticmethod
    def of(folder: PathLike | None, memory: int | str, threads: int | None, progress: bool) -> Cache:
        """`folder`, or that of the user: $XDG_CACHE_HOME/diskgnn/pyg, ~/.cache/diskgnn/pyg."""
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diskgnn" / "pyg"
        return Cache(home if folder is None else local(folder, "cache"), memory, threads, progress)

    @property
    def _reporter(self) -> Reporter:
        return Bars() if self.progress else SILENT

    def say(self, text: str) -> None:
        """Write a line to stderr, if the loader is to say what it does."""
        if self.progress:
            tqdm.write(f"diskgnn: {text}", file=sys.stderr)

    def graph(self, source: Source) -> Graph:
        """The graph directory of `source`, made if there is none of this content.

        Raises:
            ConfigError, InputError, DiskFullError: see `diskgnn.convert`.
        """
        path = self.folder / f"graph-{_key({'data': source.digest(), 'version': VERSIONS})}"
        try:
            return Graph.open(path)
        except ArtifactError:
            self.say(f"converting the data into {path}")
        convert(path, schema=source.graph_input(), memory=self.memory, overwrite=True, reporter=self._reporter)
        return Graph.open(path)

    def packed(self, plan: SamplingPlan, arguments: Mapping[str, Any], cpu_cache: int | str) -> Path:
        """The packed directory of `plan`, made if there is none.

        Args:
            plan: what is sampled.
            arguments: what else its seeds depend on, plain values and tensors.
            cpu_cache: as `diskgnn.prepare` has it.

        Raises:
            ConfigError, DiskFullError: see `diskgnn.prepare`.
        """
        spec = {**spec_to_json(plan.spec), "epochs": plan.spec.epochs}
        said = {"graph": plan.graph.manifest.digest, "spec": spec, "cpu_cache": cpu_cache, "version": VERSIONS}
        path = self.folder / f"packed-{_key({**said, **arguments})}"
        try:
            return Packed.open(path).path
        except ArtifactError:
            pass
        resources = Resources.beside(self.memory, self.threads, self._reporter)
        self.folder.mkdir(parents=True, exist_ok=True)
        num_batches = sum(size.num_batches for size in plan.sizes.values())
        self.say(
            f"preparing {num_batches} minibatches in {path}: at most {format_size(_most_bytes(plan, resources))}, and "
            f"scratch for their structure; {format_size(free_bytes(self.folder))} are free"
        )
        prepare_request(PrepareRequest.of_plan(plan, CacheSpec(cpu_cache), resources, path, keep_input_nodes=True))
        return path


def argument(value: Any) -> Any:
    """A plain value that stands for one of a loader's arguments in a key."""
    if isinstance(value, Tensor):
        found = hashlib.blake2b(digest_size=16)
        update(found, value)
        return found.hexdigest()
    return value


def _key(said: Mapping[str, Any]) -> str:
    text = json.dumps({**said, "torch": torch.__version__}, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _most_bytes(plan: SamplingPlan, resources: Resources) -> int:
    """What the packed directory takes if memory serves no row, from a few minibatches of the train split."""
    epoch = plan.minibatches("train", 0)
    few = [epoch[len(epoch) * i // _PROBES] for i in range(min(_PROBES, len(epoch)))]
    sizes = []
    row_sets = row_sets_of(plan.graph, plan.config())
    for sample in sample_a_few(plan, few, Resources(resources.memory_bytes, resources.threads)):
        structure = sum(column.nbytes for column in sample.columns())
        sizes.append(structure + sum(len(each.needed(sample)) * each.row_bytes for each in row_sets))
    return sum(sizes) // len(sizes) * plan.sizes["train"].num_batches
