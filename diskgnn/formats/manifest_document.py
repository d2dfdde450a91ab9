"""What stands in manifest.json: its parts, the digest that names an artifact, and what refuses anything else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from diskgnn.files.disk_space import JOURNAL
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.records import LEFT_OUT, MOST_64_BITS, Codec, Record, typed, whole


def _parse_crc32c(text: Any) -> int:
    if not re.fullmatch(r"[0-9a-f]{8}", typed(text, str)):
        raise ValueError(f"a CRC-32C of {text[:80]!r}")
    return int(text, 16)


@dataclass(frozen=True)
class FileEntry(Record):
    """One file of an artifact. `dtype` and `shape` are set for .npy files."""

    bytes: Annotated[int, whole(most=MOST_64_BITS)]
    crc32c: Annotated[int, Codec("{:08x}".format, _parse_crc32c)]
    dtype: Annotated[str | None, LEFT_OUT] = None
    shape: Annotated[tuple[int, ...] | None, LEFT_OUT] = None

    def check_parsed(self) -> None:
        """Refuses a dtype without a shape."""
        if (self.dtype is None) != (self.shape is None):
            raise ValueError(f"a dtype {self.dtype!r:.80} of shape {self.shape}")


@dataclass(frozen=True)
class ExternalFile(Record):
    """A file that the artifact refers to instead of holding it (`reference_features`)."""

    path: str
    mtime_ns: int
    headerless: Annotated[bool, LEFT_OUT] = False  # it holds nothing but the numbers of an array


def content_digest(content: Mapping[str, Any]) -> str:
    """Names an artifact by its content: everything in the manifest but where external files lie."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def file_name(name: str) -> str:
    """Returns `name`, if it names a file in the artifact's own directory and nowhere else."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,250}", name) or name in (MANIFEST, JOURNAL):
        raise ValueError(f"{name!r} is no file name of an artifact")
    return name
