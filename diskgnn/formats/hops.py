"""The hops directory: hop features of seeds, a record for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import given_file, record_checksums_file, records_file
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.hops_config import ALL_NODES, HopsConfig
from diskgnn.formats.manifest import Manifest, open_pinned
from diskgnn.formats.manifest_reading import read_document
from diskgnn.stores.locations import AnyPath, located


def is_hops(path: AnyPath) -> bool:
    """Returns True if `path` has the manifest of a hops directory, whole or not."""
    try:
        return str(read_document(located(path))["format"]) == artifacts.HOPS
    except (ArtifactError, ConfigError):
        return False


_Held = tuple[str, tuple[int, ...]]  # dtype and shape of a file


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
        expected = dict[str, list[_Held]]()
        for split, count in hops.config.num_rows.items():
            expected[records_file(split)] = [("<f4", (count, hops.config.num_values))]
            if hops.config.nodes != ALL_NODES:
                expected[given_file("seeds", split)] = [("<i8", (count,))]
            if hops.config.target is not None:
                expected[given_file("labels", split)] = _labels_of(hops.config.target, count)
            if (records := hops.manifest.files.get(records_file(split))) is not None:
                num_chunks = -(-records.bytes // CHECKSUM_CHUNK_BYTES)
                expected[record_checksums_file(split)] = [("<u4", (num_chunks,))]
        if hops.config.num_rows.get("train"):
            expected[artifacts.STATISTICS] = [("<f8", (2, hops.config.num_values))]
        for name, held in expected.items():
            entry = hops.manifest.files.get(name)
            if entry is None or (entry.dtype, entry.shape) not in held:
                ((dtype, shape), *_) = held
                raise ArtifactError(
                    f"{path} does not fit what its manifest says: expected {dtype} {list(shape)} in {name}; make it "
                    f"with `diskgnn propagate` again"
                )
        return hops

    @cached_property
    def config(self) -> HopsConfig:
        """Returns the config in its manifest."""
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


def _labels_of(target: TargetConfig, count: int) -> list[_Held]:
    """Returns what the file of labels of so many seeds may hold."""
    if target.kind == "class":
        return [("<i8", (count,))]
    matrix = (count, target.num_outputs)
    if target.kind == "multilabel":
        return [("|u1", matrix)]
    return [("<f4", matrix), *([("<f4", (count,))] if target.num_outputs == 1 else [])]
