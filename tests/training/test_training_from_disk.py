"""Training through a `Loader`, all tiers in use, on the GPU where there is one: int8 rows, bfloat16, resuming."""

import shutil

import numpy as np
import pytest
import torch
from graphs import make_graph, prepare_graph
from torch.nn import functional as F
from training_runs import make_class_graph

from diskgnn.formats.packed import Packed
from diskgnn.loading.loader import Loader
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.nn.block_models import make_model
from diskgnn.training.train import train

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    graph = make_graph(folder / "graph", width=16, dtype="int8")
    return prepare_graph(graph, folder, static_cache="20%", cpu_cache="10%", epochs=2)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["sage", "gat", "gcn"])
@pytest.mark.parametrize("amp", [False, True])
def test_going_on_in_the_midst_of_an_epoch(packed, tmp_path, device, name, amp):
    arguments = {
        "model": name, "hidden": 8, "epochs": 3, "device": device, "amp": amp, "dropout": 0.5, "lr": 0.01,
        "loader_options": LoaderOptions(scale=0.01),
    }  # fmt: skip
    whole = train(packed, **arguments)
    hits = whole.epochs[0].hit_rate_device, whole.epochs[0].hit_rate_pinned
    # A GPU has room for all static rows; a cpu has no device tier.
    assert (hits[0] > 0, hits[1] > 0) == ((True, False) if device == "cuda" else (False, True))
    assert {parameter.dtype for parameter in whole.model.parameters()} == {torch.float32}

    def interrupt(record):
        if record["event"] == "step" and (record["epoch"], record["batch"]) == (1, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(packed, checkpoint=tmp_path / "checkpoint", record_every_batches=1, callback=interrupt, **arguments)
    resumed = train(packed, checkpoint=tmp_path / "checkpoint", resume=True, **arguments)
    assert resumed.resumed_from == (1, 3)
    # On a GPU sums over edges are atomic, so their order is not fixed; a wrong random state would be far off.
    tolerance = {"cpu": 1e-6, "cuda": 2e-2 if amp else 1e-3}[device]
    np.testing.assert_allclose([e.loss for e in resumed.epochs], [e.loss for e in whole.epochs], rtol=tolerance)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["sage", "gat"])
def test_training_steps_do_not_wait_for_the_gpu(packed, name):
    model = make_model(name, 16, 8, 4, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    with Loader(packed, device="cuda", device_cache="5%", scale=0.01) as loader:

        def train_on(epoch):
            for batch in loader.epoch(epoch):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = F.cross_entropy(model(batch.blocks, batch.x), batch.y)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

        train_on(0)  # then all is allocated and compiled
        torch.cuda.set_sync_debug_mode("error")
        try:
            train_on(1)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_directory_that_is_replaced_while_training(tmp_path):
    """All splits are those that training began with."""
    graph, other = make_class_graph(tmp_path / "graph"), make_class_graph(tmp_path / "other", seed=1)
    packed = prepare_graph(graph, tmp_path, cpu_cache="20%")
    replacing = prepare_graph(other, tmp_path / "replacing", cpu_cache="20%")
    copy = shutil.copytree(packed, tmp_path / "copy")

    def replace_once(record):
        if (record["event"], record.get("epoch")) == ("epoch", 0):
            packed.rename(tmp_path / "old")
            replacing.rename(packed)
            shutil.rmtree(tmp_path / "old")

    found = train(packed, hidden=4, epochs=3, callback=replace_once)
    expected = train(copy, hidden=4, epochs=3)
    assert Packed.open(packed).digest != Packed.open(copy).digest
    assert [(epoch.loss, epoch.scores()) for epoch in found.epochs] == [
        (epoch.loss, epoch.scores()) for epoch in expected.epochs
    ]
