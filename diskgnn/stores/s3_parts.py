"""Multipart uploads of S3 by boto3, which can name the parts of an upload that was cut: pyarrow's driver cannot."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from mmap import mmap
from typing import Any
from urllib.parse import parse_qs, urlsplit

from diskgnn.stores.locations import StoredPath
from diskgnn.stores.upload_memory import UPLOAD_BYTES

PART_BYTES = 8 << 20  # at least; S3 takes no fewer than 5 MiB, and no more than MOST_PARTS
MOST_PARTS = 10_000

# What a URL may say for pyarrow, and boto3 understands, or need not know.
_SETTINGS = {"region", "endpoint_override", "scheme", "allow_delayed_open", "allow_bucket_creation",
             "allow_bucket_deletion"}  # fmt: skip
# What a store says of the parts of an upload that is not there, or to who may write but neither list nor remove parts.
_NOT_ASKED = ("NoSuchUpload", "AccessDenied")


@dataclass(frozen=True)
class S3Object:
    """An object that is written in parts. All that fails raises OSError."""

    _client: Any
    bucket: str
    key: str

    @staticmethod
    def at(target: StoredPath) -> S3Object | None:
        """Returns the object of a URL; None if boto3 is not here, finds no credentials, or may misread the URL."""
        parts = urlsplit(target.url)
        given = parse_qs(parts.query)
        if parts.scheme != "s3" or not given.keys() <= _SETTINGS:
            return None
        endpoint = given.get("endpoint_override", [""])[0]
        if endpoint and "://" not in endpoint:
            endpoint = f"{given.get('scheme', ['https'])[0]}://{endpoint}"
        region = str(target.locate()[0].region)  # as pyarrow has found it
        settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
        client = _client(endpoint, region, settings)
        return None if client is None else S3Object(client, parts.netloc, parts.path.strip("/"))

    @property
    def _object(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.key}

    def begin(self) -> str:
        """Begins an upload. Returns its id."""
        with _as_os_errors():
            return str(self._client.create_multipart_upload(**self._object)["UploadId"])

    def parts(self, upload_id: str) -> dict[int, str] | None:
        """Returns the ETags of the parts that are there, by number; None if the store does not know the upload
        any more, or refuses to say."""
        found: dict[int, str] = {}
        with _as_os_errors():
            try:
                for page in self._client.get_paginator("list_parts").paginate(**self._object, UploadId=upload_id):
                    found |= {part["PartNumber"]: part["ETag"] for part in page.get("Parts", ())}
            except self._client.exceptions.ClientError as error:
                if _code(error) not in _NOT_ASKED:
                    raise
                return None
        return found

    def unfinished(self) -> list[tuple[str, str]]:
        """Returns (key, id) of each upload below this key, as that of a folder, that is not complete; none if the store
        refuses to say."""
        found: list[tuple[str, str]] = []
        with _as_os_errors():
            try:
                pages = self._client.get_paginator("list_multipart_uploads")
                for page in pages.paginate(Bucket=self.bucket, Prefix=f"{self.key}/"):
                    found += [(upload["Key"], upload["UploadId"]) for upload in page.get("Uploads", ())]
            except self._client.exceptions.ClientError as error:
                if _code(error) not in (*_NOT_ASKED, "NotImplemented"):
                    raise
        return found

    def send(self, upload_id: str, number: int, body: mmap) -> str:
        """Sends all of `body` as a part, in place of one of the same number. Returns its ETag."""
        body.seek(0)
        with _as_os_errors():
            sent = self._client.upload_part(**self._object, UploadId=upload_id, PartNumber=number, Body=body)
        return str(sent["ETag"])

    def complete(self, upload_id: str, etags: Mapping[int, str]) -> None:
        """Makes the object of these parts, and no others."""
        parts = [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]
        with _as_os_errors():
            self._client.complete_multipart_upload(**self._object, UploadId=upload_id, MultipartUpload={"Parts": parts})

    def end(self, upload_id: str) -> None:
        """Has its parts removed. Does nothing if the store does not know it, or refuses to."""
        with _as_os_errors():
            try:
                self._client.abort_multipart_upload(**self._object, UploadId=upload_id)
            except self._client.exceptions.ClientError as error:
                if _code(error) not in _NOT_ASKED:
                    raise


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))


@lru_cache(maxsize=8)
def _client(endpoint: str, region: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """Returns a client, which threads may share; with other `settings` of the environment there is another one."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        return None
    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            return None
    except BotoCoreError:  # such as a profile that is not there: what the driver says of it counts
        return None
    given, pool = dict(settings), max(10, UPLOAD_BYTES // PART_BYTES)
    config = Config(max_pool_connections=pool)
    if endpoint or "AWS_ENDPOINT_URL" in given or "AWS_ENDPOINT_URL_S3" in given:  # of another make
        config = config.merge(Config(s3={"addressing_style": "path"}))  # it has no name for each bucket
        if "AWS_REQUEST_CHECKSUM_CALCULATION" not in given:  # many refuse the CRC-32 that AWS takes after a part
            config = config.merge(Config(request_checksum_calculation="when_required"))
    return session.client("s3", region_name=region, endpoint_url=endpoint or None, config=config)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        raise OSError(errno.EIO, f"{error} (HTTP status {status})") from error
    except BotoCoreError as error:
        raise OSError(errno.EIO, str(error)) from error
