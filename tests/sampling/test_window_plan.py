"""Windows of a plan: any consecutive minibatches, across epochs too, as they are in the epochs."""

import pytest
from graphs import make_graph
from minibatch_arrays import assert_same_minibatch

from diskgnn.formats.samples import Samples
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample, sample_plan
from diskgnn.sampling.window_plan import WindowPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources

OPTIONS = {"fanouts": [3, 2], "batch_size": 8, "draws": "coordinated", "draw_period": 3, "group_seeds": 4, "seed": 2}


@pytest.mark.parametrize("window", [range(1), range(8), range(5, 21), range(15, 17), range(16, 24)])
def test_windows_are_slices_of_the_sequence(tmp_path, window):
    """An epoch has 8 minibatches."""
    graph = make_graph(tmp_path / "graph")
    sample(graph, tmp_path / "all", epochs=3, splits=("train",), **OPTIONS)
    plan = SamplingPlan(graph, SamplingSpec(splits=("train",), **OPTIONS))
    sample_plan(WindowPlan(plan, window), tmp_path / "window", Resources.of("1GiB", 2), shard_minibatches=3)
    everything = list(Samples.open(tmp_path / "all").read("train"))
    opened = Samples.open(tmp_path / "window")
    assert opened.config.splits["train"].num_batches == len(window)
    found = list(opened.read("train"))
    assert len(found) == len(window)
    for position, minibatch in zip(window, found, strict=True):
        assert_same_minibatch(minibatch, everything[position])
