"""Updates the reference of a graph to features that lie outside of it, after these have moved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES, checksum_file, npy_header, sync
from diskgnn.files.destination import staging_of, writing_alone
from diskgnn.files.own_files import open_new_file
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import MANIFEST, node_file
from diskgnn.formats.manifest import Manifest, read_manifest
from diskgnn.formats.manifest_document import ExternalFile
from diskgnn.paths import PathLike, resolved
from diskgnn.stores.locations import local

_COMPARED_CHUNKS = 1024


def relink(graph: PathLike, features: PathLike, *, node_type: str | None = None, verify: bool = False) -> None:
    """Makes `graph` refer to its features where they lie now.

    The file has to be the one that was referred to: its length, its header, and 1,024 pieces of it are compared with
    what the graph knows. The digest of the graph stays the same, so what was made from it still fits.

    Args:
        graph: a graph directory, made with `reference_features`.
        features: the file.
        node_type: the type whose features moved; None: the only type whose features lie elsewhere.
        verify: compare all of the file.

    Raises:
        ArtifactError: `graph` is not a graph directory, or the file is another one.
        ConfigError: the graph does not refer to features of that type.
        BusyError: another process is writing the graph.

    Example:
        >>> diskgnn.relink("graph", "/mnt/new/features.npy")
    """
    final = resolved(local(graph, "relinking"))
    path = local(features, "relinking").absolute()
    read_manifest(graph, artifacts.GRAPH)  # says what is wrong with a path beside which there may be no lock
    with writing_alone(final):  # also while files are compared: nobody else may replace the graph by another one
        manifest = read_manifest(graph, artifacts.GRAPH)
        name = _external_name(manifest, node_type)
        _require_same(manifest, name, path, verify)
        external = ExternalFile(str(path), path.stat().st_mtime_ns, manifest.external[name].headerless)
        document = json.loads((final / MANIFEST).read_text())
        document["external"][name] = external.to_json()
        partial = staging_of(final).with_suffix(".manifest")
        with open_new_file(partial) as file:
            file.write((json.dumps(document, indent=1) + "\n").encode())
        sync(partial)
        partial.replace(final / MANIFEST)
        sync(final)


def _external_name(manifest: Manifest, node_type: str | None) -> str:
    found = sorted(manifest.external)
    if not found:
        raise ConfigError(f"features: {manifest.path} holds its features itself; it refers to none elsewhere")
    if node_type is None:
        if len(found) > 1:
            raise ConfigError(f"node_type: expected the type whose features moved; {', '.join(found)} lie elsewhere")
        return found[0]
    name = node_file(artifacts.FEATURES, node_type)
    if name not in found:
        raise ConfigError(f"node_type: {', '.join(found)} lie elsewhere, found {node_type!r}")
    return name


def _require_same(manifest: Manifest, name: str, path: Path, verify: bool) -> None:
    entry, again = manifest.files[name], "pass the file that the graph was made from, or `diskgnn convert` again"
    if not path.is_file():
        raise ArtifactError(f"expected a file of features, found none at {path}; {again}")
    if (size := path.stat().st_size) != entry.bytes:
        raise ArtifactError(f"{path} has {size} bytes, expected {entry.bytes}; {again}")
    if not manifest.external[name].headerless and (found := npy_header(path)) != (entry.dtype, entry.shape):
        raise ArtifactError(f"{path} holds {found}, expected {(entry.dtype, entry.shape)}; {again}")
    if verify:
        if checksum_file(path) != entry.crc32c:
            raise ArtifactError(f"{path} holds other bytes than those that the graph was made from; {again}")
        return
    node_type = name.removeprefix(node_file(artifacts.FEATURES, "")[: -len(".npy")]).removesuffix(".npy")
    checksums = manifest.checked_array(node_file(artifacts.FEATURE_CHECKSUMS, node_type))
    chunks = np.unique(np.linspace(0, len(checksums) - 1, _COMPARED_CHUNKS).astype(np.int64))
    with path.open("rb") as file:
        for chunk in chunks.tolist():
            file.seek(chunk * CHECKSUM_CHUNK_BYTES)
            if crc32c(file.read(CHECKSUM_CHUNK_BYTES), 0) != checksums[chunk]:
                raise ArtifactError(f"{path} holds other bytes than those that the graph was made from; {again}")
