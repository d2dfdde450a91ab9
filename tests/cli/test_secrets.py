"""A secret in a URL is neither shown nor stored: not by a command that refuses it, and not on the page of --serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from object_store import SECRET, ObjectStore
from stored_graphs import arrays

import diskgnn
from diskgnn.cli import main
from diskgnn.cli.serving import Board
from diskgnn.errors import DiskFullError, StoreError
from diskgnn.redaction import has_secret, redacted
from diskgnn.stores.drivers import named_errors

PLANTED = "hunter2"
URLS = [
    f"s3://AKIA:{PLANTED}@bucket/graph",
    f"s3://AKIA:x/{PLANTED}+y@bucket/graph",  # AWS has slashes in its keys
    f"s3:/AKIA:{PLANTED}@bucket/graph",  # what a Path leaves
    f"s3://bucket/graph?secret_key={PLANTED}&region=x",
    f"https://host/graph?X-Amz-Credential={PLANTED}%2F1&X-Amz-Signature={PLANTED}",
    f"https://account.blob.core.windows.net/graph?sv=1&sig={PLANTED}",
    f"gs://bucket/graph#access_token={PLANTED}",
    f"s3://bucket/graph?endpoint_override=http%3A%2F%2Fuser%3A{PLANTED}%40minio",
    f"hdfs://user:{PLANTED}@host/graph",
]
HARMLESS = [
    "s3://bucket/graph?region=eu-central-1&endpoint_override=minio:9000&scheme=http",
    "s3://bucket/run:1/a@b/graph",
    "abfs://container@account.dfs.core.windows.net/graph",
    "sftp://user@host:22/graph",
    "gs://anonymous@bucket/graph?endpoint_override=127.0.0.1:1",
    "author:writes:paper=edges.parquet",
    "memory: expected at least 3 bytes, found 2 (token=x is no URL)",
]


@pytest.mark.parametrize("url", URLS)
def test_secrets_are_taken_out_of_urls(url):
    shown = redacted(f"diskgnn fetch '{url}' here")
    assert PLANTED not in shown
    assert "***" in shown
    assert shown.startswith(f"diskgnn fetch '{url[:4]}")
    assert shown.endswith("' here")
    assert redacted(shown) == shown
    assert has_secret(url)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_has_no_secret_stays(text):
    assert redacted(text) == text


def everything_in(folder: Path) -> bytes:
    return b"".join(str(path).encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file())


COMMANDS = [
    ["convert", "{here}/graph", "--edges", "{url}", "--features", "{url}"],
    ["convert", "{url}", "--edges", "{here}/edges.npy"],
    ["convert", "{here}/graph", "--nodes", "paper={url}"],
    ["convert", "{here}/graph", "--from", "ogb", "{url}"],
    ["prepare", "{url}", "{here}/packed", "--fanouts", "2"],
    ["prepare", "{here}/graph", "{url}", "--fanouts", "2", "--cpu-cache", "0"],
    ["prepare", "{here}/graph", "{here}/packed", "--memory", "{url}"],
    ["train", "{url}", "--checkpoint", "{here}/checkpoint"],
    ["train", "{here}/packed", "--checkpoint", "{url}", "--metrics", "{url}"],
    ["infer", "{here}/graph", "{url}", "--checkpoint", "{url}"],
    ["inspect", "{url}"],
    ["verify", "{url}"],
    ["fetch", "{url}", "{here}/copy"],
    ["push", "{here}/graph", "{url}"],
    ["compare", "{here}/graph", "--fanouts", "2", "--out", "{url}"],
    ["inspect", "{here}", "{url}"],
    ["inspect", "--{url}"],
    ["{url}"],
]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("url", URLS)
def test_commands_neither_say_nor_write_it(url, as_json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        arguments = [each.format(here=tmp_path, url=url) for each in command] + ["--json"] * as_json
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code != 0, arguments
        assert PLANTED not in result.output + result.stdout + result.stderr, arguments
    assert PLANTED.encode() not in everything_in(tmp_path)


def test_a_traceback_does_not_have_it(tmp_path: Path):
    command = [sys.executable, "-m", "diskgnn", "inspect", URLS[2], "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode != 0
    assert PLANTED not in done.stdout + done.stderr


def test_the_page_of_a_command_does_not_show_it():
    board = Board(["diskgnn", "fetch", *URLS])
    assert PLANTED not in json.dumps(board.document())


def test_errors_do_not_have_what_a_driver_says():
    """An endpoint with a password, from the environment: the driver names it when it does not answer."""
    url = f"http://user:{PLANTED}@minio:9000"
    with pytest.raises(StoreError) as error, named_errors("reading s3://bucket/graph"):
        raise OSError(5, f'Could not connect to the endpoint URL: "{url}/bucket"')
    assert PLANTED not in str(error.value) + repr(error.value)
    assert error.value.errno == 5
    assert str(DiskFullError(f"no room for a copy of {url}")) == "no room for a copy of http://***@minio:9000"


def test_what_is_made_on_a_store_has_no_credentials(store: ObjectStore, tmp_path: Path):
    """Those that drivers find in the environment are in no file, here or there, and in no line."""
    url = f"{store.url('secret/graph')}?region=us-east-1"
    features = [[float(node)] for node in range(50)]
    diskgnn.convert(tmp_path / "graph", **arrays(), features=features, num_classes=3)
    result = CliRunner().invoke(main, ["push", str(tmp_path / "graph"), url, "--json"])
    assert result.exit_code == 0, result.output
    said = result.output + CliRunner().invoke(main, ["inspect", url]).output
    there = b"".join(store.read(f"secret/graph/{name}") for name in store.names("secret/graph"))
    assert SECRET.encode() not in said.encode() + there + everything_in(tmp_path)
