"""x from codes, against NumPy and torch's casts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diskgnn._native import dequantise_rows
from diskgnn.formats.quantisation import Quantisation, dequantise
from diskgnn.formats.row_format import RowFormat


def codes_of(
    dtype: str, num_rows: int, width: int, seed: int = 0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """(random bytes of rows, the codes in them)."""
    stored = np.random.default_rng(seed).integers(0, 256, (num_rows, RowFormat(dtype, width).row_bytes), np.uint8)
    if dtype == "int8":
        return stored, stored.view(np.int8).astype(np.float32)
    codes = np.stack([stored % 16, stored // 16], -1).reshape(num_rows, 2 * stored.shape[1])
    return stored, codes[:, :width].astype(np.float32)


def meaning_of(width: int, seed: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(scale, zero point), random."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 3, width).astype(np.float32), rng.integers(-300, 300, width).astype(np.float32)


@given(
    dtype=st.sampled_from(["int8", "int4"]),
    num_rows=st.integers(0, 40),
    width=st.integers(1, 70),
    threads=st.integers(1, 3),
    out=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_x_is_what_numpy_makes_of_the_codes(
    dtype: str, num_rows: int, width: int, threads: int, out: torch.dtype
) -> None:
    stored, codes = codes_of(dtype, num_rows, width)
    scale, zero_point = meaning_of(width)
    expected = torch.from_numpy((codes - zero_point) * scale)
    rows = RowFormat(dtype, width).as_tensor(stored)
    found = dequantise(
        rows, torch.from_numpy(scale), torch.from_numpy(zero_point), torch.empty(num_rows, width, dtype=out),
        threads=threads,
    )  # fmt: skip
    assert torch.equal(found, expected.to(out))
    assert torch.equal(Quantisation(scale, zero_point).widened(rows), expected)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("out", [torch.float32, torch.float16])
def test_more_rows_than_a_thread_takes_at_once(dtype: str, out: torch.dtype) -> None:
    stored, codes = codes_of(dtype, 3000, 101)
    scale, zero_point = meaning_of(101)
    found = dequantise(
        RowFormat(dtype, 101).as_tensor(stored), torch.from_numpy(scale), torch.from_numpy(zero_point),
        torch.empty(3000, 101, dtype=out), threads=3,
    )  # fmt: skip
    assert torch.equal(found, torch.from_numpy((codes - zero_point) * scale).to(out))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_torch_computes_the_same_bits_on_a_gpu(dtype: str) -> None:
    stored, codes = codes_of(dtype, 5, 7)
    scale, zero_point = meaning_of(7)
    rows, *constants = (
        each.to("cuda")
        for each in (RowFormat(dtype, 7).as_tensor(stored), torch.from_numpy(scale), torch.from_numpy(zero_point))
    )
    out = torch.empty(5, 7, dtype=torch.bfloat16, device="cuda")
    assert dequantise(rows, *constants, out) is out
    assert torch.equal(out.cpu(), torch.from_numpy((codes - zero_point) * scale).bfloat16())


def test_lengths_that_do_not_fit() -> None:
    one, codes = np.ones(3, np.float32), np.zeros(6, np.uint8)
    for arguments, message in (
        ((codes, 8, one, one, np.empty(7, np.float32), 1), "out has not"),
        ((codes, 8, one, one, np.empty(9, np.float32), 1), "as many rows"),
        ((codes, 4, one, one, np.empty(6, np.float32), 1), "as many rows"),
        ((codes, 8, one, one[:2], np.empty(6, np.float32), 1), "differ in length"),
        ((codes, 5, one, one, np.empty(6, np.float32), 1), "expected 4 or 8"),
        ((codes, 8, one[:0], one[:0], np.empty(0, np.float32), 1), "no columns"),
        ((codes, 8, one, one, np.empty(6, np.float32), 0), "no threads"),
    ):
        with pytest.raises(ValueError, match=message):
            dequantise_rows(*arguments)
