"""From the header of an extent to a minibatch: its tensors are views of one copy of the header on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import DamagedExtentError
from diskgnn.minibatch import Block, MiniBatch
from diskgnn.storage import artifacts, extents
from diskgnn.storage.packed import Packed

_TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64}


class HeaderReader:
    """Makes minibatches of headers.

    Args:
        packed: where they come from.
        split: of these extents.
        index: [T] of them, `extents.INDEX_DTYPE`.
        device: where the minibatches' tensors are wanted.
    """

    def __init__(self, packed: Packed, split: str, index: npt.NDArray[Any], device: torch.device) -> None:
        self._schema, self._num_nodes = packed.header_schema(), packed.config.num_nodes
        self._path, self._index, self._device = packed.file(artifacts.extents_file(split)), index, device
        self._max_header_bytes = int(index["header_bytes"].max(initial=0))

    def read(
        self,
        extent: int,
        header: npt.NDArray[np.uint8],
        x: Callable[[Tensor, Tensor], Tensor],
        epoch: int,
        number: int,
    ) -> MiniBatch:
        """The minibatch in `header`, moved on the current stream, once its parts have proved to fit each other.

        Args:
            extent: number of the extent.
            header: bytes of an extent's header, which must not change until the stream has got here.
            x: a function of (addresses [U] int32 on the host, the same on the device) that returns x.
            epoch, number: those of the minibatch.

        Raises:
            DamagedExtentError: it is not one, although its checksum fits.
        """
        try:
            decoded = extents.checked_header(header, self._schema, self._index[extent], self._num_nodes)
        except ValueError as error:
            raise DamagedExtentError(f"extent {extent} of {self._path} is damaged: {error}") from error
        host = moved = torch.from_numpy(header)
        if self._device.type != "cpu":
            # One copy instead of one for each array, and a block of the same size each time, as for x.
            moved = torch.empty(self._max_header_bytes, dtype=torch.uint8, device=self._device)[: len(header)]
            moved.copy_(host, non_blocking=True)

        def tensor(array: npt.NDArray[Any], source: Tensor = moved) -> Tensor:
            # Arrow's views are read-only; this one of the same bytes may be written, as torch expects.
            start = array.ctypes.data - header.ctypes.data if len(array) else 0
            return source[start : start + array.nbytes].view(_TORCH_DTYPES[array.dtype.name])

        num_src = [len(decoded.addresses), *(len(indptr) - 1 for indptr, _ in decoded.blocks)]
        return MiniBatch(
            x=x(tensor(decoded.addresses, host), tensor(decoded.addresses)),
            y=tensor(decoded.labels),
            blocks=tuple(
                Block(tensor(indptr), tensor(indices), num)
                for (indptr, indices), num in zip(decoded.blocks, num_src, strict=False)
            ),
            seeds=tensor(decoded.seeds),
            epoch=epoch,
            batch_index=number,
            input_nodes=None if decoded.input_nodes is None else tensor(decoded.input_nodes).long(),
        )
