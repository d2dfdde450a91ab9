"""Records of any columns, against structured arrays of NumPy."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn.errors import ConfigError
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_format import NULLS, ROWS, RecordField, RecordFormat
from diskgnn.formats.record_view import RecordView
from diskgnn.specs.feature_columns import FeatureColumn

KINDS = (
    ("numerical", "int64"), ("timestamp", "int64"), ("numerical", "float32"), ("categorical", "int32"),
    ("boolean", "int32"), ("multicategorical", "int32"), ("embedding", "float32"), ("embedding", "int8"),
)  # fmt: skip


@st.composite
def formats(draw: Any) -> RecordFormat:
    names = draw(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=20, unique=True))
    fields = []
    for name in names:
        kind, dtype = draw(st.sampled_from(KINDS))
        width = draw(st.integers(1, 7)) if kind in ("embedding", "multicategorical") else 1
        nullable = draw(st.sampled_from([0, None]))
        num_values = 9 if "categorical" in kind else None
        quantised = dtype == "int8" and draw(st.booleans())
        fields.append(RecordField(name, kind, dtype, 0, width, nullable, num_values, quantised))
    return RecordFormat.of(fields, 1)


@settings(max_examples=150, deadline=None)
@given(rows=formats(), num_rows=st.integers(0, 5), seed=st.integers(0, 99))
def test_columns_are_those_that_numpy_reads(rows: RecordFormat, num_rows: int, seed: int) -> None:
    """Of random bytes, through a .npy file; offsets are NumPy's own."""
    assert rows.row_bytes % 4 == 0
    assert rows.file_dtype.itemsize == rows.row_bytes
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, num_rows * rows.row_bytes, np.uint8)
    scale, zero_point = random.random(rows.num_codes, np.float32), random.integers(-200, 200, rows.num_codes)
    quantisation = Quantisation(scale, zero_point.astype(np.float32)) if rows.are_codes else None
    file = io.BytesIO()
    np.save(file, data.view(rows.file_dtype))
    file.seek(0)
    array = np.load(file)
    decoded = RecordView(rows, (), quantisation).decode(rows.as_tensor(array))
    assert list(decoded.columns) == [each.name for each in rows.fields]
    first = 0
    for field, name in zip(rows.fields, array.dtype.names, strict=False):
        assert array.dtype.fields[name][1] == field.offset
        found = decoded.columns[field.name]
        assert found.dtype is getattr(torch, field.delivered_dtype)
        expected = array[name].reshape(found.shape)
        if field.quantised:
            of_field = slice(first, first + field.width)
            expected = (expected - zero_point[of_field].astype(np.float32)) * scale[of_field]
            first += field.width
        np.testing.assert_array_equal(
            found.numpy().view(f"i{expected.itemsize}"), expected.view(f"i{expected.itemsize}")
        )
    nullable = [each for each in rows.fields if each.null_bit is not None]
    assert list(decoded.nulls) == [each.name for each in nullable]
    if nullable and num_rows:
        bits = np.unpackbits(array[NULLS], axis=1, bitorder="little")
        for each in nullable:
            np.testing.assert_array_equal(decoded.nulls[each.name], bits[:, each.null_bit].astype(bool))


@st.composite
def featured(draw: Any) -> tuple[RecordFormat, tuple[FeatureColumn, ...]]:
    """A format, and features of some of its columns."""
    fields, features = draw(formats()).fields, list[FeatureColumn]()
    for field in draw(st.permutations(fields))[: draw(st.integers(1, len(fields)))]:
        if field.kind == "embedding":
            column = FeatureColumn(field.name, draw(st.sampled_from(["vector", "text"])), field.width)
        elif field.kind in ("categorical", "boolean"):
            encoding = "boolean" if field.kind == "boolean" else "category"
            column = FeatureColumn(field.name, encoding, 1 if encoding == "boolean" else draw(st.integers(0, 9)))
        elif field.kind == "multicategorical":
            continue
        else:
            scales = st.sampled_from([(3.5, 2.0), (-1e18, 1e-3), (0.0, 0.0), (None, None)])
            column = FeatureColumn(field.name, draw(st.sampled_from(["number", "raw", "time"])), 1, *draw(scales))
        features.append(column)
    return RecordFormat.of(fields, max(1, sum(each.width for each in features))), tuple(features)


