"""Row formats, against NumPy and torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diskgnn.errors import ConfigError
from diskgnn.formats.row_format import FEATURE_STORAGE, FeatureFile, RowFormat, dtype_stored_as

GIVEN = [dtype for dtype in FEATURE_STORAGE if dtype != "int4"]  # torch and NumPy have no int4


@pytest.mark.parametrize("dtype", GIVEN)
@pytest.mark.parametrize("num_features", [1, 7, 1433])
def test_rows_become_the_tensor_that_torch_would_have_made(dtype: str, num_features: int) -> None:
    rows = RowFormat(dtype, num_features)
    expected = torch.randint(-100, 100, (5, num_features)).to(getattr(torch, dtype))
    assert (rows.torch_dtype, rows.row_bytes) == (expected.dtype, expected[0].nbytes)
    assert rows.storage.itemsize == expected.element_size()
    data = expected.view(torch.uint8).numpy()
    for given in (data, data.reshape(-1), data.view(rows.storage)):
        found = rows.as_tensor(given)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert found.data_ptr() == expected.data_ptr()  # nothing is copied


@pytest.mark.parametrize("dtype", GIVEN)
def test_what_is_stored_says_its_dtype(dtype: str) -> None:
    rows = RowFormat(dtype, 3)
    assert dtype_stored_as(rows.storage) == dtype
    assert RowFormat.stored_as(rows.storage, 3) == rows
    assert RowFormat.parse(rows.to_json() | {"another": "key"}) == rows


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [0.0, -1.5, 3e38, 1e-40, float("inf"), float("-inf"), float("nan")])
def test_all_exponent_bits_are_set_in_what_is_not_finite(dtype: str, value: float) -> None:
    rows = RowFormat(dtype, 1)
    number = torch.tensor([value], dtype=rows.torch_dtype)
    bits, mask = number.view(torch.uint8).numpy().view(f"u{rows.storage.itemsize}")[0], rows.exponent_bits
    assert mask is not None
    assert (int(bits) & mask == mask) == (not bool(torch.isfinite(number)))
    assert RowFormat("int8", 1).exponent_bits is None


@pytest.mark.parametrize(
    ("dtype", "num_features", "message"),
    [
        ("float64", 3, "feature_dtype: expected one of float32, float16, bfloat16, int8, int4, found 'float64'"),
        ("uint16", 3, "found 'uint16'"),
        ("float32", 0, "num_features: expected at least 1, found 0"),
    ],
)
def test_what_features_cannot_have(dtype: str, num_features: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RowFormat(dtype, num_features)


def test_a_dtype_that_cannot_be_stored() -> None:
    assert dtype_stored_as(np.dtype(np.float64)) is None
    with pytest.raises(ConfigError, match="found 'float64'"):
        RowFormat.stored_as(np.dtype(np.float64), 3)


@pytest.mark.parametrize("config", [{}, {"feature_dtype": "int8"}, {"feature_dtype": 3, "feature_width": 3},
                                    {"feature_dtype": "int8", "feature_width": "3"}])  # fmt: skip
def test_a_manifest_that_says_something_else(config: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError)):
        RowFormat.parse(config)


@pytest.mark.parametrize(("num_features", "row_bytes"), [(1, 1), (2, 1), (7, 4), (1433, 717)])
def test_two_codes_of_int4_lie_in_a_byte(num_features: int, row_bytes: int) -> None:
    rows = RowFormat("int4", num_features)
    assert (rows.row_bytes, rows.stored_columns, rows.torch_dtype) == (row_bytes, row_bytes, torch.uint8)
    assert rows.as_tensor(np.zeros(3 * row_bytes, np.uint8)).shape == (3, row_bytes)
    assert RowFormat.parse(rows.to_json()) == rows
    assert dtype_stored_as(rows.storage) is None  # a user's uint8 are no pairs of codes


def test_bytes_of_a_file() -> None:
    file = FeatureFile(Path("features.npy"), 128, 1000, RowFormat("bfloat16", 7))
    assert (file.row_bytes, file.num_bytes) == (14, 14_000)
