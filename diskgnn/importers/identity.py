"""What a conversion is of: the same arguments, and files that were not changed, have the same name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from diskgnn.importers.containers.raw_files import RawFile
from diskgnn.storage.object_stores import Location, StoredPath, located


class _InMemoryError(TypeError):
    """Something that has no name."""


def identity(arguments: Mapping[str, Any]) -> str | None:
    """Names what is converted; None if something lies in memory, which nothing could say of the next run's.

    Files count by path, length and time of change.
    """
    try:
        document = json.dumps(_named(arguments), sort_keys=True)
    except _InMemoryError:
        return None
    return hashlib.blake2b(document.encode(), digest_size=16).hexdigest()


def _named(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, os.PathLike)):
        raw = RawFile.parse(value)
        return [os.fspath(value), _files(located(value) if raw is None else raw.path)]
    if isinstance(value, Mapping):
        return [[_named(key), _named(part)] for key, part in value.items()]
    if isinstance(value, (tuple, list)) and all(isinstance(part, (str, int, tuple, list)) for part in value):
        return [_named(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if any(callable(part) for part in parts.values()):  # a stream
            raise _InMemoryError
        return [type(value).__name__, _named(parts)]
    raise _InMemoryError


def _files(path: Location) -> list[tuple[str, int, int]]:
    """(path, bytes, time of change) of a file, or of all in a folder; nothing for text that is no path."""
    if isinstance(path, StoredPath):
        return [(str(file), info.size, info.mtime_ns) for file, info in path.files().items()]
    try:
        found = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
        states = [(entry, entry.stat()) for entry in found]
    except OSError:
        return []
    return [(str(entry.resolve()), state.st_size, state.st_mtime_ns) for entry, state in states]
