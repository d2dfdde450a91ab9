"""Columns cut out of records, against NumPy's structured arrays and bits that are counted one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_format import RecordField, RecordFormat
from diskgnn.formats.record_projection import Projection, without_columns
from diskgnn.specs.feature_columns import FeatureColumn

KINDS = [
    ("numerical", "int64", 1), ("timestamp", "int64", 1), ("numerical", "float32", 1), ("categorical", "int32", 1),
    ("boolean", "int32", 1), ("multicategorical", "int32", 3), ("embedding", "float32", 4), ("embedding", "int8", 5),
    ("embedding", "codes", 3),
]  # fmt: skip


def field(name: str, kind: tuple[str, str, int], *, may_be_null: bool) -> RecordField:
    num_values = 7 if kind[0] in ("categorical", "multicategorical") else None
    dtype = "int8" if kind[1] == "codes" else kind[1]
    return RecordField(
        name, kind[0], dtype, 0, kind[2], 0 if may_be_null else None, num_values, quantised=kind[1] == "codes"
    )


def bits(records: np.ndarray, rows: RecordFormat, name: str) -> np.ndarray | None:
    """[n] of a column, from the bytes of records [n, bytes]."""
    found = next(each for each in rows.fields if each.name == name)
    if found.null_bit is None:
        return None
    return (records[:, rows.nulls_offset + found.null_bit // 8] >> (found.null_bit % 8)) & 1


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.booleans(), st.booleans()), min_size=1, max_size=20),
    num_rows=st.integers(0, 9), shift=st.integers(0, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_what_stays_is_what_it_was(
    kinds: list[tuple[tuple[str, str, int], bool, bool]], num_rows: int, shift: int, seed: int
) -> None:
    """In records of any columns, from anywhere among other bytes."""
    fields = [field(f"c{number}", kind, may_be_null=null) for number, (kind, null, _) in enumerate(kinds)]
    stored = RecordFormat.of(fields, 1)
    left_out = {f"c{number}" for number, (_, _, is_out) in enumerate(kinds) if is_out}
    kept, _ = without_columns(stored, (), left_out)
    if kept is None:
        assert len(left_out) == len(kinds)
        return
    assert [each.name for each in kept.fields] == [each.name for each in stored.fields if each.name not in left_out]
    assert kept == RecordFormat.of([each for each in fields if each.name not in left_out], 1)
    random = np.random.default_rng(seed)
    step = stored.row_bytes + shift
    data = random.integers(0, 256, num_rows * step + 5, np.uint8)
    places = random.permutation(np.arange(num_rows) * step)
    projection = Projection(stored, kept)
    found = projection.cut(data, places)
    records = np.array([data[place : place + stored.row_bytes] for place in places], np.uint8)
    records = records.reshape(num_rows, stored.row_bytes)
    assert found.shape == (num_rows, kept.row_bytes)
    before, after = records.view(stored.file_dtype).reshape(-1), found.view(kept.file_dtype).reshape(-1)
    for each in kept.fields:
        assert before[each.name].tobytes() == after[each.name].tobytes()
        was, now = bits(records, stored, each.name), bits(found, kept, each.name)
        assert (was is None) == (now is None)
        if was is not None and now is not None:
            np.testing.assert_array_equal(was, now)
    spare = kept.num_nullable % 8
    if spare:  # bits of no column are 0
        assert not (found[:, kept.nulls_offset + kept.num_nullable // 8] >> spare).any()
    np.testing.assert_array_equal(projection.cut_all(records.reshape(-1)), found)
    numbers = np.arange(stored.num_codes, dtype=np.float32)
    codes = projection.kept_codes(Quantisation(numbers + 1, numbers))
    names = [each.name for each in stored.fields if each.quantised for _ in range(each.width)]
    expected = [number for number, name in enumerate(names) if name not in left_out]
    assert (codes is None) == (not expected)
    if codes is not None:
        np.testing.assert_array_equal(codes.zero_point, expected)
        np.testing.assert_array_equal(codes.scale, codes.zero_point + 1)


def test_x_is_without_their_features() -> None:
    """And the width of x follows; of none, it is a single 1."""
    rows = RecordFormat.of([field("a", KINDS[0], may_be_null=True), field("b", KINDS[6], may_be_null=False)], 5)
    features = (FeatureColumn("b", "vector", 4), FeatureColumn("a", "number", mean=0.0, deviation=1.0))
    kept, left = without_columns(rows, features, {"b"})
    assert kept is not None
    assert (kept.num_features, left) == (1, features[1:])
    kept, left = without_columns(rows, features[:1], {"b"})
    assert kept is not None
    assert (kept.num_features, left) == (1, ())
    assert without_columns(rows, features, {"a", "b"}) == (None, ())
