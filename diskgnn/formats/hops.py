"""The hops directory: hop features of seeds, a record for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import record_checksums_file, records_file
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
        for split, count in hops.config.num_rows.items():
            shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
            shapes[records_file(split)] = "<f4", (count, hops.config.num_values)
            if hops.config.nodes != ALL_NODES:
                shapes[artifacts.given_file("seeds", split)] = ("<i8", (count,))
            for name, expected in shapes.items():
                entry = hops.manifest.files.get(name)
                if entry is None or (entry.dtype, entry.shape) != expected:
                    raise ArtifactError(f"{path} has no {name} of {count} rows; make it with `diskgnn propagate` again")
            if record_checksums_file(split) not in hops.manifest.files:
                raise ArtifactError(f"{path} has no checksums of {split}; make it with `diskgnn propagate` again")
        return hops

    @cached_property
    def config(self) -> HopsConfig:
        """What it was made with."""
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
