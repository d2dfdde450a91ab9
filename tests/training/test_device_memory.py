"""What a dry pass does to the model (nothing), and what is left for rows after it, with a stand-in for the GPU."""

import pytest
import torch
from graphs import make_graph, prepare_graph
from torch import nn

from diskgnn.errors import ConfigError
from diskgnn.loading.loader import Loader
from diskgnn.training import device_memory
from diskgnn.training import train as training
from diskgnn.training.device_memory import dry_pass, free_for_rows
from diskgnn.training.models import make_model


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
        batch = loader.largest_minibatch()
    dry_pass(net, batch, amp=amp, backward=backward)
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
        dry_pass(Huge(), loader.largest_minibatch(), amp=False, backward=True)


def test_what_is_free_after_the_dry_passes_less_what_is_to_come(packed, monkeypatch):
    net = Normalised()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60_000_000, 100_000_000))
    with Loader(packed) as train, Loader(packed, "valid") as valid:
        free_bytes = free_for_rows(net, train, [valid], amp=False)
        inputs = [int(loader._index["num_inputs"].max()) for loader in (train, valid)]
        headers = [int(loader._index["header_bytes"].max()) for loader in (train, valid)]
    assert [(mode, grad) for mode, grad, _ in net.passes] == [(True, True), (False, False)]
    # Beyond the minibatch that is computed on: two more, and the staged rows of one.
    ahead = max(2 * (rows * 24 + header) + rows * 24 for rows, header in zip(inputs, headers, strict=True))
    parameters = sum(parameter.numel() for parameter in net.parameters())
    assert free_bytes == 60_000_000 - 5_000_000 - 3 * 4 * parameters - ahead
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 100_000_000))
    with Loader(packed) as train:
        assert free_for_rows(net, train, [], amp=False) == 0


def test_training_sizes_the_device_tier_unless_it_was_given(packed, monkeypatch):
    asked = []

    def free(net, train, evaluations, *, amp):
        asked.append((train.split, [loader.split for loader in evaluations], amp))
        return 240  # bytes: 10 rows

    monkeypatch.setattr(training, "free_for_rows", free)
    gpu = torch.device("cuda")
    opened = {"valid": lambda: Loader(packed, "valid")}
    with Loader(packed) as loader:
        training._size_device_tier(nn.Linear(1, 1), loader, opened, torch.device("cpu"), False)
        assert (asked, loader.device_cache) == ([], None)
        training._size_device_tier(nn.Linear(1, 1), loader, opened, gpu, True)
        assert asked == [("train", ["valid"], True)]
        next(loader.epoch(0))
        assert loader._store.num_device == 10
        training._size_device_tier(nn.Linear(1, 1), loader, opened, gpu, True)
    with Loader(packed, device_cache=0) as loader:
        training._size_device_tier(nn.Linear(1, 1), loader, opened, gpu, True)
    assert len(asked) == 1


@pytest.mark.cuda
def test_the_device_tier_takes_what_is_left(packed):
    net = make_model("sage", 6, 8, 4, 2).cuda()
    with Loader(packed, device="cuda") as train, Loader(packed, "valid", device="cuda") as valid:
        free_bytes = free_for_rows(net, train, [valid], amp=True)
    assert 0 < free_bytes < torch.cuda.mem_get_info()[0]
    assert device_memory._MARGIN_SHARE * torch.cuda.mem_get_info()[1] < torch.cuda.mem_get_info()[1] - free_bytes
