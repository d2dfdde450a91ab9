"""Sizes as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskgnn.errors import ConfigError
from diskgnn.units import format_seconds, format_size, format_value, label, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("4096", 4096), (4096, 4096), ("1b", 1), ("1k", 1000), ("2GB", 2_000_000_000), ("512MiB", 512 << 20),
        (" 1.5 GiB ", 3 << 29), ("1tib", 1 << 40), ("3T", 3_000_000_000_000), ("0.5KiB", 512),
        ("9007199254740993", 9007199254740993),  # past what a float holds exactly
    ],
)  # fmt: skip
def test_parse(text: int | str, expected: int) -> None:
    assert parse_size(text) == expected
    assert type(parse_size(text)) is int


@pytest.mark.parametrize("text", ["", "much", "-1", "1 parsec", "1,5GiB", "GiB", "1e9", "0x10", "1 2", -1])
def test_refused(text: int | str) -> None:
    with pytest.raises(ConfigError, match="expected a size"):
        parse_size(text)


@pytest.mark.parametrize(("size", "share"), [("0.1", "10%"), (0.1, "10%"), (" 0.005 ", "0.5%"), ("0.9b", "90%")])
def test_a_fraction_of_a_byte_is_taken_for_a_share(size: float | str, share: str) -> None:
    with pytest.raises(ConfigError, match=rf"less than a byte \(a share of all rows is written {share}\)$"):
        parse_size(size)


def test_format() -> None:
    assert [format_size(n) for n in (0, 1023, 1024, 1536, 5 << 20, 3 << 30, 7 << 40, 5000 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 GiB", "7.0 TiB", "5000.0 TiB"]  # fmt: skip


@given(st.integers(0, 1 << 60))
def test_what_is_formatted_can_be_parsed(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.05)


def test_values_are_shown_with_their_unit():
    assert format_value("read_bytes", 1536) == "1.5 KiB"
    assert format_value("rate_bytes_per_second", 1 << 20) == "1.0 MiB/s"
    assert format_value("wait_seconds", 75.2) == "1 min 15 s"
    assert format_value("edges", 1234567) == "1,234,567"
    assert format_value("mean_in_degree", 11.5799) == "11.6"
    assert [format_value("loss", loss) for loss in (math.nan, math.inf, -math.inf, 1234.5)] == [
        "nan", "inf", "-inf", "1,234"]  # fmt: skip
    assert format_value("fanouts", [10, 5]) == "10, 5"
    assert [format_value("flag", flag) for flag in (True, False, None)] == ["yes", "no", "none"]
    assert [format_seconds(seconds) for seconds in (0.1234, 12.3, 59.7, 7260)] == [
        "0.12 s",
        "12 s",
        "1 min 0 s",
        "2 h 1 min",
    ]
    assert label("read_bytes") == "read"
