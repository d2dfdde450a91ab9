"""The log of a shuffle: a link that says something else, however plausible, is known."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from diskgnn.files.disk_space import UNLIMITED
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.shuffle import Shuffle, piece_buffer

LINK_BYTES, PIECE_BYTES = 20, 40
PIECES = np.arange(40, dtype=np.uint8).reshape(4, 10).repeat(4, axis=1)  # [4, 40]: of partitions 0, 1, 0, 1


def place(number: int) -> int:
    return number * (LINK_BYTES + PIECE_BYTES)


@pytest.fixture
def shuffle(tmp_path: Path) -> Shuffle:
    shuffle = Shuffle("stage.step", tmp_path / "log", 2, UNLIMITED)
    shuffle.open()
    for number, piece in enumerate(PIECES):
        shuffle.add(number % 2, piece)
    shuffle.close()
    assert (tmp_path / "log").stat().st_size == place(4)
    for partition in (0, 1):
        expected = PIECES[partition::2].ravel()
        np.testing.assert_array_equal(shuffle.content(partition, np.uint8), expected)
        np.testing.assert_array_equal(np.concatenate(list(shuffle.pieces(partition))), expected)
    return shuffle


@pytest.mark.parametrize(
    ("before", "num_bytes"),
    [
        (place(1), PIECE_BYTES),  # a whole piece of another partition, as long as its own
        (-1, PIECE_BYTES),  # there is none before
        (place(2), PIECE_BYTES),  # itself, again and again
        (place(3), PIECE_BYTES),  # behind it
        (-2, PIECE_BYTES),
        (place(0) + 1, PIECE_BYTES),
        (place(0), PIECE_BYTES - 1),
        (place(0), PIECE_BYTES + 1),
        (place(0), 1 << 40),
        (place(0), -1),
    ],
)
def test_a_link_that_says_something_else_is_known(shuffle: Shuffle, before: int, num_bytes: int) -> None:
    assert shuffle.path is not None
    with shuffle.path.open("r+b") as log:
        log.seek(place(2))
        log.write(struct.pack("<qq", before, num_bytes))
    with pytest.raises(DamagedStepError, match="not what was written"):
        shuffle.content(0, np.uint8)
    with pytest.raises(DamagedStepError, match="not what was written"):
        list(shuffle.pieces(0))
    np.testing.assert_array_equal(shuffle.content(1, np.uint8), PIECES[1::2].ravel())


def test_a_log_that_lies_in_the_place_of_another_one_is_known(tmp_path: Path) -> None:
    """Both are whole, and as long, with the same links: those of the two ends of edges may be."""
    both = [Shuffle("stage.step", tmp_path / name, 1, UNLIMITED) for name in ("one", "two")]
    for number, shuffle in enumerate(both):
        shuffle.open()
        shuffle.add(0, PIECES[number])
        shuffle.close()
    (tmp_path / "one").rename(tmp_path / "other")
    (tmp_path / "two").rename(tmp_path / "one")
    (tmp_path / "other").rename(tmp_path / "two")
    for shuffle in both:
        with pytest.raises(DamagedStepError, match="is not what was written from byte 20 on; run the same command"):
            shuffle.content(0, np.uint8)


def test_places_that_are_kept_are_those_of_the_links(tmp_path: Path) -> None:
    """Also where a killed run had written some of the pieces, of which only the links say where they are."""
    begun = Shuffle("stage.step", tmp_path / "log", 3, UNLIMITED)
    begun.open()
    begun.add(0, PIECES[0])
    state = begun.state()
    begun.close()

    shuffle = Shuffle("stage.step", tmp_path / "log", 3, UNLIMITED, keeps_places=True)
    shuffle.open(state)
    for partition, piece in ((1, PIECES[1]), (0, PIECES[2]), (1, PIECES[3])):
        shuffle.add(partition, piece)
    shuffle.close()
    linked = Shuffle("stage.step", tmp_path / "log", 3, UNLIMITED)
    linked.open(shuffle.state(), for_more=False)
    buffers = [piece_buffer(PIECE_BYTES, 2) for _ in range(2)]
    for _ in range(2):
        assert [shuffle.places(partition) for partition in range(3)] == [linked.places(each) for each in range(3)]
        for partition in (0, 1):
            found = [piece.copy() for piece in shuffle.pieces(partition, buffers)]
            np.testing.assert_array_equal(found, PIECES[partition::2])
    assert list(shuffle.pieces(2, buffers)) == []
    together = [shuffle.places(1)[1], shuffle.places(0)[0]]
    np.testing.assert_array_equal([piece.copy() for piece in shuffle.read(together, buffers[0])], PIECES[[3, 0]])

    with (tmp_path / "log").open("r+b") as log:
        log.seek(together[0].offset)
        log.write(b"damage")
    with pytest.raises(DamagedStepError, match="not what was written"):
        list(shuffle.read(together, buffers[0]))
