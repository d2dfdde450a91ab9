"""A bad disk: files that end early or have flipped bits are noticed and named."""

import os

import numpy as np
import pytest
from packed_directories import ENGINES, batches_of, flip, key

from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.packed import Packed
from diskgnn.loading.loader import Loader

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep_bytes", [0, 4096, 5000])
def test_a_file_truncated_after_opening(mutable, engine, keep_bytes):
    with Loader(mutable, engine=engine) as loader:
        list(loader.epoch(1))
        os.truncate(mutable / "train.bin", keep_bytes)
        with pytest.raises(ArtifactError, match="ends early"):
            list(loader.epoch(0))
        with pytest.raises(ArtifactError, match="ends early"):  # again, not a hang
            list(loader.epoch(1))
    with pytest.raises(ArtifactError, match="expected"):
        Loader(mutable)


def test_a_flipped_bit_in_a_header_is_always_noticed(mutable):
    index = Packed.open(mutable).index("train")
    record = index.extents[3]
    for offset in (0, int(record["header_bytes"]) // 2, int(index.rows[3, 0]["addresses_offset"]) + 1):
        flip(mutable / "train.bin", int(record["offset"]) + offset)
        with Loader(mutable) as loader:
            batches = loader.epoch(0)
            for _ in range(3):
                next(batches)
            with pytest.raises(ArtifactError, match=r"extent 3 .* is damaged.*verify"):
                next(batches)
            with pytest.raises(StopIteration):
                next(batches)
            assert loader.state_dict()["batch"] == 3
            with pytest.raises(ArtifactError, match="damaged"):  # and again
                list(loader.epoch(0))
        flip(mutable / "train.bin", int(record["offset"]) + offset)


def test_a_flipped_bit_in_a_row_is_noticed_unless_told_not_to_look(mutable, whole):
    index = Packed.open(mutable).index("train")
    number = int(np.argmax(index.rows["num_rows"][:, 0] > 0))
    flip(mutable / "train.bin", int(index.extents["offset"][number] + index.rows["rows_offset"][number, 0]) + 5)
    with Loader(mutable) as loader, pytest.raises(ArtifactError, match=rf"extent {number} .*rows"):
        list(loader.epoch(0))
    with Loader(mutable, verify=False) as loader:
        assert [key(batch) for batch in loader.epoch(0)] != batches_of(whole, 0)


@pytest.mark.parametrize("name", ["static-node.npy", "train-initial-node.npy"])
def test_a_flipped_bit_in_rows_kept_in_memory_is_always_noticed(mutable, name):
    flip(mutable / name, 128 + 7)
    with Loader(mutable, verify=False) as loader, pytest.raises(ArtifactError, match=name):
        list(loader.epoch(0))


def test_a_flipped_bit_in_rows_restored_from_extents_is_noticed(mutable):
    index = Packed.open(mutable).index("train")
    admitting = np.flatnonzero(index.rows["num_admissions"][:, 0] > 0)
    extent, record = index.extents[admitting[0]], index.rows[admitting[0], 0]
    for part, offset in (("rows", record["rows_offset"]), ("header", record["admissions_offset"])):
        flip(mutable / "train.bin", int(extent["offset"] + offset) + 1)
        with Loader(mutable) as loader, pytest.raises(ArtifactError, match=part):
            list(loader.epoch(1))
        flip(mutable / "train.bin", int(extent["offset"] + offset) + 1)


@pytest.mark.parametrize("name", ["train-wrap-node.npy", "train-index.npy", "train-rows.npy"])
def test_a_flipped_bit_in_what_says_where_rows_are_is_always_noticed(mutable, name):
    first, size = npy_data_offset(mutable / name), (mutable / name).stat().st_size
    for offset in range(first, size, max(1, (size - first) // 7)):
        flip(mutable / name, offset)
        with pytest.raises(ArtifactError, match="damaged"), Loader(mutable) as loader:
            next(loader.epoch(0))
        flip(mutable / name, offset)
    with Loader(mutable) as loader:
        next(loader.epoch(0))


@pytest.mark.parametrize(
    "name", ["train-index.npy", "train-rows.npy", "train-wrap-node.npy", "train-initial-node.npy", "static-node.npy"]
)
def test_another_file_in_its_place_is_noticed(mutable, name):
    np.save(mutable / name, np.zeros(3, np.int32))
    with pytest.raises(ArtifactError, match=name):
        Loader(mutable)


def test_no_flipped_bit_is_silent(mutable, packed):
    """Any bit of any file: what is read names the file, or is what it was."""
    whole = everything(packed)
    random, found, names = np.random.default_rng(0), 0, sorted(path.name for path in mutable.iterdir())
    for _ in range(6):
        for name in names:
            flip(mutable / name, at := int(random.integers((mutable / name).stat().st_size)))
            try:
                same = everything(mutable) == whole
            except ArtifactError as error:
                assert name in str(error) or name == MANIFEST  # noqa: PT017
                found += 1
            else:
                assert same, (name, at)
                assert name.endswith(".bin"), (name, at)  # the padding of extents
            flip(mutable / name, at)
    assert found > 4 * len(names)
    assert everything(mutable) == whole


def everything(path):
    """Keys of all minibatches: of each split, and of the train split after a seek into the middle of its cpu tier."""
    found = []
    for split in ("train", "valid"):
        with Loader(path, split) as loader:
            found += [key(batch) for batch in loader.epoch(0)]
    with Loader(path) as loader:
        return found + [key(batch) for batch in loader.epoch(1)]
