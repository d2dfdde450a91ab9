"""Whole numbers in place of feature values: column c of x is (code - zero_point[c]) * scale[c].

Of rows that keep their columns, these are the numbers of all embeddings that are quantised, in the order of the record.

The zero point is a whole number, so that a feature of 0 comes back as 0. The difference is exact in float32 and is
rounded once, by the product. So NumPy, the native loops and the GPU compute the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from diskgnn._native import dequantise_rows
from diskgnn.errors import ArtifactError
from diskgnn.formats.artifacts import MADE_BY
from diskgnn.formats.manifest import Manifest

if TYPE_CHECKING:
    import torch

_SCRATCH_VALUES = 1 << 16  # on the way to float16 and bfloat16: what stays in a processor's cache


class CodedRows(Protocol):
    """Says which numbers of rows may be codes: `RowFormat` does, and `RecordFormat`."""

    @property
    def dtype(self) -> str:
        """Returns the feature dtype."""
        ...

    @property
    def num_codes(self) -> int:
        """Returns the numbers of a row that may be codes."""
        ...

    @property
    def are_codes(self) -> bool:
        """Returns True if they are in any case."""
        ...


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Says what the codes of each column mean."""

    scale: npt.NDArray[np.float32]  # [D], greater than 0
    zero_point: npt.NDArray[np.float32]  # [D]
    _moved: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict, init=False, repr=False)

    def to_array(self) -> npt.NDArray[np.float32]:
        """Returns [2, D], as it is stored."""
        return np.stack([self.scale, self.zero_point])

    @staticmethod
    def read(manifest: Manifest, rows: CodedRows, name: str) -> Quantisation | None:
        """Returns what file `name` of an artifact says of its `rows`; None if it has none.

        Raises:
            ArtifactError: the file is damaged, or does not fit the rows.
        """
        entry, again = manifest.files.get(name), f"{MADE_BY[manifest.format]} again"
        if (entry is None and rows.are_codes) or (entry is not None and not rows.num_codes):
            raise ArtifactError(f"{manifest.path}: features of {rows.dtype} do not fit its files; {again}")
        if entry is None:
            return None
        if (entry.dtype, entry.shape) != ("<f4", (2, rows.num_codes)):
            raise ArtifactError(
                f"{manifest.file(name)}: expected float32 [2, {rows.num_codes}], found {entry.dtype} "
                f"{list(entry.shape or ())}; {again}"
            )
        scale, zero_point = manifest.checked_array(name)
        if not (np.isfinite(scale).all() and np.isfinite(zero_point).all() and (scale > 0).all()):
            raise ArtifactError(f"{manifest.file(name)}: expected finite numbers, and scales above 0; {again}")
        return Quantisation(scale, zero_point)

    def of_columns(self, columns: npt.NDArray[np.int64]) -> Quantisation:
        """Returns what the codes of some `columns` mean."""
        return Quantisation(self.scale[columns], self.zero_point[columns])

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns scale and zero point on a device."""
        import torch

        if device not in self._moved:
            scale, zero_point = (torch.from_numpy(each).to(device) for each in (self.scale, self.zero_point))
            self._moved[device] = scale, zero_point
        return self._moved[device]

    def widened(self, stored: torch.Tensor) -> torch.Tensor:
        """Returns x [n, D] float32 of rows as `RowFormat.as_tensor` has them, beside these."""
        import torch

        x = torch.empty((len(stored), len(self.scale)), dtype=torch.float32, device=stored.device)
        return dequantise(stored, *self.on(stored.device), x)


def dequantise(
    stored: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, out: torch.Tensor, *, threads: int = 1
) -> torch.Tensor:
    """Fill `out` with (code - zero_point) * scale: in one pass over `stored` on the host, with torch elsewhere.

    Args:
        stored: int8 [n, D], or uint8 [n, ceil(D / 2)] of two codes a byte, the low four bits first.
        scale, zero_point: float32 [D], beside `stored`.
        out: [n, D], beside `stored`: float32, float16 or bfloat16.
        threads: of the host.

    Returns:
        `out`.
    """
    import torch

    if stored.device.type != "cpu":
        return out.copy_((_codes(stored, len(scale)).to(torch.float32) - zero_point) * scale)
    constants = scale.numpy(), zero_point.numpy()
    if out.dtype is torch.float32 and out.is_contiguous():
        _fill(stored, constants, out, threads)
        return out
    step = max(1, _SCRATCH_VALUES // len(scale))
    scratch = torch.empty((min(step, len(stored)), len(scale)), dtype=torch.float32)
    for first in range(0, len(stored), step):
        part = stored[first : first + step]
        _fill(part, constants, scratch[: len(part)], threads)
        out[first : first + step] = scratch[: len(part)]
    return out


def _codes(stored: torch.Tensor, num_features: int) -> torch.Tensor:
    import torch

    if stored.dtype is not torch.uint8:
        return stored
    return torch.stack((stored & 15, stored >> 4), -1).flatten(1)[:, :num_features]


def _fill(
    stored: torch.Tensor, constants: tuple[npt.NDArray[Any], npt.NDArray[Any]], out: torch.Tensor, threads: int
) -> None:
    import torch

    codes = stored.contiguous().view(torch.uint8).numpy().reshape(-1)
    bits = 4 if stored.dtype is torch.uint8 else 8
    dequantise_rows(codes, bits, *constants, out.numpy().reshape(-1), threads)
