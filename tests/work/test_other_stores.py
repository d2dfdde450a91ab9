"""Google's storage, by an emulator on loopback, and servers that only fsspec knows: the whole way, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from graphs import FEATURES
from other_stores import started
from stored_graphs import PREPARE, arrays, digest, same_files

import diskgnn
from diskgnn.errors import ArtifactError, ConfigError, OutputExistsError
from diskgnn.files import faults
from diskgnn.files.file_reading import read_into, reading
from diskgnn.formats.verification import find_damage
from diskgnn.stores.locations import located
from diskgnn.stores.uploads import write_file
from diskgnn.work import outbox


@pytest.fixture(scope="module", params=["gs", "ftp"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a bucket, or of a folder, and what stands behind the paths in it."""
    pytest.importorskip({"gs": "gcp_storage_emulator", "ftp": "pyftpdlib"}[request.param])
    with started(request.param, tmp_path_factory.mktemp("served")) as port:
        if request.param == "gs":
            yield f"gs://anonymous@bucket/{{}}?scheme=http&endpoint_override=127.0.0.1:{port}&retry_limit_seconds=10"
        else:
            yield f"ftp://127.0.0.1:{port}/{{}}"


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))


def test_a_graph_is_sent_prepared_and_fetched(root, graph, packed, tmp_path):
    there, out = root.format(f"{tmp_path.name}/graph"), root.format(f"{tmp_path.name}/packed")
    diskgnn.push(graph, there)
    if root.startswith("gs"):  # what fsspec knows of a file of FTP does not say when it was written
        assert diskgnn.push(graph, there).written_bytes == 0
    diskgnn.prepare(there, out, **PREPARE)
    assert find_damage(out)[1] == []
    diskgnn.fetch(out, tmp_path / "fetched")
    assert same_files(tmp_path / "fetched", packed)
    with pytest.raises(OutputExistsError, match="exists already"):
        diskgnn.prepare(there, out, **PREPARE | {"epochs": 1})
    diskgnn.prepare(there, out, **PREPARE | {"epochs": 1}, overwrite=True)
    assert digest(out) != digest(packed)
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


def test_a_push_that_was_stopped_goes_on(root, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "FILES_AT_ONCE", 1)
    there = root.format(f"{tmp_path.name}/graph")
    with faults.armed("push.file", OSError("stopped"), after=3), pytest.raises(OSError, match="stopped"):
        diskgnn.push(graph, there)
    with pytest.raises(ArtifactError, match="no manifest"):
        diskgnn.Graph.open(there)
    report = diskgnn.push(graph, there)
    assert report.written_bytes > 0
    assert report.written_bytes < report.read_bytes or root.startswith("ftp")
    assert digest(there) == digest(graph)
    assert same_files(graph, Path(fetched(there, tmp_path)))


def fetched(url: str, tmp_path: Path) -> Path:
    diskgnn.fetch(url, tmp_path / "fetched")
    return tmp_path / "fetched"


def test_convert_streams_from_and_to_it(root, tmp_path):
    features = np.random.default_rng(1).standard_normal((50, 8)).astype(np.float32)
    diskgnn.convert(root.format(f"{tmp_path.name}/made"), features=features, **arrays())
    diskgnn.convert(tmp_path / "made", features=features, **arrays())
    assert same_files(fetched(root.format(f"{tmp_path.name}/made"), tmp_path), tmp_path / "made")


def test_what_is_replaced_while_it_is_read_is_noticed(root, graph, tmp_path):
    if root.startswith("ftp"):
        pytest.skip("FTP has no name for the state of a file")
    there = root.format(f"{tmp_path.name}/graph")
    diskgnn.push(graph, there)
    place, num_bytes = located(there) / FEATURES, (graph / FEATURES).stat().st_size
    with reading(place, front_to_back=True) as file:
        read_into(file, 0, bytearray(num_bytes // 2), place)
        write_file(place, bytes(num_bytes))
        with pytest.raises(ArtifactError, match="was replaced while"):
            read_into(file, num_bytes // 2, bytearray(num_bytes), place)


def test_what_is_not_there_is_said(root, graph, tmp_path):
    with pytest.raises(ArtifactError, match="is not there"):
        diskgnn.Graph.open(root.format(f"{tmp_path.name}/none"))
    if root.startswith("gs"):
        with pytest.raises(ConfigError, match="make the bucket first"):
            diskgnn.push(graph, root.replace("@bucket", "@none").format("graph"))
