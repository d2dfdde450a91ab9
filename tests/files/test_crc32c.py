"""CRC-32C by all means of this processor, against the vectors of RFC 3720 and a bit-by-bit computation; combining
against computing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskgnn._native import crc32c, crc32c_by, crc32c_combine, crc32c_methods


def by_all_means(data, crc=0):
    """The CRC-32C that all methods agree on."""
    found = {crc32c_by(method, data, crc) for method in crc32c_methods()}
    assert found == {crc32c(data, crc)}
    return found.pop()


def bit_by_bit(data, crc=0):
    """As the polynomial division that it is: reflected, 0x82f63b78."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_published_vectors(data, expected):
    assert by_all_means(data) == bit_by_bit(data) == expected


@given(data=st.binary(max_size=300), start=st.integers(0, 9))
def test_any_bytes_at_any_alignment(data, start):
    assert by_all_means(memoryview(data)[start:]) == bit_by_bit(data[start:])


@pytest.mark.parametrize(
    "length",
    [
        *(255, 256, 257, 511, 512, 513, 4096),  # blocks of 256
        *(767, 768, 769, 1000, 2 * 768 + 5, 24575, 24576, 24577, 24576 + 768 + 9, 70_001),  # three stretches
    ],
)
@pytest.mark.parametrize("start", [0, 3])
def test_lengths_that_are_worked_on_in_parts(length, start):
    data = np.random.default_rng(length).bytes(start + length)
    assert by_all_means(memoryview(data)[start:], 77) == bit_by_bit(data[start:], 77)


def test_a_method_that_this_processor_lacks_is_refused():
    assert crc32c_methods()[-1] == "table"
    with pytest.raises(ValueError, match="crc32c_methods"):
        crc32c_by("guessing", b"abc")


@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_continuing_and_combining(data, cut):
    left, right = data[:cut], data[cut:]
    whole = crc32c(data)
    assert crc32c(right, crc32c(left)) == whole
    assert crc32c_combine(crc32c(left), crc32c(right), len(right)) == whole


def test_combining_long_parts():
    parts = [b"abc", bytes(100_000), b"x" * 77_777]
    crc = 0
    for part in parts:
        crc = crc32c_combine(crc, crc32c(part), len(part))
    assert crc == crc32c(b"".join(parts))


def test_arrays_and_read_only_memory():
    array = np.arange(1000, dtype=np.uint8)
    assert crc32c(array) == crc32c(array.tobytes())
    array.flags.writeable = False
    assert crc32c(array) == bit_by_bit(array.tobytes())
