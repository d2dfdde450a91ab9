"""Embeddings of tables that keep their columns, stored as int8: against NumPy, and the same tables in float32."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import run
from forging import write_manifest
from object_store import ObjectStore

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ArtifactError, ConfigError, DataWarning, InputError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.record_format import NULLS
from diskgnn.formats.verification import find_damage, verify_artifact
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import TableColumns
from diskgnn.importers.source_formats.relational_source import RelationalSource
from diskgnn.preparing.repair import repair
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.resources import Resources

pytestmark = pytest.mark.usefixtures("one_thread")

USERS, ORDERS = 700, 3000
QUANTISED = {"users": ("about", "face", "mark"), "orders": ("größe",)}
ENCODE = TableColumns(encode={"users.about": "embedder_of_users:embed", "users.bio": "hash:5"})
CALLS: list[int] = []  # texts of each call of the embedder
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


def embed(texts: list[str]) -> npt.NDArray[np.float64]:
    CALLS.append(len(texts))
    return np.array([[len(text), 1e4 * len(text) ** 2, -7.25] for text in texts])


@pytest.fixture(scope="module", autouse=True)
def embedder() -> Iterator[None]:
    sys.modules["embedder_of_users"] = SimpleNamespace(embed=embed)  # type: ignore[assignment]
    yield
    del sys.modules["embedder_of_users"]


def nullable(random: np.random.Generator, values: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, kind, mask=random.random(len(values)) < 0.1)


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    """Embeddings of several kinds, of which some are not to be quantised; more nullable columns than bits of a byte."""
    random = np.random.default_rng(0)
    face = (3 + random.normal(size=(USERS, 6)) * 10.0 ** np.arange(-3, 3)).astype(np.float32)
    faces = [each if random.random() < 0.9 else None for each in face]
    others = {f"n{number}": nullable(random, random.integers(0, 9, USERS)) for number in range(9)}
    columns = {
        "id": pa.array(np.arange(USERS) * 2), "face": pa.array(faces, pa.list_(pa.float32())),
        "mark": pa.array(list(random.random((USERS, 3)) + 5), pa.list_(pa.float64())),
        "about": nullable(random, [f"text {number}" for number in range(USERS)]),
        "bio": nullable(random, [f"likes {number}" for number in range(USERS)]),
        "codes": pa.array(list(random.integers(-128, 128, (USERS, 3)).astype(np.int8)), pa.list_(pa.int8(), 3)),
        "plan": nullable(random, random.choice(["a", "b", "c"], USERS)), **others,
    }  # fmt: skip
    fields = [pa.field(name, each.type, nullable=name not in ("id", "mark")) for name, each in columns.items()]
    users = pa.table([*columns.values()], schema=pa.schema(fields))
    orders = pa.table({
        "user": random.integers(0, USERS, ORDERS) * 2, "price": random.random(ORDERS),
        "größe": list(random.normal(size=(ORDERS, 2)).astype(np.float32)),
    })  # fmt: skip
    return {"users": users, "orders": orders}


def source(tables: dict[str, pa.Table]) -> RelationalSource:
    def keyed(name: str, fkeys: dict[str, str], pkey: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(df=tables[name], pkey_col=pkey, fkey_col_to_pkey_table=fkeys, time_col=None)

    database = {"users": keyed("users", {}, "id"), "orders": keyed("orders", {"user": "users"})}
    return RelationalSource.of(SimpleNamespace(table_dict=database), {})


def convert(out: Path, tables: dict[str, pa.Table], **given: Any) -> Any:
    return diskgnn.convert(out, source=source(tables), options={"keep_columns": True}, progress=False, **given)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, pa.Table]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    convert(folder / "float32", tables, columns=ENCODE)
    convert(folder / "int8", tables, columns=ENCODE, quantise="int8")
    return {name: folder / name for name in ("float32", "int8")}


def columns_of(graph: Path, node_type: str) -> dict[str, tuple[dict[str, Any], npt.NDArray[Any]]]:
    """Of a .npy of records: what the manifest says of each column, and its values."""
    document = json.loads((graph / "manifest.json").read_text())
    record = next(each["record"] for each in document["config"]["node_types"] if each["name"] == node_type)
    rows = np.load(graph / f"features-{node_type}.npy")
    return {each["name"]: (each, rows[name]) for each, name in zip(record, rows.dtype.names, strict=False)}


def meant(graph: Path, node_type: str) -> dict[str, npt.NDArray[np.float32]]:
    """What codes stand for, by the words of docs/FORMAT.md."""
    scale, zero_point = np.load(graph / f"quantisation-{node_type}.npy")
    first, found = 0, {}
    for name, (said, codes) in columns_of(graph, node_type).items():
        if said.get("quantised"):
            of_column = slice(first, first + said["width"])
            found[name] = (codes.astype(np.float32) - zero_point[of_column]) * scale[of_column]
            first += said["width"]
    assert first == len(scale)
    return found


def test_every_number_is_within_half_a_step(graphs: dict[str, Path]) -> None:
    """Of its dimension, whose 255 steps span all rows; null is zeros. All other columns are what they were."""
    for node_type, quantised in QUANTISED.items():
        before, after = (columns_of(graphs[name], node_type) for name in ("float32", "int8"))
        assert list(before) == list(after)
        found = meant(graphs["int8"], node_type)
        assert tuple(sorted(found)) == quantised
        for name, (said, values) in before.items():
            if name not in found:
                assert values.tobytes() == after[name][1].tobytes(), name
                assert {**said, "offset": 0} == {**after[name][0], "offset": 0}
                continue
            exact = values.astype(np.float64)
            assert after[name][0]["dtype"] == "int8"
            if "null_bit" in said:
                assert (found[name][(exact == 0).all(axis=1)] == 0).all()
            low, high = exact.min(axis=0), exact.max(axis=0)
            if "null_bit" in said:
                low, high = np.minimum(low, 0), np.maximum(high, 0)
            step = (high - low) / 255
            assert (np.abs(found[name] - exact) <= 0.5001 * step + 1e-6 * np.abs(exact)).all(), name
        bits = [np.load(graphs[name] / f"features-{node_type}.npy")[NULLS] for name in ("float32", "int8")]
        num_nullable = sum("null_bit" in said for said, _ in before.values())
        one, other = (np.unpackbits(each, axis=1, bitorder="little")[:, :num_nullable] for each in bits)
        np.testing.assert_array_equal(one, other)
        assert num_nullable == (14 if node_type == "users" else 2)
    verify_artifact(graphs["int8"])


def test_what_is_told_of_it(graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path) -> None:
    report = convert(tmp_path / "graph", tables, columns=ENCODE, quantise="int8")
    assert open_artifact(tmp_path / "graph").digest == open_artifact(graphs["int8"]).digest
    exact, found = columns_of(graphs["float32"], "users"), meant(graphs["int8"], "users")
    errors = {
        f"{name}[{number}]": np.abs(column - given).mean() / given.std()
        for name, values in found.items()
        for number, (column, given) in enumerate(zip(values.T, exact[name][1].astype(np.float64).T, strict=True))
        if given.std()
    }
    worst = max(errors, key=errors.__getitem__)
    assert report.details["worst_column of users"] == worst
    assert report.details["worst_column_mean_error_in_deviations of users"] == pytest.approx(errors[worst])
    kept = describe(graphs["int8"]).facts["kept_columns"]
    assert {(each["of"], each["name"]) for each in kept if each["quantised"]} == {
        (name, column) for name, columns in QUANTISED.items() for column in columns
    }
    told = run("inspect", graphs["int8"]).stdout
    assert "quantised" in told
    assert "quantised" not in run("inspect", graphs["float32"]).stdout
    sizes = {name: np.load(path / "features-users.npy", mmap_mode="r").itemsize for name, path in graphs.items()}
    assert sizes["float32"] - sizes["int8"] == 3 * 12  # a byte in place of four, of 12 numbers


TARGET = NodeTarget(
    "users", {"train": np.arange(0, USERS, 2), "valid": np.arange(1, USERS, 9)},
    labels={"train": np.arange(USERS // 2) % 3, "valid": np.arange(len(range(1, USERS, 9))) % 3},
)  # fmt: skip
DRAWING: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 64, "target": TARGET, "seed": 3}
CACHES = {"cpu_cache": "20%", "static_cache": "10%"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, graphs: dict[str, Path]) -> Path:
    path = tmp_path_factory.mktemp("packed") / "packed"
    diskgnn.prepare(graphs["int8"], path, **DRAWING, **CACHES, keep_input_nodes=True, progress=False)
    return path


def x_of(x: torch.Tensor, graph: Path, node_type: str, column: str) -> torch.Tensor:
    """The features of x that a column became."""
    first = 0
    for each in Graph.open(graph).config.known_columns[node_type] or ():
        if each.name == column:
            return x[:, first : first + each.width]
        first += each.width
    raise KeyError(column)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_minibatches_have_what_codes_mean(graphs: dict[str, Path], packed: Path, device: str) -> None:
    """Through all tiers, as columns and in x."""
    expected, num_rows = {name: meant(graphs["int8"], name) for name in QUANTISED}, 0
    with diskgnn.Loader(packed, "train", device=device) as loader:
        schema = {name: {each.name: each for each in table} for name, table in loader.schema.tables}
        for batch in loader.epoch(0):
            for name, columns in expected.items():
                nodes = batch.input_nodes[name].cpu().numpy()
                num_rows += len(nodes)
                for column, values in columns.items():
                    found = batch.columns[name][column]
                    assert (found.dtype, schema[name][column].dtype) == (torch.float32, "float32")
                    np.testing.assert_array_equal(found.cpu(), values[nodes])
                    np.testing.assert_array_equal(
                        x_of(batch.x[name], graphs["int8"], name, column).cpu(), values[nodes]
                    )
            assert {each: batch.columns["users"][each].dtype for each in ("bio", "codes")} == {
                "bio": torch.int8, "codes": torch.int8
            }  # fmt: skip
        assert loader.sequence.largest_minibatch().columns["users"]["face"].shape[1] == 6
    assert num_rows > USERS


def test_all_ways_of_reading_agree(graphs: dict[str, Path], packed: Path, tmp_path: Path) -> None:
    fresh = diskgnn.FreshEpochs(graphs["int8"], tmp_path / "fresh", cpu_cache="20%", **DRAWING)
    with fresh, diskgnn.Loader(packed, "train") as loader, InMemory(graphs["int8"], **DRAWING) as in_memory:
        assert fresh.schema == loader.schema
        for found, other, expected in zip(fresh.epoch(0), in_memory.epoch(0), loader.epoch(0), strict=True):
            for name, x in expected.x.items():
                assert torch.equal(found.x[name], x)
                assert torch.equal(other.x[name], x)
                for column, values in expected.columns[name].items():
                    assert torch.equal(found.columns[name][column], values)
    (fewer,) = (each for each in diskgnn.estimate(graphs["int8"], **CACHES, **DRAWING).settings[0].row_sets
                if each.name == "users")  # fmt: skip
    assert fewer.row_bytes == np.load(graphs["int8"] / "features-users.npy", mmap_mode="r").itemsize


def test_graphs_and_packed_directories_may_lie_on_stores(
    graphs: dict[str, Path], packed: Path, store: ObjectStore, tmp_path: Path
) -> None:
    there = store.upload(graphs["int8"], f"{tmp_path.name}/graph")
    diskgnn.fetch(there, tmp_path / "back")
    verify_artifact(tmp_path / "back")
    expected, nodes = meant(graphs["int8"], "users"), Graph.open(there).nodes["users"]
    assert nodes.feature_file.quantisation.to_array().tolist() == np.load(
        graphs["int8"] / "quantisation-users.npy"
    ).tolist()  # fmt: skip
    with diskgnn.Loader(store.upload(packed, f"{tmp_path.name}/packed"), "valid", stream=True) as loader:
        for batch in loader.epoch(0):
            for name, values in expected.items():
                np.testing.assert_array_equal(batch.columns["users"][name], values[batch.input_nodes["users"]])


def test_frames_of_torch_frame_have_them(graphs: dict[str, Path], packed: Path) -> None:
    torch_frame = pytest.importorskip("torch_frame", reason="pip install pytorch-frame")
    pytest.importorskip("torch_geometric")
    expected, users = meant(graphs["int8"], "users"), Graph.open(graphs["int8"]).nodes["users"]

    def check(frame: Any, nodes: npt.NDArray[np.int64]) -> None:
        names, values = frame.col_names_dict[torch_frame.embedding], frame.feat_dict[torch_frame.embedding]
        for name, columns in expected.items():
            np.testing.assert_array_equal(values[:, names.index(name)].values, columns[nodes])

    rows = np.array([5, 3, 5, 600])
    check(users.tensor_frame(users.features[rows]), rows)
    with diskgnn.Loader(packed, "valid") as loader:
        for batch in loader.epoch(0):
            check(batch.to_pyg()["users"].tf, batch.input_nodes["users"].numpy())


def test_columns_that_are_left_out_take_what_they_mean_along(graphs: dict[str, Path], tmp_path: Path) -> None:
    prepare = partial(diskgnn.prepare, graphs["int8"], **DRAWING, **CACHES, keep_input_nodes=True, progress=False)
    prepare(tmp_path / "some", without=["users.face", "users.n3"])
    expected = meant(graphs["int8"], "users")
    whole, cut = (np.load(path / "quantisation-users.npy") for path in (graphs["int8"], tmp_path / "some"))
    np.testing.assert_array_equal(cut, whole[:, [0, 1, 2, 9, 10, 11]])  # about, face, mark
    with diskgnn.Loader(tmp_path / "some", "train") as loader:
        for batch in loader.epoch(0):
            nodes = batch.input_nodes["users"].numpy()
            assert "face" not in batch.columns["users"]
            for name in ("about", "mark"):
                np.testing.assert_array_equal(batch.columns["users"][name], expected[name][nodes])
    left = Graph.open(graphs["int8"]).without(["users.mark"]).nodes["users"]
    found = left.feature_file.view.decode(left.feature_file.rows.as_tensor(left.feature_file.kept(
        np.array(left.features[:50]).view(np.uint8).reshape(-1)
    )))  # fmt: skip
    np.testing.assert_array_equal(found.columns["face"], expected["face"][:50])
    prepare(tmp_path / "none", without=[f"users.{name}" for name in QUANTISED["users"]])
    assert {name for name in open_artifact(tmp_path / "none").files if "quantisation" in name} == {
        "quantisation-orders.npy"
    }
    with diskgnn.Loader(tmp_path / "none", "train") as loader:
        assert sum(len(batch.seeds) for batch in loader.epoch(0)) == USERS // 2


def later(tables: dict[str, pa.Table]) -> tuple[dict[str, pa.Table], npt.NDArray[np.int64]]:
    """The same users in another order, and which these are."""
    chosen = np.random.default_rng(5).permutation(USERS)
    return {**tables, "users": tables["users"].take(pa.array(chosen))}, chosen


def test_rows_of_later_have_the_steps_of_the_graph_named(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """To the byte, in one pass; and a model that was trained on one is asked about the other."""
    other, chosen = later(tables)
    CALLS.clear()
    convert(tmp_path / "later", other, encoding_of=graphs["int8"])
    assert sum(CALLS) == USERS
    convert(tmp_path / "said", other, encoding_of=graphs["int8"], quantise="int8")
    first, second = (Graph.open(path) for path in (graphs["int8"], tmp_path / "later"))
    assert open_artifact(tmp_path / "said").files == second.manifest.files
    np.testing.assert_array_equal(second.nodes["users"].features, first.nodes["users"].features[chosen])
    for name in QUANTISED:
        assert second.nodes[name].config == first.nodes[name].config
        assert (tmp_path / "later" / f"quantisation-{name}.npy").read_bytes() == (
            graphs["int8"] / f"quantisation-{name}.npy"
        ).read_bytes()
    diskgnn.prepare(graphs["int8"], tmp_path / "packed", **DRAWING, cpu_cache=0, progress=False)
    diskgnn.train(tmp_path / "packed", model="relational", hidden=8, epochs=1, checkpoint=tmp_path / "run",
                  progress=False)  # fmt: skip
    for name, graph in {"first": graphs["int8"], "second": tmp_path / "later"}.items():
        diskgnn.predict(graph, tmp_path / f"{name}.npy", tmp_path / "run", nodes=np.arange(USERS), fanouts=[-1, -1],
                        progress=False)  # fmt: skip
    predicted = [np.load(tmp_path / f"{name}.npy") for name in ("first", "second")]
    np.testing.assert_allclose(predicted[1], predicted[0][chosen], rtol=1e-4, atol=1e-5)


def test_rows_of_later_may_be_without_some(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    other = {**tables, "users": tables["users"].drop_columns("face")}
    convert(tmp_path / "later", other, encoding_of=graphs["int8"], exclude=["users.face"])
    expected, found = meant(graphs["int8"], "users"), meant(tmp_path / "later", "users")
    assert sorted(found) == ["about", "mark"]
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name])


def test_numbers_beyond_the_graph_named_become_the_nearest(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """And are counted; those of a graph that is not quantised have steps of their own."""
    users = tables["users"]
    marks = np.array(users["mark"].to_pylist())
    marks[:7, 1] += 100
    marks[9:12, 2] -= 100
    given = {**tables, "users": users.set_column(
        users.schema.get_field_index("mark"), users.schema.field("mark"), pa.array(list(marks), pa.list_(pa.float64()))
    )}  # fmt: skip
    with pytest.warns(DataWarning, match=rf"10 of {3 * USERS} numbers of 'mark' are beyond those that .*int8 was quan"):
        convert(tmp_path / "later", given, encoding_of=graphs["int8"])
    codes = columns_of(tmp_path / "later", "users")["mark"][1]
    assert (codes[:7, 1] == 127).all()
    assert (codes[9:12, 2] == -128).all()
    np.testing.assert_array_equal(codes[12:], columns_of(graphs["int8"], "users")["mark"][1][12:])
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        convert(tmp_path / "own", given, encoding_of=graphs["float32"], quantise="int8")
    step = np.ptp(marks, axis=0) / 255
    assert (np.abs(meant(tmp_path / "own", "users")["mark"] - marks) <= 0.5001 * step + 1e-5).all()


def test_what_cannot_be_quantised(graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path) -> None:
    users = tables["users"]
    faces = [[-np.inf] * 6 if number == 600 else each for number, each in enumerate(users["face"].to_pylist())]
    broken = {**tables, "users": users.set_column(
        users.schema.get_field_index("face"), "face", pa.array(faces, pa.list_(pa.float32()))
    )}  # fmt: skip
    with pytest.raises(InputError, match=r"found -inf in row 600, column face\[0\]; `quantise` expects finite numbers"):
        convert(tmp_path / "out", broken, columns=ENCODE, quantise="int8")
    with pytest.raises(InputError, match=r"column face\[0\]; the embeddings of .*int8 are int8, of finite numbers"):
        convert(tmp_path / "out", broken, encoding_of=graphs["int8"])
    for dtype in ("int4", "float16", "bfloat16"):
        with pytest.raises(ConfigError, match=f"quantise: expected int8 for tables that keep .*found '{dtype}': embed"):
            convert(tmp_path / "out", tables, columns=ENCODE, quantise=dtype)
    plain = {"users": users.drop_columns(["about", "face", "mark"]), "orders": tables["orders"].drop_columns("größe")}
    with pytest.raises(ConfigError, match=r"quantise: expected a column of embeddings in float32, .*found none"):
        convert(tmp_path / "out", plain, columns=TableColumns(encode={"users.bio": "hash:5"}), quantise="int8")


@pytest.mark.parametrize("meaning", [None, np.ones((2, 11), np.float32), np.zeros((2, 12), np.float32)])
def test_codes_that_mean_nothing_are_refused(
    graphs: dict[str, Path], tmp_path: Path, meaning: npt.NDArray[Any] | None
) -> None:
    """Wherever a directory comes from: without what codes mean, of another width, or with steps of nothing."""
    copy = shutil.copytree(graphs["int8"], tmp_path / "copy")
    document = json.loads((copy / "manifest.json").read_text())
    name = "quantisation-users.npy"
    if meaning is None:
        del document["files"][name]
    else:
        np.save(copy / name, meaning)
        write_manifest(copy, document)
    write_manifest(copy, document)
    with pytest.raises(ArtifactError, match=r"features of record do not fit its files|quantisation-users\.npy"):
        diskgnn.prepare(copy, tmp_path / "packed", **DRAWING, cpu_cache=0, progress=False)


def test_killed_conversions_go_on_and_damage_is_repaired(
    tables: dict[str, pa.Table], packed: Path, graphs: dict[str, Path], tmp_path: Path
) -> None:
    """With the same bytes, wherever they were killed, and whatever was damaged."""
    shop = tmp_path / "shop"
    shop.mkdir()
    for name, table in tables.items():
        pq.write_table(table, shop / f"{name}.parquet", row_group_size=100)
    (shop / "relational.yaml").write_text(
        "tables:\n  users: {file: users.parquet, pkey: id}\n  orders: {file: orders.parquet, fkeys: {user: users}}\n"
    )
    making = partial(diskgnn.convert, source=shop, options={"keep_columns": True}, quantise="int8", columns=ENCODE,
                     progress=False)  # fmt: skip
    making(tmp_path / "whole")
    killed = 0
    for point, after in [*(("work.piece", after) for after in range(0, 30, 2)), ("artifact.sync", 1)]:
        with faults.armed(point, KeyboardInterrupt(), after=after), faults.pretending("unit.bytes", 1):
            try:
                making(tmp_path / "out", overwrite=True)
            except KeyboardInterrupt:
                killed += 1
                continue
        assert open_artifact(tmp_path / "out").digest == open_artifact(tmp_path / "whole").digest
    making(tmp_path / "out", overwrite=True)
    assert open_artifact(tmp_path / "out").digest == open_artifact(tmp_path / "whole").digest
    assert killed > 4
    copy = shutil.copytree(packed, tmp_path / "packed")
    for name in [each for each in open_artifact(copy).files if each.endswith((".bin", "users.npy"))]:
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole[:-20] + bytes(byte ^ 1 for byte in whole[-20:]))
    repair(copy, graph=graphs["int8"], resources=Resources.of("auto", 1))
    assert find_damage(copy)[1] == []


def test_a_killed_run_goes_on_with_no_other_version_of_a_function(tmp_path: Path) -> None:
    """Neither with the steps that it found, nor with the rows that it wrote."""
    rows = 60_000
    pq.write_table(pa.table({"id": np.arange(rows), "text": ["x"] * rows}), tmp_path / "notes.parquet")
    pq.write_table(pa.table({"note": [0, 1]}), tmp_path / "marks.parquet")
    (tmp_path / "relational.yaml").write_text(
        "tables:\n  notes: {file: notes.parquet, pkey: id}\n  marks: {file: marks.parquet, fkeys: {note: notes}}\n"
    )
    calls: list[int] = []

    def numbered(texts: list[str]) -> npt.NDArray[np.float64]:
        calls.append(len(texts))
        if numbered.version == "1" and sum(calls) > rows + rows // 2:
            raise KeyboardInterrupt
        return np.full((len(texts), 64), float(numbered.version))

    numbered.version = "1"
    sys.modules["versions_of_notes"] = SimpleNamespace(embed=numbered)  # type: ignore[assignment]
    making = partial(diskgnn.convert, tmp_path / "graph", source=tmp_path, format="relational", quantise="int8",
                     options={"keep_columns": True}, progress=False,
                     columns=TableColumns(encode={"notes.text": "versions_of_notes:embed"}))  # fmt: skip
    with faults.pretending("unit.bytes", 1), pytest.raises(KeyboardInterrupt):
        making()
    numbered.version = "2"
    making()
    del sys.modules["versions_of_notes"]
    np.testing.assert_allclose(meant(tmp_path / "graph", "notes")["text"], 2, rtol=1e-6)
