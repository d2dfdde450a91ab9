"""Copying rows between places in memory, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskgnn._native import copy_rows_at, copy_rows_to

WIDTHS = st.sampled_from([1, 4, 63, 64, 100, 256, 300, 1000, 1024, 2800])


@given(row_bytes=WIDTHS, count=st.integers(0, 40), seed=st.integers(0, 99))
def test_rows_from_places(row_bytes: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    source = rng.integers(0, 256, 3 * row_bytes + 50, np.uint8)
    places = rng.integers(0, len(source) - row_bytes + 1, count)
    copied = np.zeros(count * row_bytes, np.uint8)
    copy_rows_at(source, row_bytes, places, copied)
    assert copied.tolist() == [byte for place in places for byte in source[place : place + row_bytes].tolist()]


@given(row_bytes=WIDTHS, in_segment=st.integers(1, 9), num_segments=st.integers(1, 5), gap=st.integers(0, 3),
       left_out=st.floats(0, 1), seed=st.integers(0, 99))  # fmt: skip
def test_rows_to_places_of_segments(
    row_bytes: int, in_segment: int, num_segments: int, gap: int, left_out: float, seed: int
) -> None:
    """The last segment may be shorter than the others; bytes between rows stay as they are."""
    rng = np.random.default_rng(seed)
    stride = row_bytes + gap
    segments = [np.full(in_segment * stride, 7, np.uint8) for _ in range(num_segments)]
    count = in_segment * num_segments
    rows = rng.integers(0, 256, (count, row_bytes), np.uint8)
    numbers = rng.permutation(count)
    places = numbers // in_segment * (in_segment * stride + 5) + numbers % in_segment * stride
    places[rng.random(count) < left_out] = -1
    expected = np.full((count, stride), 7, np.uint8)
    for row, number, place in zip(rows, numbers, places, strict=True):
        if place >= 0:
            expected[number, :row_bytes] = row
    copy_rows_to(rows.reshape(-1), row_bytes, places, segments, in_segment * stride + 5)
    assert np.concatenate(segments).tolist() == expected.reshape(-1).tolist()


def test_places_where_no_row_fits() -> None:
    rows = np.arange(8, dtype=np.uint8)
    segments = [np.zeros(8, np.uint8), np.zeros(6, np.uint8)]
    for places in ([0, 5], [16, 0], [0, 12], [1 << 62, 0]):
        with pytest.raises(IndexError, match="no row fits"):
            copy_rows_to(rows, 4, np.array(places), segments, 8)
        assert not any(map(np.any, segments))
    copy_rows_to(rows, 4, np.array([10, 4]), segments, 8)
    assert [each.tolist() for each in segments] == [[0, 0, 0, 0, 4, 5, 6, 7], [0, 0, 0, 1, 2, 3]]
    for source, place in ((np.zeros(4, np.uint8), 1), (np.zeros(3, np.uint8), 0), (np.zeros(4, np.uint8), -1)):
        with pytest.raises(IndexError):
            copy_rows_at(source, 4, np.array([place]), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="rows and places"):
        copy_rows_to(rows, 3, np.array([0, 4]), segments, 8)
    with pytest.raises(ValueError, match="more than segment_bytes"):
        copy_rows_to(rows, 4, np.array([0, 4]), segments, 7)
    with pytest.raises(TypeError):  # it would be copied, and the copy would be written
        copy_rows_to(rows, 4, np.array([0, 4]), [np.zeros(8, np.int8)], 8)
