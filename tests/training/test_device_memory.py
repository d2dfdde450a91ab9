"""What a dry pass does to the model (nothing), and what is left for rows after it, with a stand-in for the GPU."""

from contextlib import nullcontext

import pytest
import torch
from graphs import make_graph, prepare_graph
from torch import nn
from training_runs import Wrapper

from diskgnn.errors import ConfigError
from diskgnn.loading.loader import Loader
from diskgnn.nn.block_models import make_model
from diskgnn.training.device_memory import MARGIN_SHARE, dry_pass, free_for_rows, size_device_tier
from diskgnn.training.node_tasks import NodeClassification

TASK = NodeClassification(4)
ROW_BYTES = 6 * 4


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    return prepare_graph(make_graph(folder / "graph", width=6), folder, epochs=2, static_cache="20%")


class Normalised(nn.Module):
    """A model with buffers, which a forward pass in training mode changes, and dropout, which draws."""

    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.net = make_model("sage", 6, 8, 4, 2)
        self.passes = []

    def forward(self, blocks, x):
        self.passes.append((self.training, torch.is_grad_enabled(), x.shape[0]))
        return self.net(blocks, self.dropout(self.norm(x + 1)))


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("amp", [True, False])
def test_a_dry_pass_leaves_no_trace(packed, backward, amp):
    net = Normalised().eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    random_state = torch.get_rng_state()
    with Loader(packed) as loader:
        batch = loader.sequence.largest_minibatch()
    dry_pass(net, TASK, batch, amp=amp, backward=backward)
    assert net.passes == [(backward, backward, batch.x.shape[0])]
    assert not net.training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in net.parameters())
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_model_that_does_not_fit_is_told_so(packed):
    class Huge(Normalised):
        def forward(self, blocks, x):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with Loader(packed) as loader, pytest.raises(ConfigError, match=r"does not fit cpu's memory .* input nodes"):
        dry_pass(Huge(), TASK, loader.sequence.largest_minibatch(), amp=False, backward=True)


class SumOfSquares(NodeClassification):
    """Another task, which counts how often it is asked."""

    asked = 0

    def loss(self, outputs, batch):
        self.asked += 1
        return outputs.square().sum()


def test_the_task_is_asked_for_the_loss(packed):
    task = SumOfSquares(4)
    with Loader(packed) as loader:
        dry_pass(Normalised(), task, loader.sequence.largest_minibatch(), amp=False, backward=True)
    assert task.asked == 1


def gpu_of(monkeypatch, free_bytes, total_bytes):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_bytes, total_bytes))


def test_what_is_free_after_the_dry_passes_less_what_is_to_come(packed, monkeypatch):
    net = Normalised()
    gpu_of(monkeypatch, 60_000_000, 100_000_000)
    with Loader(packed) as train, Loader(packed, "valid") as valid:
        free_bytes = free_for_rows(net, TASK, train.sequence, [valid.sequence], amp=False)
        inputs = [loader.sequence.index.max_inputs[0] for loader in (train, valid)]
        headers = [loader.sequence.index.max_header_bytes for loader in (train, valid)]
    assert [(mode, grad) for mode, grad, _ in net.passes] == [(True, True), (False, False)]
    # Beyond the minibatch that is computed on: two more, and the staged rows of one.
    ahead = max(
        2 * (rows * ROW_BYTES + header) + rows * ROW_BYTES for rows, header in zip(inputs, headers, strict=True)
    )
    parameters = sum(parameter.numel() for parameter in net.parameters())
    assert free_bytes == 60_000_000 - 5_000_000 - 3 * 4 * parameters - ahead
    gpu_of(monkeypatch, 1000, 100_000_000)
    with Loader(packed) as train:
        assert free_for_rows(net, TASK, train.sequence, [], amp=False) == 0


def test_training_sizes_the_device_tier_unless_it_was_given(packed, monkeypatch):
    """The GPU is a stand-in here: what it says is free, and rows of the 'device' tier lie in main memory."""
    net, gpu = Normalised(), torch.device("cuda")
    gpu_of(monkeypatch, 1 << 40, 1 << 40)
    with Loader(packed) as loader, Loader(packed, "valid") as valid:
        needed = (1 << 40) - free_for_rows(net, TASK, loader.sequence, [valid.sequence], amp=False)
    gpu_of(monkeypatch, needed + 10 * ROW_BYTES + 1, 1 << 40)  # room for 10 rows
    opened = {"valid": lambda: Loader(packed, "valid")}

    def device_rows(loader):
        assert list(loader.epoch(0))  # all of it: how far the loader reads ahead is a matter of time
        return loader.stats().device_rows

    with Loader(packed) as loader:
        size_device_tier(net, TASK, loader, opened, torch.device("cpu"), amp=False)
        assert loader.device_cache is None
        size_device_tier(net, TASK, loader, opened, gpu, amp=False)
        assert loader.device_cache == 10 * ROW_BYTES
        expected = device_rows(loader)
    with Loader(packed) as loader, Loader(packed, "valid") as valid:
        size_device_tier(net, TASK, Wrapper(loader), {"valid": lambda: nullcontext(Wrapper(valid))}, gpu, amp=False)
        assert loader.device_cache == 10 * ROW_BYTES
    with Loader(packed, device_cache=10 * ROW_BYTES) as loader:
        assert device_rows(loader) == expected > 0
    for given in (0, 3 * ROW_BYTES):
        with Loader(packed, device_cache=given) as loader:
            size_device_tier(net, TASK, loader, opened, gpu, amp=False)
            assert loader.device_cache == given


@pytest.mark.cuda
def test_the_device_tier_takes_what_is_left(packed):
    net = make_model("sage", 6, 8, 4, 2).cuda()
    with Loader(packed, device="cuda") as train, Loader(packed, "valid", device="cuda") as valid:
        free_bytes = free_for_rows(net, TASK, train.sequence, [valid.sequence], amp=True)
    assert 0 < free_bytes < torch.cuda.mem_get_info()[0]
    assert MARGIN_SHARE * torch.cuda.mem_get_info()[1] < torch.cuda.mem_get_info()[1] - free_bytes
