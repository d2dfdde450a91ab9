"""RelBench 3's API over tables on disk: frames and statistics beside its own, and batches beside RelBench 2's."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_frame")
pytest.importorskip("relbench")

from frames_beside import assert_same_batch, assert_same_frame, assert_same_statistics
from relbench.modeling.graph import get_link_train_table_input, get_node_train_table_input
from relbench3 import called
from relbench_shop import Churn, Reviewed, Shop, write_folder
from shop_columns import KINDS, Hashed, entity_batches, recommendation_batches
from torch_frame.config import TextEmbedderConfig

from diskgnn.relbench import make_pkey_fkey_graph

# What the tasks must not see: of a table all columns, or all of a stype.
HIDDEN = {
    "churn": [["review", "rating"]],
    "reviewed": [["product", column] for column in ("price", "title", "tags", "grade", "shape")],
}


@pytest.fixture(scope="module")
def shop():
    return Shop()


@pytest.fixture(scope="module")
def found(shop, tmp_path_factory):
    """What loops of RelBench 3 see."""
    folder = tmp_path_factory.mktemp("relbench3")
    write_folder(shop, folder / "shop", HIDDEN)
    found = called("run_loops", folder / "shop", folder / "cache")
    assert found["version"].startswith("3.")
    return found


@pytest.mark.parametrize("task", ["churn", "reviewed"])
def test_frames_and_statistics_are_those_of_its_own_graph(found, task):
    assert_same_statistics(*found[task]["statistics"])
    for table, (frame, expected) in found[task]["frames"].items():
        assert_same_frame(frame, expected)
        assert not {(table, column) for listed in frame.col_names_dict.values() for column in listed} & {
            tuple(each) for each in HIDDEN[task]
        }
    assert [*found["reviewed"]["frames"]["product"][0].col_names_dict.values()] == [["__const__"]]


@pytest.mark.parametrize("task", ["churn", "reviewed"])
def test_batches_are_those_of_relbench_2(shop, found, tmp_path, task):
    kinds = {table: {column: kind for column, kind in columns.items() if [table, column] not in HIDDEN[task]}
             for table, columns in KINDS.items()}  # fmt: skip
    data, _ = make_pkey_fkey_graph(
        shop.get_db(), kinds, TextEmbedderConfig(Hashed(), batch_size=64), tmp_path / "graphs", progress=False
    )
    if task == "churn":
        churn = Churn(shop)
        given = [get_node_train_table_input(churn.get_table(split), churn) for split in ("train", "val", "test")]
        expected = entity_batches(data, given, tmp_path / "packed")
    else:
        reviewed = Reviewed(shop)
        given = get_link_train_table_input(reviewed.get_table("train"), reviewed)
        expected = recommendation_batches(data, given, tmp_path / "packed")
    assert len(expected) > 5
    for batch, other in zip(found[task]["batches"], expected, strict=True):
        assert_same_batch(batch, other)
