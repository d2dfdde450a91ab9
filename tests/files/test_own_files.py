"""Names that others can guess, in folders that others may write to: nothing that they put there is used or changed."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import run
from object_store import ObjectStore
from stored_graphs import PREPARE, arrays
from training_runs import make_class_graph

import diskgnn
from diskgnn.errors import ConfigError
from diskgnn.files.destination import make_scratch
from diskgnn.files.own_files import open_lock_file, private_folder
from diskgnn.stores.locations import located

OTHER = 65534  # a user who is not this one
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that everybody may write to, without the sticky bit, by which the kernel would help."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that links lead to."""
    file = tmp_path / "precious"
    file.write_text("precious")
    return file


def link(name: Path, target: Path) -> Path:
    """A symbolic link, another user's where that can be."""
    name.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(name, OTHER, OTHER)
    return name


def features(num_nodes: int = 50) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(num_nodes, 8)).astype(np.float32)


def convert(out: Path | str) -> None:
    diskgnn.convert(out, **arrays(), features=features(), num_classes=3)


# Scratch of outputs with a URL


def plant(tmpdir: Path, kind: str) -> Path:
    folder = tmpdir / f"diskgnn-{os.getuid()}"
    if kind == "a link":
        (tmpdir / "elsewhere").mkdir()
        return link(folder, tmpdir / "elsewhere")
    if kind == "a file":
        folder.write_text("")
        return folder
    folder.mkdir()
    folder.chmod(0o777)
    if kind == "another user's":
        os.chown(folder, OTHER, OTHER)
    return folder


@pytest.mark.parametrize("kind", ["a link", "a file", "open to others", pytest.param("another user's", marks=as_root)])
def test_scratch_of_urls_that_others_made_is_not_used(store: ObjectStore, tmp_path: Path, kind: str):
    folder = plant(tmp_path / "scratch", kind)
    found = folder.lstat()
    for begin in (lambda: convert(store.url("owned/graph")), partial(make_scratch, located(store.url("owned/graph")))):
        with pytest.raises(ConfigError) as error:
            begin()
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        for word in (str(folder), f"uid {found.st_uid})", f"mode {mode}", "remove it", "TMPDIR"):
            assert word in str(error.value)
    assert not folder.is_dir() or list(folder.iterdir()) == []
    assert store.names("owned") == []


def test_scratch_of_urls_is_for_this_user_alone(store: ObjectStore, tmp_path: Path):
    of_user = tmp_path / "scratch" / f"diskgnn-{os.getuid()}"
    of_user.mkdir(mode=0o755)  # as it was made once
    scratch = make_scratch(located(store.url("mine/graph")))
    assert scratch.parents[1] == of_user
    for folder in (of_user, scratch.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    convert(store.url("mine/graph"))
    assert diskgnn.Graph.open(store.url("mine/graph")).num_nodes == 50


@as_root
def test_a_user_uses_its_own_folder_and_no_other(tmp_path: Path):
    """In a process of another user: what root made is refused, what it makes itself is used again."""
    program = """
import os, sys
from pathlib import Path
from diskgnn.errors import ConfigError
from diskgnn.files.own_files import private_folder
os.setgroups([]); os.setgid(65534); os.setuid(65534)
private_folder(Path(sys.argv[1]) / "mine")
private_folder(Path(sys.argv[1]) / "mine")
try:
    private_folder(Path(sys.argv[1]) / "roots")
except ConfigError as error:
    print(error)
"""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o777)
    (tmp_path / "roots").mkdir(mode=0o700)
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert "found a folder of root (uid 0), mode 0700" in done.stdout
    assert (tmp_path / "mine").stat().st_uid == OTHER


# Locks


def test_a_lock_does_not_follow_a_link(shared: Path, precious: Path):
    link(shared / ".graph.lock", precious)
    with pytest.raises(ConfigError, match=r"\.graph\.lock: expected a lock file .* found a symbolic link"):
        convert(shared / "graph")
    assert precious.read_text() == "precious"


def test_no_lock_of_any_command_follows_a_link(shared: Path, precious: Path):
    make_class_graph(shared / "graph")
    diskgnn.prepare(shared / "graph", shared / "packed", **PREPARE)
    link(shared / ".other.preparing.lock", precious)
    with pytest.raises(ConfigError, match="a symbolic link"):
        diskgnn.prepare(shared / "graph", shared / "other", **PREPARE)
    (shared / "checkpoint").mkdir()
    link(shared / "checkpoint" / ".training.lock", precious)
    with pytest.raises(ConfigError, match="a symbolic link"):
        diskgnn.train(shared / "packed", epochs=1, checkpoint=shared / "checkpoint")
    diskgnn.train(shared / "packed", hidden=4, epochs=1, checkpoint=shared / "trained")
    link(shared / ".rows.npy.lock", precious)
    with pytest.raises(ConfigError, match="a symbolic link"):
        diskgnn.infer(shared / "graph", shared / "rows.npy", shared / "trained")
    assert precious.read_text() == "precious"


