"""A stranger's packed directory: everything fits its checksums, and nothing is what it should be."""

import shutil

import numpy as np
import pytest
from packed_directories import forge

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.formats import extents
from diskgnn.formats.manifest import open_artifact
from diskgnn.loading.loader import Loader

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


FIELDS = [("index", name) for name in extents.EXTENT_DTYPE.names] + [
    ("rows", name) for name in extents.ROWS_DTYPE.names
]
HOSTILE = (-1, -(1 << 63), (1 << 63) - 1, 1 << 31, 1 << 40, 12345)


@pytest.mark.parametrize(("file", "field"), FIELDS)
def test_hostile_index_values_are_refused(packed, tmp_path, file, field):
    path = shutil.copytree(packed, tmp_path / "packed")
    for value in HOSTILE:
        index = open_artifact(path).array(f"train-{file}.npy", mmap=False)
        index[field][2] = value
        forged = forge(path, **{f"train_{file}": index})
        with pytest.raises((ArtifactError, OSError)), Loader(forged) as loader:
            list(loader.epoch(0))
        shutil.rmtree(forged)


def test_an_index_of_nothing_is_refused(packed, tmp_path):
    path = shutil.copytree(packed, tmp_path / "packed")
    index = open_artifact(path).array("train-index.npy", mmap=False)
    forged = forge(path, train_index=np.zeros_like(index), train=b"")
    with pytest.raises(ArtifactError, match="index"), Loader(forged) as loader:
        list(loader.epoch(0))


@pytest.mark.parametrize("column", ["addresses", "admissions"])
@pytest.mark.parametrize("value", [-1, -(1 << 31), (1 << 31) - 1, 150, 60, 0])
@pytest.mark.parametrize("epoch", [0, 1])
def test_hostile_addresses_and_admissions_never_crash(packed, tmp_path, column, value, epoch):
    """The first value of each header is replaced and its checksum made anew; epoch 1 restores from these extents."""
    path = shutil.copytree(packed, tmp_path / "packed")
    index, rows = (open_artifact(path).array(f"train-{file}.npy", mmap=False) for file in ("index", "rows"))
    data = bytearray((path / "train.bin").read_bytes())
    for extent, record in zip(index, rows[:, 0], strict=True):
        if column == "addresses" or record["num_admissions"] > 0:
            start = int(extent["offset"])
            at = start + int(record[f"{column}_offset"])
            data[at : at + 4] = np.int32(value).tobytes()
            extent["header_crc32c"] = crc32c(bytes(data[start : start + int(extent["header_bytes"])]))
    forged = forge(path, train_index=index, train=bytes(data))
    with Loader(forged) as loader:
        try:
            batches = list(loader.epoch(epoch))
        except ArtifactError as error:
            assert "damaged" in str(error)  # noqa: PT017
        else:
            assert value in (0, 60)  # a row that is there, only not the right one
            assert len(batches) == len(loader)


def test_headers_that_are_no_arrow_messages_are_refused(packed, tmp_path):
    path = shutil.copytree(packed, tmp_path / "packed")
    index, rows = (open_artifact(path).array(f"train-{file}.npy", mmap=False) for file in ("index", "rows"))
    whole = (path / "train.bin").read_bytes()
    header_bytes = int(index[0]["header_bytes"])
    body = min(int(rows[0, 0]["addresses_offset"]), int(rows[0, 0]["admissions_offset"]) or header_bytes)
    random = np.random.default_rng(0)
    refused = 0
    for trial in range(25):
        data = bytearray(whole)
        if trial == 0:
            data[:body] = bytes(body)
        for position in random.integers(0, min(body, 900), 1 + trial % 4):
            data[position] = random.integers(0, 256)
        index[0]["header_crc32c"] = crc32c(bytes(data[:header_bytes]))
        forged = forge(path, train_index=index, train=bytes(data))
        with Loader(forged) as loader:
            try:
                next(loader.epoch(0))
            except ArtifactError:
                refused += 1
        shutil.rmtree(forged)
    assert refused > 0


@pytest.mark.parametrize(
    ("config", "arrays"),
    [
        ({"row_bytes": 1 << 40}, {}),
        ({"row_bytes": 0, "feature_width": 0}, {}),
        ({"feature_width": 6}, {}),
        ({"num_static": 1 << 40}, {}),
        ({"num_static": -1}, {}),
        ({"feature_dtype": "int8"}, {}),
        ({"node_type": "nobody"}, {}),
        ({}, {"train_wrap_node": np.array([[0]], np.int32)}),
        ({}, {"train_wrap_node": np.arange(3, dtype=np.int32)}),
        ({}, {"train_wrap_node": np.arange(40, dtype=np.int64)}),
        ({}, {"train_wrap_node": np.full(40, 40, np.int32)}),
        ({}, {"train_wrap_node": np.full(40, -1, np.int32)}),
        ({}, {"train_index": np.zeros(3, np.int64)}),
    ],
)
def test_hostile_numbers_in_the_manifest_are_refused(packed, tmp_path, config, arrays):
    path = shutil.copytree(packed, tmp_path / "packed")
    (row_set,) = open_artifact(path).config["row_sets"]
    config = {"row_sets": [row_set | config]} if config else {}
    assert len(open_artifact(path).array("train-wrap-node.npy")) == 40
    forged = forge(path, config, **arrays)
    with pytest.raises(ArtifactError), Loader(forged) as loader:
        list(loader.epoch(0))
