"""`for batch in loader`, as with any other loader; and sources that a user wrapped."""

import itertools

import numpy as np
import pytest
import torch
from graphs import make_graph, prepare_graph, write_graph
from packed_directories import batches_of, key

from diskgnn import evaluate, train
from diskgnn.errors import ConfigError
from diskgnn.loading.loader import Loader
from diskgnn.nn.block_models import make_model


def epochs_of(loader, count):
    return [[key(batch) for batch in loader] for _ in range(count)]


def test_loops_count_epochs_up(packed, whole):
    with Loader(packed) as loader:
        assert len(loader) == loader.num_batches == 8
        assert epochs_of(loader, 4) == [batches_of(whole, epoch) for epoch in range(4)]
        list(loader.epoch(0))  # by name; the next loop goes on from there
        assert epochs_of(loader, 1) == [batches_of(whole, 1)]


def test_a_loop_left_early_is_an_epoch(packed, whole):
    with Loader(packed) as loader:
        assert [key(batch) for batch in itertools.islice(loader, 3)] == batches_of(whole, 0)[:3]
        assert epochs_of(loader, 1) == [batches_of(whole, 1)]


def test_set_epoch_is_distributed_samplers(packed, whole):
    with Loader(packed) as loader:
        for epoch in (3, 0, 4):
            loader.set_epoch(epoch)
            assert epochs_of(loader, 1) == [batches_of(whole, epoch)]
        assert epochs_of(loader, 1) == [batches_of(whole, 4)]  # until it is set again
        with pytest.raises(ConfigError, match="epoch: expected at least 0"):
            loader.set_epoch(-1)


@pytest.mark.parametrize("consumed", [0, 3, 8])
def test_plain_loops_go_on_from_a_state(packed, whole, consumed):
    with Loader(packed) as first:
        first.set_epoch(2)
        list(itertools.islice(first, consumed))
        state = first.state_dict()
    assert (state["epoch"], state["batch"]) == (2, consumed)
    left = [batches_of(whole, 2, consumed)] if consumed < 8 else []  # all of it received: the next epoch's turn
    with Loader(packed) as second:
        second.set_epoch(4)
        second.load_state_dict(state)  # forgets that
        expected = [*left, batches_of(whole, 3), batches_of(whole, 4)]
        assert epochs_of(second, len(expected)) == expected
    with Loader(packed) as third:  # as torch's users write it
        third.load_state_dict(state)
        for epoch in (2, 3):
            third.set_epoch(epoch)
            assert [key(batch) for batch in third] == batches_of(whole, epoch, consumed if epoch == 2 else 0)


def test_a_second_loop_ends_the_first(packed):
    with Loader(packed) as loader:
        first = iter(loader)
        next(first)
        next(iter(loader))
        with pytest.raises(ConfigError, match="another epoch was started"):
            next(first)


class Bar:
    """What tqdm does: asks for the length, passes everything on, counts."""

    def __init__(self, iterable):
        self.iterable, self.total, self.count = iterable, len(iterable), 0

    def __iter__(self):
        for each in self.iterable:
            self.count += 1
            yield each


class Doubled:
    """A user's own wrapper: x twice as large, everything else the source's by delegation."""

    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)

    def epoch(self, epoch):
        for batch in self._source.epoch(epoch):
            batch.x.mul_(2)
            yield batch


def test_wrapped_in_a_progress_bar(packed, whole):
    with Loader(packed) as loader:
        for epoch in range(2):
            bar = Bar(loader)
            assert [key(batch) for batch in bar] == batches_of(whole, epoch)
            assert bar.count == bar.total


@pytest.fixture(scope="module")
def learnable(tmp_path_factory):
    """A packed directory of finite numbers."""
    folder = tmp_path_factory.mktemp("plain")
    random = make_graph(folder / "random", width=4)
    features = np.random.default_rng(0).standard_normal((random.num_nodes, 4), np.float32)
    splits = {split: np.array(nodes) for split, nodes in random.splits.items()}
    return prepare_graph(
        write_graph(folder / "graph", random.indptr, np.array(random.indices), features, splits), folder
    )


def test_a_wrapper_that_delegates_is_a_source(learnable, tmp_path):
    with Loader(learnable) as loader, Loader(learnable, "valid") as valid:
        whole = train(Doubled(loader), valid_source=Doubled(valid), epochs=2, hidden=4, trace=tmp_path / "trace.json")
    with Loader(learnable) as loader:
        train(Doubled(loader), epochs=1, hidden=4, checkpoint=tmp_path / "checkpoint")
    with Loader(learnable) as loader:
        resumed = train(Doubled(loader), epochs=2, hidden=4, checkpoint=tmp_path / "checkpoint", resume=True)
    with Loader(learnable) as loader:
        plain = train(loader, epochs=2, hidden=4)
    losses = [[epoch.loss for epoch in result.epochs] for result in (whole, resumed, plain)]
    assert losses[0] == losses[1] != losses[2]
    assert '"disk"' in (tmp_path / "trace.json").read_text()  # the wrapped loader tells what its threads do
    with Loader(learnable, "valid") as valid:
        found = evaluate(whole.model, Doubled(valid))
    assert found.accuracy == pytest.approx(whole.valid_accuracy)


def test_a_loop_as_the_readme_writes_it(learnable):
    torch.manual_seed(0)
    with Loader(learnable) as loader:
        model = make_model("sage", loader.num_features, 8, loader.num_classes, loader.num_layers)
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        means = []
        for _ in range(10):
            losses = []
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch.blocks, batch.x), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            means.append(np.mean(losses))
    assert means[-1] < means[0]


def test_a_loader_prints_as_what_it_reads(packed):
    with Loader(packed) as loader:
        head, minibatches, features = str(loader).splitlines()
        assert head == f"Loader({str(packed)!r}, 'train', device='cpu')"
        assert (
            minibatches.split() == f"minibatches: 8 in an epoch, {loader.num_epochs} prepared epochs, 2 layers".split()
        )
        assert f"float32 [{loader.sequence.packed.config.one_row_set.num_rows}, {loader.num_features}]" in features
        assert features.endswith("of them in the cpu tier")
