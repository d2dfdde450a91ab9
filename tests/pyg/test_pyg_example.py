"""tools/pyg_example.py: a program of PyG's kind on graph directories, with either's loaders."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import run_python

import diskgnn

sys.path.insert(0, str(Path(__file__).parents[2] / "datasets"))

import snapshots

ROOT = Path(__file__).parents[2]
TYPED = """
from torch_geometric.datasets import OGB_MAG
from torch_geometric.loader import NeighborLoader

dataset = OGB_MAG("a folder", preprocess="metapath2vec")
data = dataset[0]
kwargs = {'batch_size': 64, 'num_workers': 6, 'persistent_workers': True}
loader = NeighborLoader(data, num_neighbors=[-1, -1], input_nodes=("paper", data["paper"].test_mask), **kwargs)
print(dataset.num_classes, data["gene"].num_nodes, data["paper"].y.max().item())
for epoch in range(1, 21):
    for batch in loader:
        nodes = {name: sorted(ids.tolist()) for name, ids in batch.n_id_dict.items()}
        print(epoch, batch["paper"].input_id.tolist(), nodes)
"""
PLAIN = """
from torch_geometric.datasets import Planetoid
from torch_geometric.loader import LinkNeighborLoader

dataset = Planetoid("a folder", "Cora")
loader = LinkNeighborLoader(dataset[0], batch_size=256, num_neighbors=[-1])
print(dataset[0].num_nodes, dataset[0].num_edges, dataset.num_features)
for batch in loader:
    print(batch.input_id.tolist(), sorted(batch.n_id.tolist()))
"""


def run(program: Path, graph: Path, *options: str) -> list[str]:
    tool = ROOT / "tools" / "pyg_example.py"
    done = run_python(tool, program, graph, "--epochs", "2", *options, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def both(tmp_path):
    """What a program prints with our loaders, which is what it prints with PyG's, if they work here."""

    def printed(text: str, graph: Path, *options: str) -> list[str]:
        program = tmp_path / "program.py"
        program.write_text(text)
        found = run(program, graph, "--loader", "diskgnn", *options)
        if importlib.util.find_spec("pyg_lib") is not None:
            assert found == run(program, graph, "--loader", "pyg", *options)
        return found

    return printed


def test_the_labelled_type_takes_the_name_that_the_program_knows(tmp_path, both):
    description = snapshots.load(ROOT / "datasets" / "genes_typed.npz")
    diskgnn.convert(tmp_path / "graph", schema=description)
    genes, papers = (description["nodes"][name] for name in ("gene", "paper"))
    first, *batches = both(TYPED, tmp_path / "graph", "--calls", "paper")
    largest = genes["labels"].max()
    assert first == f"{largest + 1} {len(papers['features'])} {largest}"
    assert len(batches) == 2 * -(-len(genes["test"]) // 64)
    assert [batch.split()[0] for batch in batches] == ["1"] * (len(batches) // 2) + ["2"] * (len(batches) // 2)


def test_a_part_of_the_nodes(tmp_path, both):
    random = np.random.default_rng(0)
    edges = random.integers(0, 400, (2, 6000))
    diskgnn.convert(
        tmp_path / "graph", edges=edges, features=np.zeros((400, 3), np.float32), labels=np.arange(400) % 3, train=[1]
    )
    first, *batches = both(PLAIN, tmp_path / "graph", "--part", "100")
    num_nodes, num_edges, num_features = map(int, first.split())
    assert (num_nodes, num_features) == (100, 3)
    assert 6000 / 16 * 0.7 < num_edges < 6000 / 16 * 1.3
    assert len(batches) == -(-num_edges // 256)
