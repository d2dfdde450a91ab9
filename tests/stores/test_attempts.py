"""What is asked of a store again when it fails, and what is not."""

from __future__ import annotations

import errno

import pytest

from diskgnn.errors import StoreError
from diskgnn.stores import remote_files
from diskgnn.stores.drivers import named_errors
from diskgnn.stores.remote_files import ATTEMPTS, attempted


@pytest.mark.parametrize(
    ("said", "expected"), [("connection reset by peer", ATTEMPTS), ("AWS Error ACCESS_DENIED: no", 1)]
)
def test_a_refusal_is_final_and_the_name_of_a_file_is_none(monkeypatch, said, expected):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_SECONDS", 0.001)
    calls = []

    def call() -> None:
        calls.append(1)
        with named_errors("writing s3://expired/signature.npy"):
            raise OSError(errno.EIO, said)

    with pytest.raises(StoreError, match="^writing s3://expired/signature.npy: .*" + said):
        attempted("sending", call)
    assert len(calls) == expected