def test_a_lock_is_not_truncated(shared: Path, precious: Path):
    os.link(precious, shared / ".graph.lock")  # a hard link is no symbolic one
    convert(shared / "graph")
    assert precious.read_text() == "precious"


def test_a_pipe_is_no_lock(shared: Path):
    os.mkfifo(shared / "lock")
    with pytest.raises(ConfigError, match="expected a lock file"):
        open_lock_file(shared / "lock")


# Staging directories and files that are renamed into place


@as_root
@pytest.mark.parametrize("kind", ["a folder", "a link"])
def test_what_another_user_staged_is_not_gone_on_with(shared: Path, kind: str):
    staging = shared / ".graph.partial"
    if kind == "a link":
        (shared / "theirs").mkdir()
        link(staging, shared / "theirs")
    else:
        staging.mkdir()
        os.chown(staging, OTHER, OTHER)
    with pytest.raises(ConfigError, match=r"\.graph\.partial: expected a folder of this user"):
        convert(shared / "graph")
    convert(shared / "graph2")
    scratch = shared / ".packed.preparing"
    scratch.mkdir()
    os.chown(scratch, OTHER, OTHER)
    with pytest.raises(ConfigError, match=r"\.packed\.preparing: expected a folder of this user"):
        diskgnn.prepare(shared / "graph2", shared / "packed", **PREPARE)
    assert list(scratch.iterdir()) == []


def test_a_checkpoint_does_not_follow_a_link(shared: Path, precious: Path):
    make_class_graph(shared / "graph")
    diskgnn.prepare(shared / "graph", shared / "packed", fanouts=[4], batch_size=16, cpu_cache=0, threads=1)
    (shared / "checkpoint").mkdir()
    link(shared / "checkpoint" / ".checkpoint.pt.partial", precious)
    diskgnn.train(shared / "packed", hidden=4, epochs=1, checkpoint=shared / "checkpoint")
    assert precious.read_text() == "precious"
    assert diskgnn.load_model(shared / "checkpoint") is not None
    # The metrics of a run that goes on are written anew, too.
    link(shared / ".metrics.jsonl.partial", precious)
    diskgnn.train(shared / "packed", hidden=4, epochs=1, checkpoint=shared / "other", metrics=shared / "metrics.jsonl")
    diskgnn.train(
        shared / "packed", hidden=4, epochs=2, checkpoint=shared / "other", metrics=shared / "metrics.jsonl",
        resume=True,
    )  # fmt: skip
    assert precious.read_text() == "precious"


def test_relinking_does_not_follow_a_link(shared: Path, precious: Path):
    np.save(shared / "features.npy", features())
    diskgnn.convert(
        shared / "graph", **arrays(), features=shared / "features.npy", num_classes=3, reference_features=True
    )
    (shared / "features.npy").rename(shared / "moved.npy")
    link(shared / ".graph.manifest", precious)
    diskgnn.relink(shared / "graph", shared / "moved.npy")
    assert precious.read_text() == "precious"
    run("verify", shared / "graph")


# Folders of other users in shared scratch


@as_root
def test_scratch_of_others_does_not_stop_fresh_epochs(shared: Path):
    from diskgnn.files.scratch_folders import ScratchFolder

    others = shared / f"diskgnn-fresh-{socket.gethostname()}-00000000"
    others.mkdir()
    link(others.with_name(f"{others.name}.lock"), shared / "nothing")
    folder = ScratchFolder(shared, "diskgnn-fresh-", "folder")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.delete()
    assert others.is_dir()


def test_scratch_that_another_machine_works_in_stays(shared: Path, monkeypatch: pytest.MonkeyPatch):
    """Its lock may hold there only."""
    from diskgnn.files.scratch_folders import ScratchFolder

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
        there = ScratchFolder(shared, "diskgnn-fresh-", "folder")
    (there.path.with_name(f"{there.path.name}.lock")).unlink()  # as if this machine did not see it
    with ScratchFolder(shared, "diskgnn-fresh-", "folder") as here:
        assert here.is_dir()
        assert there.path.is_dir()
    there.delete()


@as_root
def test_scratch_in_a_full_folder_is_no_wrong_argument(tmp_path: Path):
    from diskgnn.errors import DiskFullError
    from diskgnn.files.scratch_folders import ScratchFolder

    mounted = ["mount", "-t", "tmpfs", "-o", "nr_inodes=2", "tmpfs", tmp_path]  # its own folder, and a lock
    if subprocess.run(mounted, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    try:
        with pytest.raises(DiskFullError, match=rf"TMPDIR: {tmp_path} on \S+ is full .*free some space"):
            ScratchFolder(tmp_path, "diskgnn-copies-", "TMPDIR")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_private_folder_is_made_with_those_above_it(tmp_path: Path):
    made = private_folder(tmp_path / "one" / "two")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
