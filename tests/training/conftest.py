import pytest
from training_runs import make_class_graph

from diskgnn.baselines.in_memory import InMemory
from diskgnn.specs.schema import SPLITS


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_class_graph(tmp_path_factory.mktemp("training") / "graph")


@pytest.fixture(scope="module")
def sources(graph):
    """One source of each split, and `make` for more of them."""

    def make(split, share=None, **arguments):
        return InMemory(graph, split, **({"fanouts": [3, 2], "batch_size": 16} | arguments), share=share)

    train_source = make("train")
    yield {split: make(split, train_source) for split in SPLITS} | {"make": make}
    train_source.close()


@pytest.fixture(autouse=True)
def tiny_tensors(one_thread):
    """All tests of this room have them."""
