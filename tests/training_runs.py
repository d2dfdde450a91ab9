"""What tests train with: a graph that is quickly learnt, a model of the user's own, a source that is interrupted."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from graphs import write_graph
from torch import nn

from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import SPLITS

CLASSES, WIDTH, NODES = 3, 5, 240
BATCHES = 7  # of an epoch of the train split
# What a resumed run does anew: its seconds, and fetching what was fetched but not trained on.
NOT_RESUMED = ("time", "seconds", "train_seconds", "wait_seconds", "requested_rows")


def make_class_graph(path: Path, *, feature_dtype: str = "float32", nan_row: int | None = None, seed: int = 0) -> Graph:
    """Each node has 4 in-neighbours of its own class; features are its class, in noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, NODES)
    indices = [np.sort(random.choice(np.flatnonzero(labels == label), 4, replace=False)) for label in labels]
    features = np.eye(CLASSES, WIDTH)[labels] * 2 + random.normal(size=(NODES, WIDTH))
    if nan_row is not None:
        features[nan_row] = np.nan
    if feature_dtype == "int8":
        features = np.clip(features * 20, -127, 127)
    splits = dict(zip(SPLITS, np.split(np.arange(NODES), [100, 150]), strict=True))
    return write_graph(
        path, np.arange(NODES + 1) * 4, np.concatenate(indices).astype(np.int32), features.astype(feature_dtype),
        splits, dtype=feature_dtype, num_classes=CLASSES, labels=labels,
    )  # fmt: skip


class Net(nn.Module):
    """A small GNN of the user's own: sums over edges, batch norm, dropout."""

    def __init__(self, layers: int = 2, hidden: int = 8, classes: int = CLASSES) -> None:
        super().__init__()
        widths = [WIDTH] + [hidden] * (layers - 1) + [classes]
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.3)

    def forward(self, blocks, x):
        x = self.norm(x)
        for layer, linear in enumerate(self.linears):
            block = blocks[layer]
            destinations = torch.repeat_interleave(block.indptr.diff())
            own = x[: block.num_dst]
            x = linear(self.dropout(own.index_add(0, destinations, x[block.indices])))
        return x


def make_net(**arguments: int) -> Net:
    torch.manual_seed(3)
    return Net(**arguments)


class Wrapper:
    """A user's own wrapper of a source, as plain as they come: it derives from nothing and passes attributes on."""

    def __init__(self, source) -> None:
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)


class Interrupting(Wrapper):
    """A source that is interrupted right after it has handed over a minibatch that nobody has trained on."""

    def __init__(self, source, after: int) -> None:
        super().__init__(source)
        self._after = after

    def epoch(self, epoch):
        batches = self._source.epoch(epoch)
        for batch in batches:
            if self._after == 0:
                batches.close()
                raise KeyboardInterrupt
            self._after -= 1
            yield batch


def records(path: Path) -> list[dict]:
    """The metrics file without resumptions and what they may change."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in NOT_RESUMED}
        for line in lines
        if line["event"] != "resume"
    ]


def source_threads() -> list[threading.Thread]:
    """Those that an `InMemory` source left behind."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("diskgnn-in-memory")]
