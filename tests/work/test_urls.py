"""URLs of object stores: what is one, which are refused, and what does not work with any."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from commands import run
from graphs import FEATURES
from stored_graphs import PREPARE

import diskgnn
from diskgnn.errors import (
    ArtifactError,
    ConfigError,
    UnavailableError,
)
from diskgnn.stores.locations import StoredPath, is_url, located


@pytest.mark.parametrize(
    ("given", "secret"),
    [
        ("s3://AKIA:hidden@bucket/graph", "hidden"),
        ("s3://AKIA@bucket/graph", "AKIA"),
        ("s3://bucket/graph?secret_key=hidden", "hidden"),
        ("s3://bucket/graph?access_key=hidden&region=x", "hidden"),
        ("gs://bucket/graph?access_token=hidden", "hidden"),
        ("hdfs://user:hidden@host/graph", "hidden"),
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(given, secret):
    with pytest.raises(ConfigError, match="credentials") as error:
        diskgnn.Graph.open(given)
    assert secret not in str(error.value)


def test_nothing_is_copied_to_or_from_a_file_url(tmp_path):
    url = f"file://{tmp_path}/there"
    for copy in (lambda: diskgnn.push(tmp_path, url), lambda: diskgnn.fetch(url, tmp_path / "here")):
        with pytest.raises(ConfigError, match=rf"found {tmp_path}/there, a path of this machine .as file:// is.: copy"):
            copy()


def test_what_is_no_url_of_a_folder_is_refused():
    with pytest.raises(ConfigError, match="a Path takes a slash away"):
        diskgnn.Graph.open(Path("s3://bucket/graph"))
    for given in ("s3://bucket", "s3://bucket/", "s3://bucket/a/../../other"):
        with pytest.raises(ConfigError, match="expected the URL of a folder"):
            diskgnn.Graph.open(given)
    with pytest.raises(ConfigError, match="no driver knows nowhere://"):
        diskgnn.Graph.open("nowhere://bucket/graph")
    with pytest.raises(UnavailableError, match="libhdfs"):
        diskgnn.Graph.open("hdfs://host:1/graph")


def test_paths_and_urls():
    assert located("graph") == Path("graph")
    assert located("file:///data/graph") == Path("/data/graph")
    assert located("file:///data/my%20graph") == located("file://localhost/data/my%20graph") == Path("/data/my graph")
    with pytest.raises(ConfigError, match=r"expected file:///path, of this machine, found .*, of 'elsewhere'"):
        located("file://elsewhere/data/graph")
    assert not is_url("a/b")
    assert not is_url("C:/b")
    url = located("s3://bucket/a/b/?region=here")
    assert isinstance(url, StoredPath)
    assert str(url) == "s3://bucket/a/b?region=here"
    assert str(url / "c.npy") == "s3://bucket/a/b/c.npy?region=here"
    assert (url.name, str(url.parent), str(url.with_name("d"))) == (
        "b", "s3://bucket/a?region=here", "s3://bucket/a/d?region=here",
    )  # fmt: skip


@pytest.mark.parametrize("url", ["s3://AKIA:hidden@bucket/graph", "s3:/bucket/graph", "s3://bucket/"])
def test_a_wrong_url_is_a_wrong_argument(url, tmp_path):
    found = run("fetch", url, tmp_path / "here", "--json", exit_code=2)
    assert json.loads(found.stdout)["error"]["kind"] == "UsageError"
    assert "hidden" not in found.output


def test_the_package_that_a_driver_lacks_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(UnavailableError, match="adlfs"):
        located("az://container/graph").locate()


def test_what_is_not_there_is_said_to_be_so(store, tmp_path):
    with pytest.raises(ArtifactError, match="nothing is not there"):
        diskgnn.Graph.open(store.url("nothing"))
    with pytest.raises(ArtifactError, match="neither is s3://no-such-bucket/"):
        diskgnn.Graph.open("s3://no-such-bucket/graph")
    with pytest.raises(ConfigError, match="make the bucket first"):
        diskgnn.generate("s3://no-such-bucket/graph", num_nodes=10_000, avg_degree=2, num_classes=2, num_features=2,
                         train_fraction=0.1, valid_fraction=0.1, test_fraction=0.1, homophily=0.5)  # fmt: skip
    store.write(f"{tmp_path.name}/file", b"x")
    with pytest.raises(ArtifactError, match="not a directory"):
        diskgnn.Graph.open(store.url(f"{tmp_path.name}/file"))


def test_what_cannot_work_on_a_store_says_so(store, there, graph, packed, tmp_path):
    out = store.upload(packed, f"{tmp_path.name}/packed")
    for call in (
        lambda: diskgnn.Loader(out),
        lambda: diskgnn.train(out, epochs=1),
        lambda: diskgnn.relink(there, features=graph / FEATURES),
        lambda: diskgnn.prepare(graph, tmp_path / "p", **PREPARE, samples=store.url("samples")),
    ):
        with pytest.raises(ConfigError, match="diskgnn fetch"):
            call()
