"""The hops directory: hop features of seeds, a record for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import given_file, record_checksums_file, records_file
from diskgnn.formats.hops_config import ALL_NODES, HopsConfig
from diskgnn.formats.manifest import Manifest, open_pinned
from diskgnn.stores.locations import AnyPath


@dataclass(frozen=True)
class Hops:
    """An opened hops directory."""

    manifest: Manifest

    @staticmethod
    def open(path: AnyPath) -> Hops:
        """Opens a hops directory. Its files stay open until it is dropped.

        Raises:
            ArtifactError: see `open_pinned`; its config is not one, or does not fit its files.
        """
        hops = Hops(open_pinned(path, artifacts.HOPS))
        expected = dict[str, tuple[str, tuple[int, ...]]]()
        for split, count in hops.config.num_rows.items():
            expected[records_file(split)] = "<f4", (count, hops.config.num_values)
            if hops.config.nodes != ALL_NODES:
                expected[given_file("seeds", split)] = "<i8", (count,)
            if (records := hops.manifest.files.get(records_file(split))) is not None:
                num_chunks = -(-records.bytes // CHECKSUM_CHUNK_BYTES)
                expected[record_checksums_file(split)] = "<u4", (num_chunks,)
        if "train" in hops.config.num_rows:
            expected[artifacts.STATISTICS] = "<f8", (2, hops.config.num_values)
        for name, (dtype, shape) in expected.items():
            entry = hops.manifest.files.get(name)
            if entry is None or (entry.dtype, entry.shape) != (dtype, shape):
                raise ArtifactError(
                    f"{path} does not fit what its manifest says: expected {dtype} {list(shape)} in {name}; make it "
                    f"with `diskgnn propagate` again"
                )
        return hops

    @cached_property
    def config(self) -> HopsConfig:
        """The config in its manifest."""
        return self.manifest.parsed(HopsConfig.parse)

    def records(self, split: str) -> npt.NDArray[np.float32]:
        """Returns [rows, values] a memory map of the records of a split."""
        return self.manifest.array(records_file(split))

    def statistics(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the means and the deviations [values] of train records, in float64.

        Raises:
            ArtifactError: they are damaged, or there are no train records.
        """
        mean, deviation = self.manifest.checked_array(artifacts.STATISTICS)
        return mean, deviation
