"""A graph, what is packed of it, and where the graph is on a store: for all tests of object stores, never changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphs import make_graph
from object_store import ObjectStore
from stored_graphs import PREPARE

import diskgnn


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 nodes: 512 KB of features."""
    path = tmp_path_factory.mktemp("graph") / "graph"
    make_graph(path, num_nodes=2000, width=64, splits={"train": 300, "valid": 50})
    return path


@pytest.fixture(scope="session")
def packed(graph: Path) -> Path:
    """What `PREPARE` makes of it on this machine."""
    path = graph.with_name("packed")
    diskgnn.prepare(graph, path, **PREPARE)
    return path


@pytest.fixture
def there(store: ObjectStore, graph: Path, tmp_path: Path) -> str:
    """The graph on the store, at a place of this test's own."""
    return store.upload(graph, f"{tmp_path.name}/graph")
