"""The files of seeds that were given in place of a graph's own: in samples/, and copied to packed/."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diskgnn.errors import ArtifactError
from diskgnn.formats.artifacts import given_file
from diskgnn.formats.manifest import Manifest
from diskgnn.formats.samples_config import given_arrays
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import SPLITS
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.work.writer import ArtifactWriter


def write_given(writer: ArtifactWriter, spec: SamplingSpec) -> None:
    """Write the seeds of `spec` that were given, and their times."""
    for name, arrays in given_arrays(spec.target).items():
        for split, array in arrays.items():
            writer.save_array(given_file(name, split), array)


def given_files() -> list[str]:
    """Returns the names that such files may have."""
    return [given_file(name, split) for name in ("seeds", "times", "labels") for split in SPLITS]


def read_given(manifest: Manifest, spec: SamplingSpec) -> SamplingSpec:
    """Returns `spec`, which was read from the config of `manifest`, with the seeds that its digests stand for.

    Raises:
        ArtifactError: they are damaged, or others.
    """
    given: dict[str, Any] = {}
    for name, expected in given_arrays(spec.target).items():
        files = {split: given_file(name, split) for split in SPLITS}
        found = SplitArrays({
            split: manifest.checked_array(file) for split, file in files.items() if file in manifest.files
        })  # fmt: skip
        if found != expected:
            raise ArtifactError(f"{manifest.path}: its {name} are not those that it was sampled with; make it again")
        given[name] = found
    return replace(spec, target=replace(spec.target, **given)) if given else spec
