"""Dataclasses as JSON objects: what is written is compared with JSON written by hand, anything else is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.packed_config import PackedConfig, PackedSplit
from diskgnn.formats.records import INLINE, LEFT_OUT, Key, Record, one_of, record_codec, whole
from diskgnn.formats.samples_config import SamplesConfig, SequenceSize
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import ONE_EDGE_TYPE, EdgeType
from diskgnn.specs.targets import NodeTarget


@dataclass(frozen=True)
class Inner(Record):
    width: Annotated[int, Key("feature_width")]
    scale: float = 1.0


@dataclass(frozen=True)
class Outer(Record):
    name: str
    rows: Annotated[Inner | None, INLINE]
    count: Annotated[int, whole(1, 9)]
    dtype: Annotated[str, one_of("int32", "int64")]
    edge_type: EdgeType | None
    inner: tuple[Inner, ...]
    by_type: Mapping[EdgeType, bool]
    values: Annotated[tuple[str | int, ...] | None, LEFT_OUT] = None
    extra: Annotated[bool, LEFT_OUT] = False
    made: Annotated[Inner, LEFT_OUT] = field(default_factory=lambda: Inner(0))

    def check_parsed(self) -> None:
        if self.name == "refused":
            raise ValueError("a name that is refused")


SPARSE = Outer("a", None, 1, "int32", None, (), {})
SPARSE_JSON = '{"name": "a", "count": 1, "dtype": "int32", "edge_type": null, "inner": [], "by_type": {}}'
FULL = Outer("b", Inner(7, 0.5), 9, "int64", ("u", "v", "w"), (Inner(1), Inner(2, 2.5)), {("a", "b", "c"): True},
             ("x", 3), extra=True)  # fmt: skip
FULL_JSON = (
    '{"name": "b", "feature_width": 7, "scale": 0.5, "count": 9, "dtype": "int64", "edge_type": "u:v:w", '
    '"inner": [{"feature_width": 1, "scale": 1.0}, {"feature_width": 2, "scale": 2.5}], "by_type": {"a:b:c": true}, '
    '"values": ["x", 3], "extra": true}'
)


@pytest.mark.parametrize(("record", "text"), [(SPARSE, SPARSE_JSON), (FULL, FULL_JSON)])
def test_a_record_and_its_json(record: Outer, text: str) -> None:
    assert json.dumps(record.to_json()) == text
    assert Outer.parse(json.loads(text)) == record


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3}, {"name": "refused"}, {"count": 0}, {"count": 10}, {"count": True}, {"count": 1.0}, {"count": "1"},
        {"dtype": "int8"}, {"dtype": None}, {"edge_type": "u:v"}, {"edge_type": ["u", "v", "w"]}, {"inner": {}},
        {"inner": [3]}, {"inner": [{"feature_width": 1}]}, {"scale": 1}, {"feature_width": None},
        {"by_type": {"a": True}}, {"by_type": {"a:b:c": 1}}, {"by_type": []}, {"values": None}, {"values": [None]},
        {"values": [True]}, {"extra": 1}, {"made": None},
    ],
)  # fmt: skip
def test_what_is_no_record(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError)):
        Outer.parse(json.loads(FULL_JSON) | change)


@pytest.mark.parametrize("name", [name for name in json.loads(FULL_JSON) if name not in ("values", "extra")])
def test_a_member_that_is_missing(name: str) -> None:
    config = json.loads(FULL_JSON)
    del config[name]
    if name == "feature_width":
        assert Outer.parse(config).rows is None
    else:
        with pytest.raises(KeyError, match=name):
            Outer.parse(config)


@pytest.mark.parametrize("config", [None, [], "text", 3])
def test_what_is_no_object(config: object) -> None:
    with pytest.raises(ValueError, match="expected dict"):
        Outer.parse(config)


def test_a_class_that_knows_nothing_of_json() -> None:
    codec = record_codec(Inner, ("scale", "width"), width=Annotated[int, whole(2)], scale=Annotated[float, LEFT_OUT])
    assert json.dumps(codec.write(Inner(3, 2.0))) == '{"scale": 2.0, "width": 3}'
    assert codec.write(Inner(3)) == {"width": 3}
    assert codec.read({"width": 3}) == Inner(3)
    with pytest.raises(ValueError, match="expected a number from 2"):
        codec.read({"width": 1})


def test_what_was_sampled_is_the_same_within_a_packed_config() -> None:
    """Prepared epochs stand among the splits, not in what was asked for."""
    samples = SamplesConfig(SamplingSpec([2], target=NodeTarget("node")), {"node": 50}, {ONE_EDGE_TYPE: 70},
                            {"train": SequenceSize(3, 4)})  # fmt: skip
    split = PackedSplit(3, 4, 100, ())
    config = PackedConfig(samples, TargetConfig("class", 2), ("int32",), (), False, "graph", {"train": split})
    assert (samples.spec.epochs, samples.spec.splits) == (3, ("train",))
    assert SamplesConfig.parse(samples.to_json()) == samples
    assert PackedConfig.parse(json.loads(json.dumps(config.to_json()))) == config
