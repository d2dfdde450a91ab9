"""`--overwrite` beside an open directory: its readers go on with the files that they opened."""

import shutil

import pytest
from graphs import prepare_graph
from packed_directories import key

from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.formats.packed import Packed
from diskgnn.loading.loader import Loader
from diskgnn.packing.pack import pack
from diskgnn.sampling.sample import sample

CACHES = {"cpu_cache": "20%", "static_cache": "5%", "eval_cpu_cache": "10%"}


@pytest.fixture
def replaced(graph, tmp_path):
    """(A packed directory of 48 minibatches, a function that replaces it by others, a copy of what it is now.)"""
    packed = prepare_graph(graph, tmp_path, epochs=6, **CACHES)
    sample(graph, tmp_path / "others", fanouts=(3, 2), batch_size=8, epochs=6, seed=99)

    def replace():
        pack(graph, tmp_path / "others", packed, overwrite=True, keep_input_nodes=True, **CACHES)

    return packed, replace, shutil.copytree(packed, tmp_path / "copy")


def minibatches_of(loader, epochs):
    return [key(batch) for epoch in epochs for batch in loader.epoch(epoch)]


def test_open_loaders_go_on_with_what_they_opened(replaced):
    packed, replace, copy = replaced
    seeking = (3, 0, 1, 2, 4, 5)
    with Loader(packed) as started, Loader(packed) as opened, Loader(copy) as expected:
        next(started.epoch(0))
        replace()
        before = minibatches_of(expected, seeking)
        assert len(before) == 48
        assert minibatches_of(started, seeking) == before
        assert minibatches_of(opened, seeking) == before
        assert not opened.sequence.largest_minibatch().x.any()
    with Loader(packed) as new:
        assert all(batch not in before for batch in minibatches_of(new, seeking))


def test_all_splits_of_an_opened_directory_are_of_one_preparation(replaced):
    packed, replace, copy = replaced
    opened = Packed.open(packed)
    replace()
    for split in ("train", "valid"):
        with Loader(opened, split) as loader, Loader(copy, split) as expected:
            assert minibatches_of(loader, (0,)) == minibatches_of(expected, (0,))


def test_a_directory_that_is_replaced_while_it_is_opened(replaced):
    packed, replace, _ = replaced
    before, replacing = Packed.open(packed).digest, iter([replace])

    def replace_once():
        next(replacing, lambda: None)()

    with faults.armed("artifact.pin", replace_once):
        opened = Packed.open(packed)
    assert opened.digest == Packed.open(packed).digest != before
    with Loader(opened) as loader, Loader(packed) as expected:
        assert minibatches_of(loader, (0, 4)) == minibatches_of(expected, (0, 4))


def test_messages_name_files_and_not_descriptors(replaced):
    packed, _, _ = replaced
    with Loader(packed) as loader:
        list(loader.epoch(5))
        with (packed / "train.bin").open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(ArtifactError, match=r"packed/train\.bin ends early"):
            list(loader.epoch(0))


def test_a_file_that_cannot_be_opened_is_an_error(replaced):
    packed, _, _ = replaced
    with (
        faults.armed("artifact.pin", (packed / "valid.bin").unlink),
        pytest.raises(ArtifactError, match=r"valid\.bin"),
    ):
        Packed.open(packed)
