"""Whole numbers in place of feature values: column c of x is (code - zero_point[c]) * scale[c].

The zero point is a whole number, so that a feature of 0 comes back as 0. The difference is exact in float32 and is
rounded once, by the product. So NumPy, the native loops and the GPU compute the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import dequantise_rows
from diskgnn.errors import ArtifactError
from diskgnn.formats.artifacts import MADE_BY
from diskgnn.formats.manifest import Manifest

if TYPE_CHECKING:
    import torch

_SCRATCH_VALUES = 1 << 16  # on the way to float16 and bfloat16: what stays in a processor's cache


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Says what the codes of each column mean."""

    scale: npt.NDArray[np.float32]  # [D], greater than 0
    zero_point: npt.NDArray[np.float32]  # [D]

    def to_array(self) -> npt.NDArray[np.float32]:
        """[2, D], as it is stored."""
        return np.stack([self.scale, self.zero_point])

    @staticmethod
    def read(manifest: Manifest, dtype: str, num_features: int, name: str) -> Quantisation | None:
        """Returns what file `name` says of an artifact with rows of `num_features` columns of `dtype`; None if it has
        none.

        Raises:
            ArtifactError: the file is damaged, or does not fit the rows.
        """
        entry, again = manifest.files.get(name), f"{MADE_BY[manifest.format]} again"
        if (entry is None and dtype == "int4") or (entry is not None and dtype not in ("int8", "int4")):
            raise ArtifactError(f"{manifest.path}: features of {dtype} do not fit its files; {again}")
        if entry is None:
            return None
        if (entry.dtype, entry.shape) != ("<f4", (2, num_features)):
            raise ArtifactError(
                f"{manifest.file(name)}: expected float32 [2, {num_features}], found {entry.dtype} "
                f"{list(entry.shape or ())}; {again}"
            )
        scale, zero_point = manifest.checked_array(name)
        if not (np.isfinite(scale).all() and np.isfinite(zero_point).all() and (scale > 0).all()):
            raise ArtifactError(f"{manifest.file(name)}: expected finite numbers, and scales above 0; {again}")
        return Quantisation(scale, zero_point)

    def widened(self, stored: torch.Tensor) -> torch.Tensor:
        """Returns x [n, D] float32 of rows as `RowFormat.as_tensor` has them, in the host's memory."""
        import torch

        x = torch.empty((len(stored), len(self.scale)), dtype=torch.float32)
        return dequantise(stored, torch.from_numpy(self.scale), torch.from_numpy(self.zero_point), x)


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
