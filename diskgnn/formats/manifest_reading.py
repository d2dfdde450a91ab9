"""The document of a manifest, read from wherever it lies; `manifest` says what it means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diskgnn.errors import ArtifactError, ConfigError, ReadError
from diskgnn.files.file_reading import is_file, read_whole
from diskgnn.formats.artifacts import CHECKPOINT, MADE_BY, MANIFEST, VERSIONS, rank_named, version_of
from diskgnn.formats.records import typed
from diskgnn.stores.locations import Location, StoredPath

_MAX_MANIFEST_BYTES = 64 << 20


def read_document(path: Location, format: str | None = None) -> dict[str, Any]:  # noqa: A002  (the manifest's word)
    """Returns what manifest.json of the directory `path` says: a document of a format and a version that this diskgnn
    reads.

    Raises:
        ArtifactError: missing, no document, or of another format or version; says what is there instead.
        ConfigError: it may not be read.
        ReadError: the disk or the store failed.
    """
    made_by = f"make it with `{MADE_BY[format]}`" if format else "expected a graph, samples, packed or hops directory"
    manifest_path = path / MANIFEST
    # Of a store, the manifest alone is asked for: it comes last, and goes first.
    if not is_file(manifest_path):
        if isinstance(path, Path) and (ranks := sorted(each.name for each in path.glob("*") if rank_named(each.name))):
            raise ArtifactError(
                f"{path} holds a directory for each rank: name one, such as {path / ranks[0]}, which has its part of "
                "the minibatches only"
            )
        if isinstance(path, StoredPath) and path.is_bucket_missing():
            raise ArtifactError(f"{path} is not there: neither is {path.root}; {made_by}")
        if not path.is_dir():
            raise ArtifactError(f"{path} is {'not a directory' if path.exists() else 'not there'}; {made_by}")
        if is_file(path / CHECKPOINT):
            raise ArtifactError(
                f"{path} is a checkpoint that training left, and has no checksums; {made_by}. `diskgnn inspect {path}` "
                "says what it is"
            )
        raise ArtifactError(
            f"{path} has no {MANIFEST}, so it is no diskgnn artifact; {made_by}. If it was one, move it away and "
            "make it again with the command that made it"
        )
    try:
        document = typed(json.loads(read_whole(manifest_path, most_bytes=_MAX_MANIFEST_BYTES).decode()), dict)
        found, version = typed(document["format"], str), typed(document["version"], int)
    except ReadError:
        raise
    except PermissionError as error:
        raise ConfigError(f"you have no permission to read {manifest_path}") from error
    except (OSError, ValueError, KeyError, RecursionError) as error:
        what = "it is no JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else repr(error)
        again = f"`{MADE_BY[format]}` it again" if format else "make the directory again with the command that made it"
        raise ArtifactError(f"{manifest_path} is damaged ({what}); {again}") from error
    if found not in VERSIONS or (format and found != format):
        raise ArtifactError(f"{path} is a {found!r}, expected a {format or 'diskgnn artifact'!r}; {made_by}")
    if version != (expected := version_of(found, document.get("config"))):
        raise ArtifactError(
            f"{path} has format version {version}; this diskgnn reads version {expected}: "
            f"{MADE_BY[found]} it again, or use the diskgnn that wrote it"
        )
    return document
