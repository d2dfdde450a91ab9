import numpy as np
import pytest
from commands import run
from graphs import write_graph


@pytest.fixture
def graph(tmp_path):
    """Four nodes in a ring with both directions, three features each."""
    path = tmp_path / "graph"
    write_graph(
        path, np.array([0, 2, 4, 6, 8]), np.array([1, 3, 0, 2, 1, 3, 0, 2], np.int32),
        np.arange(12, dtype=np.float32).reshape(4, 3), {"train": [0, 2]}, num_classes=2, labels=np.array([0, 1, 0, 1]),
    )  # fmt: skip
    return path


@pytest.fixture
def packed(tmp_path):
    """Five training minibatches, valid and test."""
    run("generate", tmp_path / "generated", "--num-nodes", 200, "--num-classes", 3, "--num-features", 4,
        "--train-fraction", 0.5, "--valid-fraction", 0.2, "--test-fraction", 0.2)  # fmt: skip
    run("prepare", tmp_path / "generated", tmp_path / "packed", "--fanouts", "3", "--batch-size", 20,
        "--cpu-cache", "10%", "--static-cache", "10%")  # fmt: skip
    return tmp_path / "packed"
