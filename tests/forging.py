"""Artifacts that somebody changed and whose checksums fit: values of the manifest, bytes and shapes of files."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn._native import crc32c
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.manifest_document import content_digest

_ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 127, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63),
    1 << 70, 0.5, 1e308, "", "node", "a:b:c", "\x00", "int8", "float32", "train", "class", "link", [], {}, [1], [1, 2],
    [-1], [[1], [2]], {"a": 1},
]  # fmt: skip


def forge(folder: Path, seed: int) -> str:
    """Change one to three things in the artifact, make its checksums fit, and say what was changed."""
    dice, told = random.Random(seed), []
    document = json.loads((folder / MANIFEST).read_text())
    for _ in range(dice.choice((1, 1, 2, 3))):
        if dice.random() < 0.4 and document["files"]:
            told.append(_change_file(folder, document, dice))
        else:
            told.append(_change_value(document, dice))
    write_manifest(folder, document)
    return f"{folder.name} {seed}: " + ", ".join(told)


def write_manifest(folder: Path, document: dict[str, Any]) -> None:
    """With a digest that fits."""
    document["digest"] = content_digest({
        key: document.get(key) for key in ("format", "version", "config", "source", "files")
    })  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(document))


def _change_value(document: dict[str, Any], dice: random.Random) -> str:
    places = list(_places(document["config"], ("config",)))
    if dice.random() < 0.15:
        places = list(_places(document["files"], ("files",))) or places
    path = dice.choice(places)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    key, kind = path[-1], dice.random()
    before = copy.deepcopy(parent[key])
    if kind < 0.1 and isinstance(parent, dict):
        del parent[key]
        return f"{path} left out"
    if kind < 0.2 and isinstance(parent, list):
        parent.append(copy.deepcopy(dice.choice(parent)))
        return f"{path[:-1]} longer"
    if kind < 0.3 and isinstance(parent, list):
        del parent[key]
        return f"{path} left out"
    if kind < 0.4 and isinstance(parent, dict):
        parent[dice.choice(["extra", "a:b:c", "valid", "test", "", "node"])] = copy.deepcopy(before)
        return f"{path} twice"
    if kind < 0.7 and type(before) is int:
        parent[key] = dice.choice((before + 1, before - 1, -before, before * 2, before * 1000, before << 32, 1 << 40))
    elif kind < 0.6 and isinstance(before, bool):
        parent[key] = not before
    else:
        parent[key] = copy.deepcopy(dice.choice(_ODD))
    return f"{path}: {before!r:.60} -> {parent[key]!r:.60}"


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _change_file(folder: Path, document: dict[str, Any], dice: random.Random) -> str:
    name = dice.choice(sorted(document["files"]))
    path, entry = folder / name, document["files"][name]
    if not path.is_file() or not isinstance(entry, dict):
        return f"nothing of {name}"
    if name.endswith(".npy") and dice.random() < 0.7:
        told = _change_array(path, entry, dice)
    else:
        data = bytearray(path.read_bytes())
        for _ in range(dice.choice((1, 1, 4, 20))):
            if data:
                data[dice.randrange(len(data))] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
        if dice.random() < 0.2:
            del data[dice.randrange(len(data) + 1) :]
        path.write_bytes(data)
        told = "bytes"
    data = path.read_bytes()
    entry |= {"bytes": len(data), "crc32c": f"{crc32c(np.frombuffer(data, np.uint8)):08x}"}
    return f"{told} of {name}"


def _change_array(path: Path, entry: dict[str, Any], dice: random.Random) -> str:
    try:
        array = np.load(path)
    except (ValueError, EOFError):
        return "nothing"
    kind = dice.random()
    if kind < 0.6 and array.size:
        word = np.int32 if array.itemsize % 8 else np.int64  # of a record
        flat = array.reshape(-1).view(word) if array.dtype.names else array.reshape(-1)
        value = dice.choice((-1, 0, 1, 100, 1 << 30, 1 << 40, -(1 << 62)))
        with np.errstate(all="ignore"):
            flat[dice.randrange(len(flat))] = np.array([value]).astype(flat.dtype)[0]
    elif kind < 0.8:
        array = array[: dice.randrange(len(array) + 1)] if array.ndim else array
    elif not array.dtype.names:
        array = dice.choice((array.astype(np.int32), array.astype(np.float64), array.reshape(-1, 1), array[None]))
    np.save(path, array)
    if dice.random() < 0.8:
        descr = np.lib.format.dtype_to_descr(array.dtype)
        entry |= {"dtype": entry.get("dtype") if array.dtype.names else descr, "shape": list(array.shape)}
    return "array"
