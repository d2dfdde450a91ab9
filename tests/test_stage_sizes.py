"""The arithmetic of tools/stage_sizes.py against what stages report, at two sizes."""

import dataclasses
import sys
from pathlib import Path

import pytest

import diskgnn
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from stage_sizes import Setting, stages


@pytest.mark.parametrize("num_nodes", [6_000, 24_000])
def test_bytes_are_those_that_stages_report(tmp_path, num_nodes):
    graph, packed = tmp_path / "graph", tmp_path / "packed"
    generated = diskgnn.generate(
        graph, num_nodes=num_nodes, avg_degree=8, num_classes=5, num_features=64, train_fraction=0.3,
        valid_fraction=0, test_fraction=0, homophily=0.7,
    )  # fmt: skip
    sampling = {"fanouts": [5, 5], "batch_size": 32, "threads": 1}
    in_memory = diskgnn.sample(graph, tmp_path / "samples", **sampling, memory="1GiB")
    diskgnn.pack(graph, tmp_path / "samples", packed, cpu_cache="5%", static_cache=0)
    drawn = list(Samples.open(tmp_path / "samples").read("train"))
    index, rows = Packed.open(packed).index("train"), Packed.open(packed).config.splits["train"].rows
    seeds = sum(len(each.seeds) for each in drawn)
    blocks = sum(
        16 * len(each.seeds) + 4 * sum(len(block.indptr) + len(block.indices) for (block,) in each.blocks)
        for each in drawn
    )
    setting = Setting(
        nodes=num_nodes, edges=generated.details["num_edges"], row_bytes=256, seeds=seeds, batch_size=32, layers=2,
        ranks=1, memory=1 << 30, cpu_tier=0.05 * num_nodes * 256, disk_share=rows.disk / rows.requested,
        rows_per_seed=rows.requested / seeds, block_bytes_per_seed=blocks / seeds,
    )  # fmt: skip
    found = {stage.name: stage for stage in stages(setting)}
    assert in_memory.read_bytes == pytest.approx(found["sample"].read_bytes, rel=0.001)
    frames_bytes = 3000 * len(drawn)  # Arrow's, and what is padded
    assert in_memory.written_bytes == pytest.approx(found["sample"].written_bytes, abs=frames_bytes)
    assert index.extent_bytes.sum() == pytest.approx(found["train, an epoch"].read_bytes, rel=0.03)


def test_what_decides_the_memory_of_sampling_and_inference():
    large = Setting()
    sample, infer = ({stage.name: stage for stage in stages(large)}[name] for name in ("sample", "infer, all nodes"))
    # Compared once, then in each of three layers offsets twice and sources once.
    assert sample.read_bytes == pytest.approx(880e9 + 3 * (2 * 80e9 + 800e9))
    twice = dataclasses.replace(large, memory=2 * large.memory)
    assert {stage.name: stage for stage in stages(twice)}["infer, all nodes"].read_bytes < infer.read_bytes
    assert {stage.name: stage for stage in stages(dataclasses.replace(large, memory=1e12))}["sample"].read_bytes == (
        large.topology_bytes
    )
