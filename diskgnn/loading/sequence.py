"""One split's sequence in a packed directory, opened and checked before any memory is taken for rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import DamagedExtentError, RowFile, crc32c
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files.file_reading import read_array
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.manifest import made_again
from diskgnn.formats.packed import Packed
from diskgnn.formats.record_format import RecordFormat
from diskgnn.loading.assembly import RowConversion
from diskgnn.loading.header_decoding import HeaderReader
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.loading.transfer import IN_FLIGHT
from diskgnn.paths import PathLike
from diskgnn.system.device import located_device


@dataclass(frozen=True, eq=False)
class MinibatchSequence:
    """Names the minibatches of one split in training order, over all prepared epochs, and how x is wanted.

    Epoch e is prepared epoch e modulo the number of prepared ones. Position i is that of a minibatch in the sequence.
    """

    packed: Packed
    split: str
    index: ExtentIndex
    device: torch.device  # where minibatches are delivered; a GPU has its number
    conversions: tuple[RowConversion, ...]  # [K] of each row set
    shuffle_seed: int | None
    row_files: tuple[RowFile | None, ...]  # [K] that rows lie in which are not in extents

    @staticmethod
    def open(
        path: PathLike | Packed,
        split: str,
        device: str | torch.device,
        options: LoaderOptions,
        row_files: Sequence[RowFile] = (),
    ) -> MinibatchSequence:
        """Open the sequence of `split` in a packed directory.

        Args:
            path: the directory, or an opened one.
            split: train, valid or test.
            device: where minibatches are wanted.
            options: how they are read.
            row_files: [K] that rows lie in, of a directory by reference.

        Raises:
            ArtifactError: not a packed directory, damaged, or without this split.
            ConfigError: a device that cannot be used, or options that do not fit the directory.
        """
        packed = Packed.open(path, stream=options.stream)
        if len(row_files) != (len(packed.config.row_sets) if packed.config.by_reference else 0):
            raise ArtifactError(f"{packed.path} refers to rows of a graph, for the process that made it; prepare again")
        size = packed.sequence(split)
        found = located_device(device)
        if options.shuffle_seed is not None and size.cpu_rows:
            raise ConfigError(
                f"shuffle_seed: {packed.location} has a cpu tier, which is planned for one order; prepare it with "
                "cpu_cache=0"
            )
        conversions = _conversions(packed, options, found)
        return MinibatchSequence(
            packed, split, packed.index(split), found, conversions, options.shuffle_seed,
            tuple(row_files) or (None,) * len(conversions),
        )  # fmt: skip

    @property
    def num_batches(self) -> int:
        """Returns the number of minibatches in one epoch."""
        return self.packed.sequence(self.split).batches_per_epoch

    @property
    def num_epochs(self) -> int:
        """Returns the number of prepared epochs."""
        return self.packed.sequence(self.split).epochs

    def identity(self) -> dict[str, Any]:
        """Returns what tells these minibatches from others, for `Cursor`."""
        found = {"packed": self.packed.digest, "split": self.split}
        return found if self.shuffle_seed is None else {**found, "shuffle_seed": self.shuffle_seed}

    def position(self, epoch: int, number: int) -> int:
        """Returns the position of minibatch `number` of `epoch`."""
        return epoch % self.num_epochs * self.num_batches + number

    def order(self, epoch: int) -> npt.NDArray[np.int64] | None:
        """Returns [T] the extent at each position while `epoch` is read; None when that is always the order of the
        file.
        """
        if self.shuffle_seed is None:
            return None
        order = np.arange(len(self.index), dtype=np.int64)
        base = self.position(epoch, 0)
        key = batch_key(self.shuffle_seed, f"{self.split}/order", epoch)
        order[base : base + self.num_batches] = base + permutation(self.num_batches, key)
        return order

    def header_reader(self) -> HeaderReader:
        """Reads the headers of this sequence."""
        return HeaderReader(self.packed, self.split, self.index, self.device)

    def damaged(self, error: Exception) -> ArtifactError:
        """Returns the error to raise for an extent that is not what was packed."""
        return ArtifactError(f"{error}; {made_again(self.packed.manifest)}")

    @property
    def device_bytes_ahead(self) -> int:
        """Returns the device memory for minibatches, beyond the one that the caller computes on."""
        sizes = zip(self.index.max_inputs, self.conversions, strict=True)
        staged_bytes = sum(max_inputs * conversion.rows.row_bytes for max_inputs, conversion in sizes)
        return (IN_FLIGHT - 1) * self.device_bytes_of_one + staged_bytes

    @property
    def device_bytes_of_one(self) -> int:
        """Returns the device memory for a minibatch that is held."""
        sizes = zip(self.index.max_inputs, self.conversions, strict=True)
        return self.index.max_header_bytes + sum(most * conversion.x_row_bytes for most, conversion in sizes)

    def largest_minibatch(self) -> Any:
        """Returns the minibatch that takes most memory, with zeros for features: to try a model on.

        Reads its header, and takes memory for nothing else.

        Raises:
            ArtifactError: the header is damaged.
        """
        x_row_bytes = np.array([conversion.x_row_bytes for conversion in self.conversions], np.int64)
        memory_bytes = self.index.extents["header_bytes"] + self.index.rows["num_inputs"] @ x_row_bytes
        number = int(np.argmax(memory_bytes))
        record, path = self.index.extents[number], self.packed.extents(self.split)
        header = read_array(path, np.uint8, int(record["header_bytes"]), int(record["offset"]))
        if crc32c(header) != record["header_crc32c"]:
            raise self.damaged(DamagedExtentError(f"extent {number} of {path} is damaged: its header"))

        def zeros(row_set: int, addresses: Tensor, _: Tensor) -> Tensor:
            conversion = self.conversions[row_set]
            shape = (len(addresses), conversion.width)
            return torch.zeros(shape, dtype=conversion.dtype, device=self.device)

        try:
            return self.header_reader().read(number, header, zeros, 0, 0)
        except DamagedExtentError as error:
            raise self.damaged(error) from error


def _conversions(packed: Packed, options: LoaderOptions, device: torch.device) -> tuple[RowConversion, ...]:
    """Returns [K] how the rows of each row set become rows of x.

    Raises:
        ConfigError: options that do not fit the directory.
    """
    row_sets, found = packed.config.row_sets, []
    if options.scale is not None and len(row_sets) > 1:
        raise ConfigError(
            f"scale: {packed.location} has rows of several types; `diskgnn convert --quantise` says what each means"
        )
    for row_set, quantisation in zip(row_sets, packed.quantisations, strict=True):
        scale, zero_point = options.scale, options.zero_point
        if quantisation is not None and not isinstance(row_set.rows, RecordFormat):  # whose view reads the codes
            if scale is not None:
                raise ConfigError(
                    f"scale: {packed.location} says itself what its {row_set.rows.dtype} rows mean; leave out scale "
                    "and zero_point"
                )
            scale, zero_point = (torch.from_numpy(each) for each in (quantisation.scale, quantisation.zero_point))
        found.append(
            RowConversion(
                row_set.rows, dtype=options.dtype, scale=scale, zero_point=zero_point, device=device,
                threads=options.gather_threads,
            )
        )  # fmt: skip
    return tuple(found)
