"""The cache folder: what was prepared once is known again by its content and by the loader's arguments."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.errors import ArtifactError, BusyError, ConfigError, OutputExistsError
from diskgnn.files.disk_space import free_bytes
from diskgnn.files.own_files import private_folder
from diskgnn.formats.artifacts import VERSIONS
from diskgnn.formats.minibatch_columns import ADDRESS_BYTES, ADMISSION_BYTES
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples_config import given_arrays, spec_to_json
from diskgnn.fresh.fresh_windows import FreshWindows, WindowOptions
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.packing.row_sets import row_sets_of
from diskgnn.paths import PathLike
from diskgnn.preparing.prepare import prepare_request
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.preparing.sequence_samples import header_layout_of
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import SILENT, Advance, Reporter
from diskgnn.pyg.epoch_batches import WindowedBatches
from diskgnn.pyg.loader_data import Source, update
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_a_few
from diskgnn.specs.caches import CacheSpec
from diskgnn.stores.locations import local
from diskgnn.system.resources import Resources
from diskgnn.units import counted, format_size, parse_size
from diskgnn.work.cache_folder import Use, default_cache_folder, make_room, remove, use

ALL_ROWS = "100%"
T = TypeVar("T")

_PROBES = 8  # minibatches that are sampled to say how large it will be at most
_SPREADS = 3  # of theirs, by which the mean of all minibatches is not above the mean of these
_SLOT_BYTES = 4  # of a row that memory has room for: where it comes from when training starts over
_RECORD_BYTES = 64  # of an extent in an index
_FILES, _FILES_OF_A_ROW_SET = 8, 4  # that begin with a header and end within a block
_LEAST_ROWS_BYTES = 256 << 20
_LONGEST_WINDOW = 256  # minibatches that a loop may leave behind unread; packing fewer reads and writes more for each
_WAIT_SECONDS = 0.5  # between looks at what another process makes


class Bars:
    """A `Reporter` that draws bars on stderr, which go along with those of a loop over `tqdm(loader)`."""

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """See `Reporter`."""
        with tqdm(desc=f"diskgnn: {description}", total=total, unit=unit, unit_scale=True, leave=False) as bar:
            yield lambda count: bar.update(count) and None


@dataclass(frozen=True)
class Cache:
    """Says where graphs and packed directories of PyG loaders are, and what making them may spend."""

    folder: Path
    limit_bytes: int | None  # of the folder; None: no limit
    memory: int | str
    threads: int | None
    progress: bool

    @staticmethod
    def of(
        folder: PathLike | None, limit: int | str | None, memory: int | str, threads: int | None, progress: bool
    ) -> Cache:
        """Returns `folder`, or that of the user: see `default_cache_folder`.

        Raises:
            ConfigError: `limit` is no size.
        """
        place = default_cache_folder() if folder is None else local(folder, "cache")
        return Cache(place, None if limit is None else parse_size(limit), memory, threads, progress)

    @property
    def _reporter(self) -> Reporter:
        return SILENT if reporter_for(None, self.progress) is SILENT else Bars()  # as every other call

    def say(self, text: str) -> None:
        """Write a line to stderr, if the loader is to say what it does."""
        if self.progress:
            tqdm.write(f"diskgnn: {text}", file=sys.stderr)

    def graph(self, source: Source) -> tuple[Graph, Use]:
        """Returns the graph directory of `source`, made if there is none of this content. It stays as long as its
        `Use`.

        Raises:
            ConfigError, InputError, DiskFullError: see `diskgnn.convert`; or `cache_limit` leaves too little room.
        """

        def make(path: Path, memory: int | str, reporter: Reporter) -> None:
            self._make_room(source.size_bytes(), "leave something out of the data")
            self.say(f"converting the data into {path}: about {format_size(source.size_bytes())}")
            convert(path, schema=source.graph_input(), memory=memory, reporter=reporter)

        return self.graph_of({"data": source.digest()}, make)

    def packed(self, plan: SamplingPlan, arguments: Mapping[str, Any], cpu_cache: int | str) -> tuple[Packed, Use]:
        """Returns the packed directory of `plan`, made if there is none. It stays as long as its `Use`.

        Args:
            plan: what is sampled.
            arguments: what else its seeds depend on, plain values and tensors.
            cpu_cache: as `diskgnn.prepare` has it.

        Raises:
            ConfigError, DiskFullError: see `diskgnn.prepare`; or `cache_limit` leaves too little room.
        """
        spec = {**spec_to_json(plan.spec), "epochs": plan.spec.epochs}
        said = {"graph": plan.graph.manifest.digest, "spec": spec, "cpu_cache": cpu_cache, "version": VERSIONS}
        path = self.folder / f"packed-{_key({**said, **arguments})}"

        def make() -> None:
            resources = Resources.beside(self.memory, self.threads, self._reporter)
            request = PrepareRequest.of(plan, CacheSpec(cpu_cache), resources, path, keep_input_nodes=True)
            size_bytes = _most_bytes(request)
            advice = "it is smaller with fewer prepared_epochs= or a larger cpu_cache="
            self._make_room(size_bytes, advice)
            num_batches = sum(size.num_batches for size in plan.sizes.values())
            self.say(
                f"preparing {num_batches} minibatches ({counted(plan.spec.epochs, 'epoch')}) in {path}: at most "
                f"{format_size(size_bytes)}, and scratch for their structure; {advice}. "
                f"{format_size(free_bytes(self.folder))} are free; `diskgnn cache` lists and clears the folder"
            )
            prepare_request(request)

        return self._found_or_made(path, Packed.open, make)

    def windows(self, plan: SamplingPlan, cpu_cache: int | str, device: str | torch.device) -> WindowedBatches:
        """Returns the minibatches of `plan` in any epoch, prepared in windows as they are asked for.

        Args:
            plan: what is sampled.
            cpu_cache: as `diskgnn.prepare` has it, of each window.
            device: where minibatches are delivered.

        Raises:
            ConfigError: see `FreshWindows`.
        """
        private_folder(self.folder)
        options = WindowOptions(
            memory=self.memory, threads=self.threads, keep_input_nodes=True, device=device, longest=_LONGEST_WINDOW
        )
        self.say(f"preparing minibatches in {self.folder} as they are asked for, some at a time")
        return WindowedBatches(FreshWindows(plan, self.folder, CacheSpec(cpu_cache), options))

    def graph_of(
        self,
        said: Mapping[str, Any],
        make: Callable[[Path, int | str, Reporter], None],
        opened: Callable[[Path], Graph] | None = None,
    ) -> tuple[Graph, Use]:
        """Returns the graph directory that is named by what is `said` of it, made if there is none. It stays as long as
        its `Use`.

        Args:
            said: plain values.
            make: makes it at a path, with this memory, and tells the reporter.
            opened: opens it, as `Graph.open`. Raises ArtifactError if it has to be made again, as one of an earlier
                diskgnn.
        """
        path = self.folder / f"graph-{_key({**said, 'version': VERSIONS})}"
        return self._found_or_made(path, opened or Graph.open, lambda: make(path, self.memory, self._reporter))

    def _found_or_made(self, path: Path, opened: Callable[[Path], T], make: Callable[[], None]) -> tuple[T, Use]:
        private_folder(self.folder)
        is_told, damaged = False, 0
        while True:
            if (held := use(path)) is not None:
                try:
                    return opened(path), held
                except ArtifactError:
                    damaged += 1
                    held.release()
                    if damaged > 1 or not remove(path):  # what was made anew cannot be opened either
                        raise
            try:
                make()
            except OutputExistsError:
                pass  # another process was faster
            except BusyError:
                if not is_told:
                    self.say(f"waiting for another process, which makes {path}")
                is_told = True
                time.sleep(_WAIT_SECONDS)

    def _make_room(self, size_bytes: int, advice: str) -> None:
        if self.limit_bytes is None:
            return
        left = make_room(self.folder, self.limit_bytes, size_bytes)
        if left < size_bytes:
            raise ConfigError(
                f"cache_limit: expected room for {format_size(size_bytes)}, found {format_size(max(0, left))} of "
                f"{format_size(self.limit_bytes)} beside what is in use in {self.folder}: raise it; or {advice}"
            )


def rows_in_memory(graph: Graph, cpu_cache: int | str | None) -> int | str:
    """Returns `cpu_cache`, or by default 10 % of all rows, but at least 256 MiB of them: what fits there is on disk
    once."""
    if cpu_cache is not None:
        return cpu_cache
    files = [each.feature_file for each in (*graph.nodes.values(), *graph.edges.values())]
    rows_bytes = sum(each.num_bytes for each in files if each is not None)
    if rows_bytes <= _LEAST_ROWS_BYTES:
        return ALL_ROWS
    return "10%" if rows_bytes // 10 > _LEAST_ROWS_BYTES else _LEAST_ROWS_BYTES


def argument(value: Any) -> Any:
    """Returns a plain value that stands for one of a loader's arguments in a key."""
    if isinstance(value, Tensor):
        found = hashlib.blake2b(digest_size=16)
        update(found, value)
        return found.hexdigest()
    return value