@settings(max_examples=300, deadline=None)
@given(found=featured(), num_rows=st.integers(1, 5), spread=st.booleans(), seed=st.integers(0, 99))
@np.errstate(all="ignore")
def test_x_is_what_numpy_makes_of_columns(
    found: tuple[RecordFormat, tuple[FeatureColumn, ...]], num_rows: int, spread: bool, seed: int
) -> None:
    """Of records with small codes and of random bytes: in one pass on the host, and of columns as elsewhere."""
    rows, features = found
    random = np.random.default_rng(seed)
    array = random.integers(0, 256, num_rows * rows.row_bytes, np.uint8).view(rows.file_dtype)
    scale, zero_point = random.random(rows.num_codes, np.float32), random.integers(-200, 200, rows.num_codes)
    view = RecordView(rows, features, Quantisation(scale, zero_point.astype(np.float32)) if rows.are_codes else None)
    fields = {each.name: (each, name) for each, name in zip(rows.fields, array.dtype.names, strict=False)}
    for field, name in fields.values():
        if field.dtype == "int32":
            array[name] = array[name] % 5 - 1
    decoded = view.decode(rows.as_tensor(array))
    expected = np.zeros((num_rows, rows.num_features), np.float32) if features else np.ones((num_rows, 1), np.float32)
    first = 0
    for column in features:
        field, name = fields[column.name]
        values, to = array[name], expected[:, first : first + column.width]
        null = decoded.nulls.get(column.name, torch.zeros(num_rows, dtype=torch.bool)).numpy()
        first += column.width
        if field.quantised:
            to[:] = decoded.columns[column.name]
        elif field.kind == "embedding":
            to[:] = values.reshape(to.shape)
            to /= np.float32(127 if (column.encoding, field.dtype) == ("text", "int8") else 1)
        elif field.kind in ("categorical", "boolean"):
            to[:] = values[:, None] == np.arange(column.width) + (field.kind == "boolean")
        else:
            numbers = (values // 10**6 if field.kind == "timestamp" else values).astype(np.float64)
            if column.encoding == "raw":
                to[:, 0] = np.where(null, np.nan, numbers)
            elif column.deviation:
                scaled = (numbers - column.mean) / column.deviation
                to[:, 0] = np.where(np.isfinite(scaled) & ~null, scaled, 0)
    places = random.integers(0, num_rows, 7, np.int32) if spread else None
    x = view.widened(rows.as_tensor(array), None if places is None else torch.from_numpy(places))
    np.testing.assert_array_equal(x, expected if places is None else expected[places])
    np.testing.assert_array_equal(view.x(decoded, num_rows, torch.device("cpu")), expected)


@given(rows=formats())
def test_manifests_have_all_of_it(rows: RecordFormat) -> None:
    assert ROWS.read(ROWS.write(rows)) == rows


def test_blocks_are_in_order() -> None:
    """Whatever the order in which columns are given; as torch_frame has them, sorted by name."""
    given_fields = [RecordField(f"{name}{number}", kind, dtype, num_values=3 if "categorical" in kind else None)
                    for number, (kind, dtype) in enumerate(KINDS[::-1]) for name in "ba"]  # fmt: skip
    found = RecordFormat.of(given_fields, 1).fields
    names = ["a6", "a7", "b6", "b7", "a5", "b5", "a3", "a4", "b3", "b4", "a2", "b2", "a1", "b1", "a0", "b0"]
    assert [each.name for each in found] == names
    assert [each.offset for each in found] == [0, 8, 16, 24, *range(32, 73, 4), 73]


@given(rows=formats())
def test_columns_keep_their_places_among_others(rows: RecordFormat) -> None:
    """Of records without codes, those that become such lie where they lay, and what is null stays at its bit."""
    rows = RecordFormat.of([each for each in rows.fields if not each.quantised] or [RecordField("a", *KINDS[0])], 1)
    quantised = rows.quantised()
    assert quantised.widened() == rows
    said = [[(each.name, each.kind, each.width, each.null_bit) for each in found.fields] for found in (rows, quantised)]
    assert said[0] == said[1]
    floats = [each for each in rows.fields if (each.kind, each.dtype) == ("embedding", "float32")]
    assert [each.name for each in quantised.fields if each.quantised] == [each.name for each in floats]
    assert quantised.nulls_offset == rows.nulls_offset - 3 * sum(each.width for each in floats)
    assert quantised.num_codes == sum(each.width for each in floats)


def test_names_that_a_header_cannot_have(tmp_path: Any) -> None:
    """Columns are numbered then: where a name is not ASCII, where there are too many, where one is taken."""
    for names in (["größe", "a"], [f"column of number {number}" for number in range(200)], ["nulls", "b"]):
        rows = RecordFormat.of([RecordField(name, "numerical", "float32", null_bit=0) for name in names], 1)
        assert rows.file_dtype.names == (*(f"column_{number}" for number in range(len(names))), NULLS)
        np.save(tmp_path / "rows.npy", np.zeros(3, rows.file_dtype))
        assert np.load(tmp_path / "rows.npy").dtype == rows.file_dtype


def test_places_without_a_record_are_refused() -> None:
    rows = RecordFormat.of([RecordField("a", "numerical", "float32")], 1)
    view = RecordView(rows, (FeatureColumn("a", "raw"),))
    for place in (-1, 2):
        with pytest.raises(IndexError, match="place"):
            view.widened(rows.as_tensor(np.zeros(2, rows.file_dtype)), torch.tensor([place], dtype=torch.int32))


def test_refusals() -> None:
    field = RecordField("a", "numerical", "float32")
    for fields in ((), (field, field)):
        with pytest.raises(ConfigError, match="record: "):
            RecordFormat.of(fields, 1)
