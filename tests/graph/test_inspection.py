"""What `diskgnn inspect` says, against NumPy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from graphs import FEATURES

from diskgnn.errors import ArtifactError
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import TargetConfig
from diskgnn.formats.packed_config import PackedConfig, PackedRows, PackedSplit, RowSetConfig, TierRowCounts
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.samples_config import SamplesConfig, SamplesLayout, SequenceSize
from diskgnn.graph.artifact_description import describe
from diskgnn.importers.convert import convert
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import ONE_EDGE_TYPE
from diskgnn.specs.targets import NodeTarget
from diskgnn.work.writer import ArtifactWriter


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(1, 0), (3, 2), (500, 3000), (500, 100_000), (1_100_000, 3000)])
def test_graph(tmp_path: Path, num_nodes: int, num_edges: int) -> None:
    """1,100,000 nodes are more than the offsets and labels that are read at once."""
    rng = np.random.default_rng(6)
    labels = rng.integers(-1, 3, num_nodes)
    labels[0] = 2
    src, dst = rng.integers(0, num_nodes, (2, num_edges))
    # Half of the edges stay within a class.
    of_label = {label: np.flatnonzero(labels == label) for label in range(-1, 3)}
    within = [of_label[label] for label in labels[dst]]
    src = np.array([rng.choice(w) if rng.random() < 0.5 else s for w, s in zip(within, src, strict=True)], np.int64)
    convert(tmp_path / "graph", edges=np.stack([src, dst]), features=np.ones((num_nodes, 7), np.float16),
            labels=labels, train=[0], memory="16MiB")  # fmt: skip
    description = describe(tmp_path / "graph")
    degrees = np.bincount(dst, minlength=num_nodes)
    facts = description.facts
    assert (facts["nodes"], facts["edges"], facts["classes"], facts["train_nodes"]) == (num_nodes, num_edges, 3, 1)
    assert facts["min_in_degree"] == degrees.min()
    assert facts["max_in_degree"] == degrees.max()
    assert facts["mean_in_degree"] == pytest.approx(degrees.mean())
    assert facts["median_in_degree"] == np.quantile(degrees, 0.5, method="lower")
    assert facts["nodes_without_in_edges"] == (degrees == 0).sum()
    assert facts["labelled_nodes"] == (labels >= 0).sum()
    known = (labels[src] >= 0) & (labels[dst] >= 0)
    if known.any():
        expected = (labels[src] == labels[dst])[known].mean()
        assert facts["homophily_estimate"] == pytest.approx(expected, abs=0.03)
    else:
        assert facts["homophily_estimate"] is None
    assert (facts["features"], facts["feature_row_bytes"]) == ("7 x float16", 14)
    assert description.kind == "a graph"
    assert {file.name: file.shape for file in description.files}[FEATURES] == (num_nodes, 7)
    assert facts["total_bytes"] == sum(file.bytes for file in description.files)
    json.dumps(dataclasses.asdict(description))


def test_sequences(tmp_path: Path) -> None:
    rows = TierRowCounts(requested=100, static=0, cpu=75, disk=25)
    train = PackedSplit(
        epochs=2, batches_per_epoch=5, max_header_bytes=9,
        row_sets=(PackedRows(cpu_rows=8, initial_rows=3, rows=rows, max_inputs=12),),
    )  # fmt: skip
    spec = SamplingSpec([3], 2, 2, [4], 3, draws="coordinated", draw_period=4, group_seeds=8, splits=["train"],
                        target=NodeTarget("node"))  # fmt: skip
    sizes = {"train": SequenceSize(2, 5)}
    config = PackedConfig(
        samples=SamplesConfig(spec, {"node": 50}, {ONE_EDGE_TYPE: 70}, sizes, SamplesLayout()),
        target=TargetConfig("class", 2), node_dtypes=("int32",), keep_input_nodes=False, graph="",
        row_sets=(RowSetConfig("node", RowFormat("int8", 7), 50, 0),), splits={"train": train},
    )  # fmt: skip
    with ArtifactWriter(tmp_path / "packed", artifacts.PACKED, config=config.to_json()) as writer:
        writer.publish()
    description = describe(tmp_path / "packed")
    assert description.kind == "packed minibatches"
    assert description.facts == {
        "total_bytes": 0, "train_minibatches": 10, "train_requested_rows": 100, "train_static_rows": 0,
        "train_cpu_rows": 75, "train_disk_rows": 25, "train_rows_from_disk_share": 0.25,
    }  # fmt: skip
    assert description.config["splits.train.row_sets.0.rows.cpu"] == 75
    assert description.config["samples.draws"] == "coordinated"
    assert (description.config["samples.draw_period"], description.config["samples.group_seeds"]) == (4, 8)
    json.dumps(dataclasses.asdict(description))


def test_no_artifact(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "samples", artifacts.SAMPLES, config={"splits": {"train": 3}}) as writer:
        writer.publish()
    with pytest.raises(ArtifactError, match=r"is damaged \(its config: .*diskgnn sample"):
        describe(tmp_path / "samples")
    with pytest.raises(ArtifactError, match="no diskgnn artifact"):
        describe(tmp_path)
