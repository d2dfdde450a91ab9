"""Rows of tables in a minibatch, against NumPy: what they are, where they go, and that nobody who does not ask pays."""

from __future__ import annotations

import gc
import pickle
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from diskgnn.batches.blocks import Block, moved, tensors_of
from diskgnn.batches.minibatch import TypedMiniBatch
from diskgnn.batches.table_records import ByType, TableRows
from diskgnn.formats.record_format import RecordField, RecordFormat
from diskgnn.formats.record_view import DecodedRecords, RecordView
from diskgnn.specs.feature_columns import FeatureColumn

ROWS = RecordFormat.of(
    [RecordField("age", "numerical", "int64", 0, 1, 0), RecordField("hash", "embedding", "int8", 0, 3)], 4
)
FEATURES = (FeatureColumn("age", "number", 1, mean=10.0, deviation=2.0), FeatureColumn("hash", "text", 3))
AGES, CODES, PLACES = np.array([8, 11, 0]), np.array([[127, 0, -127], [1, 2, 3], [0, 0, 0]], np.int8), [1, 0, 1, 2]


@dataclass(frozen=True)
class Counting(RecordView):
    """A view that tells how often records were decoded."""

    decoded: list[int] | None = None

    def decode(self, words: torch.Tensor) -> DecodedRecords:
        if self.decoded is not None:
            self.decoded.append(len(words))
        return super().decode(words)


def table(decoded: list[int] | None = None) -> TableRows:
    """Three records, the last of which has no age, of four nodes."""
    stored = np.zeros(3, ROWS.file_dtype)
    stored["age"], stored["hash"] = AGES, CODES
    stored[stored.dtype.names[-1]][2] = 1  # the bits of nulls
    return TableRows(
        ROWS.as_tensor(stored), torch.tensor(PLACES, dtype=torch.int32), Counting(ROWS, FEATURES, None, decoded)
    )


def minibatch(rows: TableRows) -> TypedMiniBatch:
    users = {"users": rows}
    return TypedMiniBatch(
        x=ByType(users | {"tags": torch.zeros(2, 1)}, "x"), y=None, blocks=(), node_counts=({"users": 4, "tags": 2},),
        seeds=torch.tensor([0]), target="users", epoch=0, batch_index=0, columns=ByType(users, "columns"),
        nulls=ByType(users, "nulls"),
    )  # fmt: skip


def test_each_node_has_the_columns_of_its_record() -> None:
    batch: Any = minibatch(table())
    assert [*batch.x], [*batch.columns["users"]] == (["users", "tags"], ["age", "hash"])
    np.testing.assert_array_equal(batch.columns["users"]["age"][:3], AGES[PLACES[:3]])
    np.testing.assert_array_equal(batch.columns["users"]["hash"], CODES[PLACES])
    np.testing.assert_array_equal(batch.nulls["users"]["age"], [False, False, False, True])
    ages = np.where(np.arange(3) == 2, 0, (AGES - 10) / 2)
    expected = np.column_stack([ages, CODES.astype(np.float32) / np.float32(127)]).astype(np.float32)
    np.testing.assert_array_equal(batch.x["users"], expected[PLACES])
    assert batch.x["tags"].shape == (2, 1)


def test_records_are_decoded_once_and_only_where_somebody_asks() -> None:
    decoded: list[int] = []
    batch: Any = minibatch(table(decoded))
    assert (len(batch.x), "users" in batch.x, "goods" in batch.columns) == (2, True, False)
    assert batch.to("cpu").seeds.tolist() == [0]
    assert decoded == []
    for found in (batch.columns["users"]["age"], batch.nulls["users"]["age"], batch.x["users"], batch.x["users"]):
        assert len(found) == 4
    assert decoded == [3]
    assert batch.x["users"] is batch.x["users"]


def test_moving_moves_the_records() -> None:
    batch: Any = minibatch(table())
    assert [each.device.type for each in tensors_of(batch)] == ["cpu"] * len([*tensors_of(batch)])
    there: Any = moved(batch, "meta", False)
    assert {each.device.type for each in tensors_of(there)} == {"meta"}
    assert there.x.parts["users"] is there.columns.parts["users"] is there.nulls.parts["users"]
    again: Any = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again.x["users"], batch.x["users"])


def test_rows_go_with_their_minibatch() -> None:
    """Not with the next garbage collection: their memory is what a loader reads the next minibatches into."""
    gc.disable()
    try:
        batch: Any = minibatch(table()).to("cpu")
        asked = batch.x["users"], batch.columns["users"]["age"], batch.nulls["users"]["age"]
        rows = weakref.ref(batch.x.parts["users"])
        there = batch.to("meta")
        assert rows() is not None
        del batch, asked, there
        assert rows() is None
    finally:
        gc.enable()


def test_a_minibatch_of_one_type_moves_what_its_columns_are_made_of() -> None:
    rows = table()
    edges = ("users", "to", "users")
    block = Block(torch.tensor([0, 1]), torch.tensor([3]), 4)
    batch = TypedMiniBatch(
        x=ByType({"users": rows}, "x"), y=None, blocks=({edges: block},), node_counts=({"users": 4}, {"users": 1}),
        seeds=torch.tensor([0]), target="users", epoch=0, batch_index=0, columns=ByType({"users": rows}, "columns"),
        nulls=ByType({"users": rows}, "nulls"),
    ).of_one_type()  # fmt: skip
    assert batch.columns is not None
    held = {each.data_ptr() for each in tensors_of(batch)}
    np.testing.assert_array_equal(batch.columns["hash"], CODES[PLACES])
    assert {each.data_ptr() for each in tensors_of(batch)} == held  # asking makes nothing that a stream has to know of
    there = batch.to("meta")
    assert there.columns is not None
    assert {each.device.type for each in [*tensors_of(there), there.columns["age"]]} == {"meta"}


def test_what_inference_asked_for_can_be_trained_on() -> None:
    batch: Any = minibatch(table())
    with torch.inference_mode():
        assert len(batch.x["users"]) == len(batch.columns["users"]["age"]) == 4
    weight = torch.ones(4, requires_grad=True)
    (batch.x["users"] * weight).sum().backward()
    assert weight.grad is not None


def test_what_is_not_there_is_a_key_error() -> None:
    batch: Any = minibatch(table())
    with pytest.raises(KeyError):
        batch.x["goods"]
    with pytest.raises(KeyError):
        batch.columns["users"]["size"]
    assert batch.columns.get("goods") is None
