"""The samples directory: the neighbourhoods of all minibatches, some consecutive ones in each Arrow file (a shard)."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa

from diskgnn.errors import ArtifactError, ReadError
from diskgnn.files.checked_files import checksum_file
from diskgnn.files.file_reading import ReadableFile
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import Manifest, open_pinned
from diskgnn.formats.minibatch_checks import checked_minibatch
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.ordered import Threads, in_order
from diskgnn.stores.locations import AnyPath


@dataclass(frozen=True)
class Samples:
    """An opened samples directory."""

    manifest: Manifest

    @staticmethod
    def open(path: AnyPath) -> Samples:
        """Open a samples directory. Its files stay open until it is dropped, but for those beyond `MOST_PINNED`.

        Raises:
            ArtifactError: see `open_pinned`, or its config is not one.
        """
        samples = Samples(open_pinned(path, artifacts.SAMPLES))
        assert samples.config
        return samples

    @cached_property
    def config(self) -> SamplesConfig:
        """Returns what it was sampled with."""
        return self.manifest.parsed(SamplesConfig.parse)

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that were sampled."""
        return tuple(self.config.splits)

    def read(self, split: str, *, first: int = 0) -> Generator[SampledMinibatch, None, None]:
        """Yields the minibatches of the sequence of `split` from number `first` on, each shard compared with its
        checksum before it is used.

        Raises:
            ArtifactError: a shard is damaged.
            ReadError: the disk failed.
        """
        size, layout = self.config.splits[split], None
        first_epoch, first = divmod(first, max(1, size.batches_per_epoch))
        with Threads(1) as checking:
            for epoch in range(first_epoch, size.epochs):
                names, numbers = self._shards_from(split, epoch, first)
                checks = (partial(self._checked_shard, name) for name in names)
                with closing(in_order(checking, checks, ahead=1)) as paths:  # the next shard is compared meanwhile
                    for name, path in zip(names, paths, strict=True):
                        with self._damage_named(name), ReadableFile(path) as file, pa.ipc.open_file(file) as reader:
                            layout = layout or self._layout(reader.schema)
                            if reader.schema != layout.schema:
                                raise pa.ArrowInvalid("it has other columns than the first shard")
                            unwanted = max(0, first - numbers)
                            numbers += reader.num_record_batches
                            for number in range(unwanted, reader.num_record_batches):
                                yield checked_minibatch(layout.arrays(reader.get_batch(number)), layout)
                if numbers != size.batches_per_epoch:
                    raise ArtifactError(
                        f"{self.manifest.path} has {numbers} minibatches in epoch {epoch} of {split!r}, expected "
                        f"{size.batches_per_epoch}; sample again"
                    )
                first = 0

    def _shards_from(self, split: str, epoch: int, first: int) -> tuple[list[str], int]:
        """Returns the shards of an epoch with the minibatch `first` and those after it; how many are before these
        shards."""
        named = (artifacts.shard_file(split, epoch, shard) for shard in itertools.count())
        names = list(itertools.takewhile(self.manifest.files.__contains__, named))
        numbers = 0
        while names and numbers < first:
            path = self.manifest.local(names[0])
            with self._damage_named(names[0]), ReadableFile(path) as file, pa.ipc.open_file(file) as reader:
                count = reader.num_record_batches
            if numbers + count > first:
                break
            numbers += count
            names = names[1:]
        return names, numbers

    def _checked_shard(self, name: str) -> Path:
        """Returns where it lies, once it is compared with its checksum."""
        path = self.manifest.local(name)  # shards are read several times
        with self._damage_named(name):
            self.manifest.check(name, checksum_file(path, keep_cached=True))
        return path

    @contextmanager
    def _damage_named(self, name: str) -> Iterator[None]:
        try:
            yield
        except ReadError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ArtifactError(
                f"{self.manifest.file(name)} is damaged ({error}); check with `diskgnn verify`, sample again"
            ) from error

    def _layout(self, found: pa.Schema) -> MinibatchLayout:
        """Returns the layout of a shard whose columns these are."""
        layouts = [self.config.minibatch_layout([ids] * len(self.config.num_nodes)) for ids in ("int32", "int64")]
        for layout in layouts:
            if layout.schema == found:
                return layout
        raise pa.ArrowInvalid(f"its columns are {found.names}, expected {layouts[0].schema.names}")
