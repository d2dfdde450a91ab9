"""Features stored in fewer bits, against NumPy and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from graphs import FEATURE_CODES, FEATURES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from user_data import NUM_NODES, small_data

from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.formats import artifacts
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import TableColumns, convert
from diskgnn.importers.quantising import affine, encode, pack_nibbles
from diskgnn.work.writer import ArtifactWriter

CODES = {"int8": np.arange(-128, 128), "int4": np.arange(16)}
FEW = st.floats(-(2.0**100), 2.0**100, width=32)
MATRICES = arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=FEW)


def unpacked(stored: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """The codes in int4 rows: low four bits first."""
    if stored.dtype == np.int8:
        return stored
    return np.stack([stored & 15, stored >> 4], -1).reshape(len(stored), -1)[:, :width]


def dequantised(graph: Graph) -> npt.NDArray[np.float32]:
    """What the files of a graph say that x is, by the words of docs/FORMAT.md."""
    scale, zero_point = np.load(graph.manifest.file(FEATURE_CODES))
    return (unpacked(graph.features, len(scale)).astype(np.float32) - zero_point) * scale


@settings(deadline=None)
@given(features=MATRICES, dtype=st.sampled_from(["int8", "int4"]))
def test_every_value_gets_the_code_next_to_it(features: npt.NDArray[np.float32], dtype: str) -> None:
    exact = features.astype(np.float64)
    meaning = affine(exact.min(axis=0), exact.max(axis=0), dtype)
    codes = encode(features, meaning, dtype)
    scale, zero_point = meaning.scale.astype(np.float64), meaning.zero_point.astype(np.float64)
    assert (zero_point == np.rint(zero_point)).all()
    levels = (CODES[dtype][:, None, None] - zero_point) * scale  # [codes, 1, D], exact
    np.testing.assert_allclose(
        np.abs((codes - zero_point) * scale - exact), np.abs(levels - exact).min(axis=0), rtol=1e-9, atol=1e-300
    )
    found = (codes.astype(np.float32) - meaning.zero_point) * meaning.scale
    # Half a step; the span of the codes is rounded to float32, and so is x.
    assert (np.abs(found - exact) <= scale * (0.5 + 256 * 2.0**-24) + np.spacing(np.abs(features))).all()
    assert (found[features == 0] == 0).all()
    constant = exact.min(axis=0) == exact.max(axis=0)
    np.testing.assert_array_equal(found[:, constant], features[:, constant])


@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(0, 15)))
def test_the_low_half_of_a_byte_is_the_even_column(codes: npt.NDArray[np.uint8]) -> None:
    packed = pack_nibbles(codes)
    assert (packed.dtype, packed.shape) == (np.uint8, (len(codes), -(-codes.shape[1] // 2)))
    np.testing.assert_array_equal(unpacked(packed, codes.shape[1]), codes)
    if codes.shape[1] % 2:
        assert (packed[:, -1] >> 4 == 0).all()


def test_codes_of_a_case_worked_by_hand(tmp_path: Path) -> None:
    data = small_data()
    features = np.zeros((NUM_NODES, 3), np.float32)
    features[:16, 0] = np.arange(-3, 13)  # 16 levels: zero point 3, scale 1
    features[:, 1] = -2.5
    features[:4, 2] = [0, 7.4, 7.6, 15]
    convert(tmp_path / "graph", **data | {"features": features}, quantise="int4")
    graph = Graph.open(tmp_path / "graph")
    np.testing.assert_array_equal(np.load(tmp_path / "graph" / FEATURE_CODES), [[1, 2.5, 1], [3, 1, 0]])
    np.testing.assert_array_equal(graph.features[:4], [[0x00, 0], [0x01, 7], [0x02, 8], [0x03, 15]])
    assert (dequantised(graph)[:, 1] == -2.5).all()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("width", [1, 6, 7])
def test_a_graph_of_codes(tmp_path: Path, dtype: str, width: int) -> None:
    """Long enough for several parts; from an array, a file and float16 the same."""
    rng = np.random.default_rng(5)
    features = (rng.normal(size=(70_001, width)) * 10.0 ** rng.integers(-3, 3, width)).astype(np.float16)
    data = small_data() | {"features": features.astype(np.float32), "labels": np.zeros(70_001, np.int64)}
    report = convert(tmp_path / "graph", **data, quantise=dtype)
    np.save(tmp_path / "features.npy", features)
    from_file = convert(tmp_path / "again", **data | {"features": tmp_path / "features.npy"}, quantise=dtype)
    graph, again = Graph.open(tmp_path / "graph"), Graph.open(tmp_path / "again")
    assert graph.manifest.digest == again.manifest.digest
    assert from_file.read_bytes == report.read_bytes + 2 * (tmp_path / "features.npy").stat().st_size
    verify_artifact(tmp_path / "graph")
    assert graph.feature_file.rows.dtype == dtype
    assert graph.manifest.files[FEATURES].shape == graph.features.shape
    exact, x = features.astype(np.float64), dequantised(graph)
    step = (exact.max(axis=0) - exact.min(axis=0)) / (len(CODES[dtype]) - 1)
    assert (np.abs(x - exact) <= 0.5001 * step).all()
    errors = np.abs(x - exact) / exact.std(axis=0)
    worst = report.details["worst_column"]
    assert worst == errors.mean(axis=0).argmax()
    assert report.details["mean_error_in_deviations"] == pytest.approx(errors.mean())
    assert report.details["worst_column_mean_error_in_deviations"] == pytest.approx(errors[:, worst].mean())
    assert report.details["worst_column_max_error_in_deviations"] == pytest.approx(errors[:, worst].max())
    told = describe(tmp_path / "graph")
    assert told.facts["features"] == f"{width} x {dtype}"
    assert told.facts["quantisation"] == "(code - zero_point) * scale, by column"
    assert told.config["quantise"] == dtype
    np.testing.assert_array_equal(graph.feature_file.x(graph.feature_file.rows.as_tensor(graph.features.copy())), x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_those_of_torch(tmp_path: Path, dtype: str) -> None:
    data, rng = small_data(), np.random.default_rng(1)
    features = rng.integers(0, 1 << 32, (NUM_NODES, 500), np.uint32).view(np.float32)
    features[~np.isfinite(features) | (np.abs(features) > (65_504 if dtype == "float16" else 3e38))] = 0.1
    features[:6, 0] = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1e-7, 65_504]  # ties; subnormal
    report = convert(tmp_path / "graph", **data | {"features": features}, quantise=dtype)
    graph, expected = Graph.open(tmp_path / "graph"), torch.from_numpy(features).to(getattr(torch, dtype))
    assert torch.equal(torch.from_numpy(graph.features.view(np.int16).copy()), expected.view(torch.int16))
    assert FEATURE_CODES not in graph.manifest.files
    errors = np.abs(expected.double().numpy() - features) / features.astype(np.float64).std(axis=0)
    assert report.details["mean_error_in_deviations"] == pytest.approx(errors.mean(), rel=1e-6)


def test_bfloat16_and_int8_become_int4(tmp_path: Path) -> None:
    data, rng = small_data(), np.random.default_rng(1)
    exact = torch.from_numpy(rng.normal(size=(NUM_NODES, 4))).bfloat16()
    given = exact.view(torch.int16).numpy().view(np.uint16)
    convert(tmp_path / "a", **data | {"features": given}, bfloat16=True, quantise="int4")
    convert(tmp_path / "b", **data | {"features": exact.float().numpy()}, quantise="int4")
    assert Graph.open(tmp_path / "a").manifest.digest == Graph.open(tmp_path / "b").manifest.digest
    whole = rng.integers(-128, 128, (NUM_NODES, 4), np.int8)
    convert(tmp_path / "c", **data | {"features": whole}, quantise="int4")
    assert np.abs(dequantised(Graph.open(tmp_path / "c")) - whole).max() <= 255 / 15 / 2


def test_columns_of_tables_are_quantised(tmp_path: Path) -> None:
    data = small_data()
    features = data.pop("features")
    convert(tmp_path / "a", **data, features=features, quantise="int8")
    names = [f"f{c}" for c in range(features.shape[1])]
    pq.write_table(pa.table(dict(zip(names, features.T, strict=True))), tmp_path / "nodes.parquet")
    columns = TableColumns(features=names)  # named, so that they are not scaled
    convert(tmp_path / "b", **data, nodes=tmp_path / "nodes.parquet", columns=columns, quantise="int8")
    a, b = ({name: file.crc32c for name, file in Graph.open(tmp_path / each).manifest.files.items()} for each in "ab")
    assert a == b


@pytest.mark.parametrize(
    ("quantise", "value", "message"),
    [
        ("int8", np.nan, r"found nan in row 49999, column 2; `quantise` expects finite"),
        ("int4", -np.inf, "found -inf in row 49999, column 2"),
        ("float16", np.inf, "found inf in row 49999, column 2"),
        ("float16", -65_505, r"found -65505 in row 49999, column 2; `quantise` expects at most 65504.*'bfloat16'"),
        ("bfloat16", 3.4028e38, "found 3.4028e[+]38 in row 49999, column 2.*bfloat16"),
        ("int4", 3.4e38, "column 2 reaches 3.4e[+]38, too far for int4"),
    ],
)
def test_values_that_cannot_be_quantised(tmp_path: Path, quantise: str, value: float, message: str) -> None:
    features = np.zeros((50_000, 3), np.float32)
    features[-1, 2] = value
    features[0, 2] = -value if quantise == "int4" and np.isfinite(value) else 0
    data = small_data() | {"features": features, "labels": np.zeros(50_000, np.int64)}
    with pytest.raises(InputError, match=message):
        convert(tmp_path / "graph", **data, quantise=quantise)
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        ("float32", {"quantise": "int2"}, "quantise: expected one of int8, int4, float16, bfloat16, found 'int2'"),
        ("int8", {"quantise": "int8"}, "narrower than the features, which are int8"),
        ("float16", {"quantise": "bfloat16"}, "narrower than the features, which are float16"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path: Path, dtype: str, options: dict[str, Any], message: str) -> None:
    data = small_data()
    data["features"] = data["features"].astype(dtype)
    with pytest.raises(ConfigError, match=message):
        convert(tmp_path / "graph", **data, **options)


def test_features_that_stay_where_they_are_cannot_be_quantised(tmp_path: Path) -> None:
    data = small_data()
    np.save(tmp_path / "features.npy", data["features"])
    given = data | {"features": tmp_path / "features.npy"}
    with pytest.raises(ConfigError, match="leave out reference_features=True"):
        convert(tmp_path / "graph", **given, reference_features=True, quantise="int8")


@pytest.mark.parametrize(
    "meaning",
    [None, np.ones((2, 6), np.float32), np.ones((2, 7)), np.full((2, 7), np.nan, np.float32),
     np.zeros((2, 7), np.float32)],
)  # fmt: skip
def test_a_graph_whose_codes_mean_nothing(tmp_path: Path, meaning: npt.NDArray[Any] | None) -> None:
    convert(tmp_path / "graph", **small_data(), quantise="int4")
    manifest = Graph.open(tmp_path / "graph").manifest
    with ArtifactWriter(tmp_path / "forged", artifacts.GRAPH, config=manifest.config) as writer:
        for name in manifest.files:
            if name != FEATURE_CODES:
                writer.save_array(name, manifest.array(name, mmap=False))
            elif meaning is not None:
                writer.save_array(name, meaning)
        writer.publish()
    with pytest.raises(ArtifactError, match="forged"):
        _ = Graph.open(tmp_path / "forged").feature_file
