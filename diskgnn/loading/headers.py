"""From the header of an extent to a minibatch: its tensors are views of one copy of the header on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from diskgnn.minibatch import Block, MiniBatch
from diskgnn.storage import extents

_TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64}


class UndecodableHeaderError(Exception):
    """A header that is no such record batch, although its checksum fits."""


class HeaderReader:
    """Makes minibatches of headers.

    Args:
        schema: columns of a header.
        max_header_bytes: of any header that will be read.
        device: where the minibatches' tensors are wanted.
    """

    def __init__(self, schema: pa.Schema, max_header_bytes: int, device: torch.device) -> None:
        self._schema, self._device = schema, device
        self.max_header_bytes = max_header_bytes

    def read(
        self, header: npt.NDArray[np.uint8], x: Callable[[Tensor, Tensor], Tensor], epoch: int, number: int
    ) -> MiniBatch:
        """The minibatch in `header`, moved on the current stream.

        Args:
            header: bytes of an extent's header, which must not change until the stream has got here.
            x: a function of (addresses [U] int32 on the host, the same on the device) that returns x.
            epoch, number: those of the minibatch.

        Raises:
            UndecodableHeaderError: it is not one.
        """
        try:
            decoded = extents.decode_header(header, self._schema)
        except (pa.ArrowException, EOFError, OSError) as error:
            raise UndecodableHeaderError(str(error)) from error
        host = moved = torch.from_numpy(header)
        if self._device.type != "cpu":
            # One copy instead of one for each array, and a block of the same size each time, as for x.
            moved = torch.empty(self.max_header_bytes, dtype=torch.uint8, device=self._device)[: len(header)]
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
