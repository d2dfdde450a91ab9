"""What stands in manifest.json: its parts, the digest that names an artifact, and what refuses anything else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from diskgnn.formats.artifacts import JOURNAL, MANIFEST

T = TypeVar("T")


@dataclass(frozen=True)
class FileEntry:
    """One file of an artifact. `dtype` and `shape` are set for .npy files."""

    bytes: int
    crc32c: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ExternalFile:
    """A file that the artifact refers to instead of holding it (`convert --reference-features`)."""

    path: str
    mtime_ns: int
    headerless: bool = False  # it holds nothing but the numbers of an array


def content_digest(content: Mapping[str, Any]) -> str:
    """Names an artifact by its content: everything in the manifest but where external files lie."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def entry_to_json(entry: FileEntry) -> dict[str, Any]:
    """`entry` as it stands in manifest.json."""
    record: dict[str, Any] = {"bytes": entry.bytes, "crc32c": f"{entry.crc32c:08x}"}
    if entry.dtype is not None and entry.shape is not None:
        record |= {"dtype": entry.dtype, "shape": list(entry.shape)}
    return record


def external_to_json(external: ExternalFile) -> dict[str, Any]:
    """`external` as it stands in manifest.json."""
    record: dict[str, Any] = {"path": external.path, "mtime_ns": external.mtime_ns}
    return record | ({"headerless": True} if external.headerless else {})


def typed(value: Any, kind: type[T]) -> T:
    """`value`, if JSON gave exactly this type (a bool is no int).

    Raises:
        ValueError: it is of another type.
    """
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, found {str(value)[:80]!r}")
    return value


def file_name(name: str) -> str:
    """`name`, if it names a file in the artifact's own directory and nowhere else."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,250}", name) or name in (MANIFEST, JOURNAL):
        raise ValueError(f"{name!r} is no file name of an artifact")
    return name


def parse_external(record: Any) -> ExternalFile:
    """What `external_to_json` made; or ValueError, KeyError."""
    record = typed(record, dict)
    return ExternalFile(
        typed(record["path"], str), typed(record["mtime_ns"], int), typed(record.get("headerless", False), bool)
    )


def parse_entry(record: Any) -> FileEntry:
    """What `entry_to_json` made; or ValueError, KeyError."""
    record = typed(record, dict)
    size, checksum = typed(record["bytes"], int), typed(record["crc32c"], str)
    if size < 0 or not re.fullmatch(r"[0-9a-f]{8}", checksum):
        raise ValueError(f"{size} bytes with CRC-32C {checksum[:80]!r}")
    if "dtype" not in record:
        return FileEntry(size, int(checksum, 16))
    shape = tuple(typed(length, int) for length in typed(record["shape"], list))
    return FileEntry(size, int(checksum, 16), typed(record["dtype"], str), shape)