def _key(said: Mapping[str, Any]) -> str:
    text = json.dumps({**said, "torch": torch.__version__}, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _most_bytes(request: PrepareRequest) -> int:
    """Returns what the packed directory takes at most, from some minibatches of an epoch: as if memory for rows saved
    no read, unless it holds all of them, which are then on disk once.
    """
    plan, row_sets = request.plan, row_sets_of(request.graph, request.plan.config())
    epoch, num_batches = plan.minibatches("train", 0), plan.sizes["train"].num_batches
    some = [epoch[len(epoch) * i // _PROBES] for i in range(min(_PROBES, len(epoch)))]
    once_bytes = sum(each.features.num_bytes for each in row_sets)
    kept_bytes = min(once_bytes, request.tiers.static + request.tiers.train)
    layout, extents = header_layout_of(plan, row_sets, keep_input_nodes=True), []
    for sample in sample_a_few(plan, some, replace(request.resources, reporter=SILENT)):
        extent_bytes = layout.num_bytes(sample)
        for each in row_sets:
            num_rows = len(each.needed(sample))
            extent_bytes += ADDRESS_BYTES * num_rows
            if kept_bytes < once_bytes:
                extent_bytes += (ADMISSION_BYTES + each.row_bytes) * num_rows
        extents.append(-(-extent_bytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT + _RECORD_BYTES * (1 + len(row_sets)))
    most_bytes: float = statistics.mean(extents)
    if len(some) < num_batches:
        most_bytes += _SPREADS * statistics.pstdev(extents)
    slots_bytes = _SLOT_BYTES * sum(each.num_rows for each in row_sets)
    seeds_bytes = sum(given.nbytes for arrays in given_arrays(plan.spec.target).values() for given in arrays.values())
    files_bytes = DIRECT_ALIGNMENT * (_FILES + _FILES_OF_A_ROW_SET * len(row_sets))
    return math.ceil(num_batches * most_bytes) + int(kept_bytes + slots_bytes + seeds_bytes + files_bytes)
