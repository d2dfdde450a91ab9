"""The examples run as written, on a source in memory and on a loader that returns it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import diskgnn
from diskgnn import Block, MiniBatch

os.environ.setdefault("DGLBACKEND", "pytorch")
EXAMPLES = sorted((Path(__file__).parents[1] / "docs" / "examples").glob("*.py"))


class InMemory:
    """Two minibatches of two layers, whose labels can be read off the seeds' own features."""

    num_batches, num_classes, feature_width, num_layers = 2, 3, 8, 2

    def __init__(self, packed: str, split: str, **_: object) -> None:
        assert packed == "packed"
        assert split in ("train", "valid", "test")

    def __enter__(self) -> InMemory:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def epoch(self, epoch: int) -> Iterator[MiniBatch]:
        for index in range(self.num_batches):
            rng = np.random.default_rng(index)
            sizes, blocks = (60, 30, 15), []
            for num_src, num_dst in pairwise(sizes):
                indptr = torch.arange(num_dst + 1, dtype=torch.int32) * 4
                blocks.append(
                    Block(indptr, torch.from_numpy(rng.integers(num_src, size=num_dst * 4, dtype=np.int32)), num_src)
                )
            x = torch.from_numpy(rng.normal(size=(60, 8)).astype(np.float16))
            yield MiniBatch(x, x[:15, :3].argmax(dim=1), tuple(blocks), torch.arange(15), epoch, index)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_learn(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("dgl")
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr(diskgnn, "Loader", InMemory, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the source yields CPU tensors
    torch.manual_seed(0)
    load(path).main("packed", 20)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert float(lines[-1].removeprefix("test accuracy ")) > 0.8
