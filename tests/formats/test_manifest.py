"""Opening artifacts: what is damaged or hostile is refused, with nothing but an ArtifactError."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_artifacts import write

from diskgnn.errors import ArtifactError
from diskgnn.formats.artifacts import FEATURES, GRAPH, SAMPLES
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.manifest_document import content_digest
from diskgnn.formats.verification import verify_artifact


def wipe(path: Path, position: int) -> None:
    """Write zeros over the header of a .npy file from there on."""
    content = path.read_bytes()
    path.write_bytes(content[:position] + bytes(60) + content[position + 60 :])


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda p: shutil.rmtree(p), r"is not there; make it with `diskgnn convert`"),
    (lambda p: (shutil.rmtree(p), p.write_text("")), r"is not a directory"),
    (lambda p: (p / "manifest.json").unlink(), r"no diskgnn artifact; .* move it away and make it again"),
    (lambda p: (p / "manifest.json").write_text("{"), r"json is damaged \(it is no JSON\); `diskgnn convert` it again"),
    (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), r"manifest\.json is damaged"),
    (lambda p: (p / "manifest.json").write_text("[" * 100_000), r"manifest\.json is damaged"),
    (lambda p: (p / "manifest.json").write_text("[]"), r"manifest\.json is damaged"),
    (lambda p: (p / "c.bin").unlink(), r"c\.bin, a part of .*, is not there"),
    (lambda p: os.truncate(p / "c.bin", 4999), r"c\.bin has 4999 bytes, expected 5000"),
    (lambda p: os.truncate(p / "a.npy", 50), r"a\.npy has 50 bytes"),
    (lambda p: np.save(p / "a.npy", np.zeros((20, 3), np.uint64)), r"a\.npy holds .*<u8.* expected .*<i8"),
    (lambda p: np.save(p / "a.npy", np.zeros((3, 20), int)), r"a\.npy holds .*\(3, 20\).* expected .*\(20, 3\)"),
    (lambda p: np.save(p / "a.npy", np.zeros((20, 3), int, order="F")), r"Fortran order"),
    (
        lambda p: wipe(p / "a.npy", 20),
        r"a\.npy is damaged .* its header is no \.npy header; `diskgnn convert` it again$",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[message for _, message in DAMAGE])
def test_damage_is_found_on_opening(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write(tmp_path / "graph")
    damage(tmp_path / "graph")
    with pytest.raises(ArtifactError, match=message):
        open_artifact(tmp_path / "graph", GRAPH)


def test_repair_is_advised_only_where_it_can_help(tmp_path: Path) -> None:
    for made in (GRAPH, SAMPLES):
        path = tmp_path / made
        write(path, kind=made)
        content = (path / "c.bin").read_bytes()
        (path / "c.bin").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ArtifactError, match="CRC-32C") as error:
            verify_artifact(path)
        assert ("--repair --graph GRAPH" in str(error.value)) == (made == SAMPLES)
    (path / "manifest.json").write_text("{")
    with pytest.raises(
        ArtifactError, match=r"it is no JSON\); make the directory again with the command that made it$"
    ):
        verify_artifact(path)


@pytest.mark.parametrize("name", ["a.npy", "b.npy", "c.bin"])
def test_any_flipped_bit_is_found_by_verify(tmp_path: Path, name: str) -> None:
    write(tmp_path / "graph")
    path = tmp_path / "graph" / name
    content = path.read_bytes()
    for position in range(0, len(content), 37):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(ArtifactError, match=name):
            verify_artifact(tmp_path / "graph")
    path.write_bytes(content)
    verify_artifact(tmp_path / "graph")


def test_any_flipped_bit_of_the_manifest_is_found(tmp_path: Path) -> None:
    write(tmp_path / "graph")
    path = tmp_path / "graph" / "manifest.json"
    content = path.read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 7
        path.write_bytes(flipped)
        try:
            opened = open_artifact(tmp_path / "graph", GRAPH)
        except ArtifactError:
            continue
        assert json.loads(flipped) == json.loads(content), position  # white space
        assert opened.files.keys() == {"a.npy", "b.npy", "c.bin"}


# Hostile manifests: their digest is right


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((path / "manifest.json").read_text())
    change(document)
    content = {key: document.get(key) for key in ("format", "version", "config", "source", "files")}
    document["digest"] = content_digest(content)
    (path / "manifest.json").write_text(json.dumps(document))


def file_named(name: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["files"][name] = document["files"].pop("c.bin")

    return change


def entry_with(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["files"]["a.npy"].update(changes)


HOSTILE: list[Callable[[dict[str, Any]], object]] = [
    *(file_named(n) for n in ("../c.bin", "/etc/hostname", "x/y", "..", ".", "", "manifest.json", "a\0b", ".hidden",
                              "journal.jsonl", "x" * 300, "-rf", "a\nb")),
    *(entry_with(bytes=n) for n in (-1, "12", 1.5, True, None, [608], 10**400)),
    *(entry_with(crc32c=c) for c in (17, "", "-0000001", "0x00000", "123456789", "GGGGGGGG", None)),
    *(entry_with(shape=s) for s in (None, 3, "20", [20.0, 3], [True, 3], [-20, -3], [2**70], {}, [60])),
    *(entry_with(dtype=d) for d in (None, 3, "|O", "<f4", ["<i8"])),
    lambda d: d["files"].update({"a.npy": 3}),
    lambda d: d["files"]["a.npy"].pop("dtype"),
    lambda d: d["files"]["a.npy"].pop("bytes"),
    lambda d: d.update(files=[]), lambda d: d.update(files=None), lambda d: d.update(config=[]),
    lambda d: d.update(external=[]), lambda d: d.update(external={"zzz": {"path": "/etc/hostname", "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": 3, "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": "/dev/zero", "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": "\0", "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": "/etc/hostname", "mtime_ns": "1"}}),
    lambda d: d.update(external={"c.bin": []}),
    lambda d: d.update(source=3), lambda d: d.update(source={}), lambda d: d.update(source={"format": 1, "digest": 2}),
    lambda d: d.update(version="1"), lambda d: d.update(version=True), lambda d: d.update(version=d["version"] + 1),
    lambda d: d.update(format=3), lambda d: d.update(format=[]), lambda d: d.update(format="diskgnn.other"),
    lambda d: d.update(format=SAMPLES),
    lambda d: d.pop("format"), lambda d: d.pop("files"), lambda d: d.pop("external"), lambda d: d.pop("source"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_manifest(tmp_path: Path, number: int) -> None:
    write(tmp_path / "graph")
    forge(tmp_path / "graph", lambda document: None)
    open_artifact(tmp_path / "graph", GRAPH)  # forging alone is not what is refused
    forge(tmp_path / "graph", HOSTILE[number])
    with pytest.raises(ArtifactError):
        open_artifact(tmp_path / "graph", GRAPH)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_manifest_of_any_json_raises_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "graph").exists():
        write(tmp_path / "graph")
        shutil.copy(tmp_path / "graph" / "manifest.json", tmp_path / "good.json")
    document = json.loads((tmp_path / "good.json").read_text())
    place = document
    for _ in range(data.draw(st.integers(0, 2))):
        children = [key for key, value in place.items() if isinstance(value, dict) and value]
        if children:
            place = place[data.draw(st.sampled_from(children))]
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    (tmp_path / "graph" / "manifest.json").write_text(json.dumps(document))
    try:
        opened = open_artifact(tmp_path / "graph")
    except ArtifactError:
        return
    assert set(opened.files) == {"a.npy", "b.npy", "c.bin"}


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "graph")
    os.truncate(tmp_path / "graph" / "manifest.json", 1 << 40)  # sparse
    with pytest.raises(ArtifactError, match=r"damaged .*larger than 64\.0 MiB"):
        open_artifact(tmp_path / "graph")


def test_a_file_that_is_not_part_of_it(tmp_path: Path) -> None:
    opened = write(tmp_path / "graph")
    with pytest.raises(ArtifactError, match=r"has no file features; diskgnn convert again"):
        opened.array(FEATURES)


@pytest.mark.parametrize("positions", [[-1, 3], [3, 20]])
def test_elements_that_a_file_does_not_have_are_refused(tmp_path: Path, positions: list[int]) -> None:
    """Positions may come from damaged bytes."""
    manifest = write(tmp_path / "graph")
    np.testing.assert_array_equal(manifest.take("a.npy", np.array([0, 19])), np.load(tmp_path / "graph/a.npy")[[0, 19]])
    with pytest.raises(ArtifactError, match=r"a\.npy has 20 elements, and elements .* are wanted: `diskgnn convert`"):
        manifest.take("a.npy", np.array(positions))
