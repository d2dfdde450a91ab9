"""One Triton kernel that fills x on the device from rows in three places; needs triton, which comes with CUDA torch.

The places are GPU memory, page-locked host memory, which the GPU reads by itself, and rows that were staged for this
minibatch: Min et al., Large Graph Convolutional Network Training with GPU-Oriented Data Communication Architecture
(PyTorch-Direct), VLDB 2021. Import it only where it is used: `assembly` does, and works without it, too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Enough reads in flight for PCIe and for a good part of the GPU's own memory, and an eighth of the threads that a
# multiprocessor holds: a kernel that waits for PCIe must leave room for the model's, which run at the same time.
PROGRAMS_PER_MULTIPROCESSOR = 2
_NUM_WARPS = 4
_MAX_TILE_COLUMNS = 512  # 4 warps of 16-byte reads of 4-byte words
_TILE_WORDS = 2048  # 16 words, four such reads, a thread
_WORDS = {4: torch.int32, 2: torch.int16, 1: torch.int8}


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["num_rows", "num_device", "num_readable"],  # or training pauses to compile for a new size
    do_not_specialize_on_alignment=["addresses", "positions"],
)
def _gather(  # type: ignore[no-untyped-def]
    addresses,  # int32 [U]
    positions,  # int32 [U], 1 + the staged row of the inputs that are staged
    device_rows,  # [num_device, stored]
    pinned_rows,  # [num_readable - num_device, stored]
    staged_rows,
    out,  # [U, width]
    scale,  # float32 [width]; scale and zero_point are read if `dequantize`
    zero_point,
    num_rows,
    num_device,
    num_readable,
    width: tl.constexpr,
    stored: tl.constexpr,  # values of a row as it is stored: with `nibbles`, two columns each
    dequantize: tl.constexpr,
    nibbles: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, tile_rows), tl.num_programs(0)):
        row = tile * tile_rows + tl.arange(0, tile_rows)
        row_exists = row < num_rows
        address = tl.load(addresses + row, mask=row_exists, other=0).to(tl.int64)
        position = tl.load(positions + row, mask=row_exists, other=1).to(tl.int64) - 1
        pinned = pinned_rows + (address - num_device) * stored
        staged = staged_rows + position * stored
        source = tl.where(
            address < num_device, device_rows + address * stored, tl.where(address < num_readable, pinned, staged)
        )
        target = out + row.to(tl.int64) * width
        for first in range(0, width, tile_columns):
            column = first + tl.arange(0, tile_columns)
            exists = row_exists[:, None] & (column < width)[None, :]
            if nibbles:  # both halves of a byte are taken from the same line: the second load costs no memory access
                values = tl.load(source[:, None] + (column // 2)[None, :], mask=exists)
                values = (values >> ((column % 2) * 4).to(tl.uint8)[None, :]) & 15
            else:
                values = tl.load(source[:, None] + column[None, :], mask=exists)
            if dequantize:
                steps = tl.load(scale + column, mask=column < width)
                zeros = tl.load(zero_point + column, mask=column < width)
                values = (values.to(tl.float32) - zeros[None, :]) * steps[None, :]
            tl.store(target[:, None] + column[None, :], values.to(out.dtype.element_ty), mask=exists)


def gather_rows(
    addresses: Tensor,
    positions: Tensor,
    device_rows: Tensor,
    pinned_rows: Tensor,
    staged_rows: Tensor,
    out: Tensor,
    *,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    programs_per_multiprocessor: int = PROGRAMS_PER_MULTIPROCESSOR,
) -> Tensor:
    """Fill `out` by address, on the current stream, without waiting for the device.

    Rows are moved in the widest words that divide them, 16 bytes a thread where a row's bytes are a multiple of 16, so
    that a row is read in whole lines. Where `out` has another dtype they are converted on the way.

    Args:
        addresses: [U] int32: in [0, num_device) a row of `device_rows`, then one of `pinned_rows`; beyond, staged.
        positions: [U] int32: of an input that is staged, 1 + its row in `staged_rows`; of others, anything.
        device_rows: [num_device, D] on the device.
        pinned_rows: [P, D], on the host, page-locked and mapped (`diskgnn.system.page_locking`), or on the device.
        staged_rows: [M, D] on the device.
        out: [U, D] on the device, in the rows' dtype or float32; with `scale` also float16 or bfloat16.
        scale, zero_point: [D] float32 on the device: out = (row - zero_point) * scale, for rows of int8, or of uint8
            [n, ceil(D / 2)], which are two columns each, the low four bits first.
        programs_per_multiprocessor: how much of the device the kernel may take.

    Returns:
        `out`.

    Example:
        >>> rows = torch.arange(8.0).view(4, 2)
        >>> gather_rows(torch.tensor([3, 0], dtype=torch.int32), torch.zeros(2, dtype=torch.int32), rows, rows[:0],
        ...             rows[:0], torch.empty(2, 2))
        tensor([[6., 7.],
                [0., 1.]])
    """
    num_rows, num_device = len(addresses), len(device_rows)
    num_readable = num_device + len(pinned_rows)
    if num_rows == 0 or out.shape[1] == 0:
        return out
    pinned, staged, device, target = pinned_rows, staged_rows, device_rows, out
    if scale is None and out.dtype == device_rows.dtype:  # as they are: bits, which no conversion may touch
        words = _words(out.shape[1] * out.element_size())
        pinned, staged, device, target = (rows.view(words) for rows in (pinned, staged, device, target))
    width = target.shape[1]
    tile_columns = min(triton.next_power_of_2(width), _MAX_TILE_COLUMNS)
    tile_rows = max(1, _TILE_WORDS // tile_columns)
    grid = min(triton.cdiv(num_rows, tile_rows), _multiprocessors(out.device) * programs_per_multiprocessor)
    _gather[(grid,)](
        addresses, positions, device, pinned, staged, target, scale, zero_point, num_rows, num_device, num_readable,
        width=width, stored=device.shape[1], dequantize=scale is not None, nibbles=device.dtype is torch.uint8,
        tile_rows=tile_rows, tile_columns=tile_columns,
        num_warps=_NUM_WARPS,
    )  # fmt: skip
    return out


def _words(row_bytes: int) -> torch.dtype:
    return next(word for size, word in _WORDS.items() if row_bytes % size == 0)


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter: one program after another
    return torch.cuda.get_device_properties(device).multi_processor_count
