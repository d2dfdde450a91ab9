"""The cache folder of `diskgnn.pyg`: its limit, what is in use, folders of others, several processes, the command."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from commands import Python
from pyg_graphs import FROM, one_type, two_types

from diskgnn.cli import main
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.pyg import LinkNeighborLoader, NeighborLoader
from diskgnn.work import cache_folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def loader(cache: Path, seed: int = 0, **options: object) -> NeighborLoader:
    return NeighborLoader(one_type(), [3, 2], batch_size=16, cache=cache, seed=seed, progress=False, **options)


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def disk_bytes(cache: Path) -> int:
    """What du counts of files."""
    told = subprocess.run(["du", "-s", "-B1", cache], capture_output=True, text=True, check=True).stdout
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    return int(told.split()[0]) - sum(path.stat().st_blocks * 512 for path in folders)


def diskgnn(*arguments: object, exit_code: int = 0, **more: object) -> str:
    done = CliRunner().invoke(main, [str(each) for each in arguments], **more)
    assert done.exit_code == exit_code, done.output
    return done.output


def test_what_is_used_longest_ago_goes_and_nothing_that_is_in_use(cache):
    held, one = loader(cache), loader(cache, seed=1)
    held.prepare()
    one.prepare()
    first, graph = (
        path.name for path in (held.prepare().packed.manifest.path, held.prepare().plan.graph.manifest.path)
    )
    second = one.prepare().packed.manifest.path.name
    del one
    gc.collect()
    for _ in loader(cache, seed=2):
        pass
    (third,) = set(names(cache)) - {first, second, graph}
    os.utime(cache / third, (1, 1))  # used longer ago than the second
    gc.collect()
    limit = disk_bytes(cache) + 4096
    loader(cache, seed=3, cache_limit=limit).prepare()
    found = set(names(cache))
    assert {first, graph} <= found
    assert third not in found
    assert disk_bytes(cache) <= limit
    assert [batch.n_id.tolist() for batch in held]  # is read to the end
    loader(cache, seed=1).prepare()  # what went is made again
    assert second in names(cache)


def test_a_limit_that_leaves_no_room_is_refused_with_the_way_round(cache):
    with pytest.raises(ConfigError, match=r"cache_limit: expected room for .* found 1\.0 KiB of 1\.0 KiB"):
        loader(cache, cache_limit=1024).prepare()
    held = loader(cache)
    held.prepare()
    with pytest.raises(ConfigError, match=r"beside what is in use .* raise it; or it is smaller with fewer prepared_"):
        loader(cache, seed=1, cache_limit=disk_bytes(cache)).prepare()
    with pytest.raises(ConfigError, match="size"):
        loader(cache, cache_limit="much")


def test_rows_that_fit_in_memory_are_on_disk_once(cache, capsys):
    wide = one_type()
    wide.x = torch.randn(120, 4096)
    sizes = []
    for number, epochs in enumerate((1, 8)):
        folder = cache / str(number)
        made = NeighborLoader(wide, [3, 2], batch_size=16, cache=folder, shuffle=True, prepared_epochs=epochs)
        made.prepare()
        sizes.append(sum(path.stat().st_size for path in made.prepare().packed.manifest.path.iterdir()))
    assert sizes[1] < sizes[0] + wide.x.nbytes // 4
    assert "smaller with fewer prepared_epochs= or a larger cpu_cache=" in capsys.readouterr().err


PLENTY = one_type(1000, 10_000)
SIZED = {
    "rows in memory": lambda **of: NeighborLoader(PLENTY, [5, 5], batch_size=64, shuffle=True, **of),
    "some rows in memory": lambda **of: NeighborLoader(PLENTY, [5, 5], batch_size=64, cpu_cache="10%", **of),
    "no rows in memory": lambda **of: NeighborLoader(PLENTY, [5, 5], batch_size=16, cpu_cache=0, **of),
    "all neighbours": lambda **of: NeighborLoader(one_type(), [-1, -1], batch_size=1, **of),
    "one minibatch": lambda **of: NeighborLoader(one_type(), [3, 2], batch_size=1000, **of),
    "two types": lambda **of: NeighborLoader(two_types(), [3, 2], batch_size=4, input_nodes="item", **of),
    "links": lambda **of: LinkNeighborLoader(
        two_types(), [3, 2], edge_label_index=FROM, batch_size=4, neg_sampling_ratio=1.0, **of
    ),
    "links with times": lambda **of: LinkNeighborLoader(
        two_types(), [3, 2], edge_label_index=FROM, edge_label_time=two_types()[FROM].time, time_attr="time",
        batch_size=4, neg_sampling_ratio=1.0, cpu_cache=0, **of,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SIZED)
def test_no_more_is_taken_than_was_said(cache, capsys, kind):
    """Of the disk, as du counts it, and not much less."""
    made = SIZED[kind](cache=cache, prepared_epochs=2).prepare().packed.manifest.path
    number, unit = re.search(r"at most ([\d.]+) ([KM]iB), and scratch", capsys.readouterr().err).groups()
    said = float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit]
    taken = int(subprocess.run(["du", "-s", "-B1", made], capture_output=True, text=True).stdout.split()[0])
    assert taken <= said < 2.5 * taken


def test_folders_that_others_may_change_are_refused(cache, tmp_path):
    cache.mkdir(mode=0o700)
    cache.chmod(0o777)
    with pytest.raises(ConfigError, match=r"nobody else may write to .* mode 0777"):
        loader(cache).prepare()
    cache.chmod(0o700)
    (tmp_path / "link").symlink_to(cache)
    with pytest.raises(ConfigError, match="found a symbolic link"):
        loader(tmp_path / "link").prepare()
    assert names(cache) == []
    loader(tmp_path / "new").prepare()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pyg_graphs import FROM, one_type, two_types
from diskgnn.pyg import NeighborLoader
found = NeighborLoader(one_type(), [3, 2], batch_size=16, cache=sys.argv[2], progress=False)
print([batch.n_id.tolist() for batch in found], flush=True)
sys.stdin.read()
"""


def start(cache: Path) -> Python:
    tests = Path(__file__).parents[1]
    return Python("-c", PROGRAM, tests, cache, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_start_at_once_make_it_once(cache):
    both = [start(cache) for _ in range(2)]
    first, second = (each.communicate("")[0] for each in both)
    assert first == second
    assert first.startswith("[[")
    assert len(names(cache)) == 2


def test_the_command_lists_and_clears_what_nobody_uses(cache):
    other = start(cache)
    assert other.stdout.readline()
    loader(cache, seed=1).prepare()
    gc.collect()
    (cache / "notes").mkdir()  # not ours
    listed = json.loads(diskgnn("cache", "list", "--cache", cache, "--json"))
    assert listed["size_bytes"] == disk_bytes(cache)
    assert sorted(Path(each["path"]).name for each in listed["directories"]) == sorted(set(names(cache)) - {"notes"})
    assert [each["in_use"] for each in listed["directories"]].count(True) == 2
    told = diskgnn("cache", "list", "--cache", cache)
    assert "120 nodes" in told
    assert "in use" in told
    assert "--yes" in diskgnn("cache", "clear", "--cache", cache, exit_code=2)
    cleared = json.loads(diskgnn("cache", "clear", "--cache", cache, "--yes", "--json"))
    assert len(cleared["in_use"]) == 2
    assert len(names(cache)) == 3
    other.communicate("")
    diskgnn("cache", "clear", "--cache", cache, "--yes")
    assert names(cache) == ["notes"]
    diskgnn("cache", "list", "--cache", cache / "nothing")


def test_where_the_command_looks_without_being_told(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    loader(None).prepare()
    gc.collect()
    assert len(json.loads(diskgnn("cache", "list", "--json"))["directories"]) == 2


def test_what_killed_processes_leave_is_told_and_goes(cache):
    loader(cache).prepare()
    gc.collect()
    (made,) = cache.glob("packed-*")
    going = cache / f".{made.name}.going.1"
    made.rename(going)  # killed while removing
    (cache / f".{made.name}.partial").mkdir()  # killed while preparing
    told = diskgnn("cache", "list", "--cache", cache)
    assert "a run that did not finish" in told
    assert "being removed" in told
    diskgnn("cache", "clear", "--cache", cache, "--yes")
    assert names(cache) == []


def test_removing_that_is_interrupted_leaves_nothing_in_parts(cache):
    """A signal while files are removed: what is left has another name, and a loader makes its directory again."""
    expected = [batch.n_id.tolist() for batch in loader(cache)]
    gc.collect()
    (made,) = cache.glob("packed-*")
    for number in range(3000):
        (made / f"more-{number}").touch()
    clearing = Python("-m", "diskgnn", "cache", "clear", "--yes", "--cache", cache, stderr=subprocess.PIPE)
    while made.exists():
        time.sleep(0.0005)
    clearing.send_signal(signal.SIGINT)
    clearing.communicate()
    assert [batch.n_id.tolist() for batch in loader(cache)] == expected


def test_a_directory_that_goes_while_it_is_opened_is_made_again(cache):
    expected = [batch.n_id.tolist() for batch in loader(cache)]
    gc.collect()
    (made,) = cache.glob("packed-*")
    assert cache_folder.remove(made)
    assert cache_folder.use(made) is None
    assert [batch.n_id.tolist() for batch in loader(cache)] == expected


def test_what_is_damaged_is_made_again(cache):
    expected = [batch.n_id.tolist() for batch in loader(cache)]
    gc.collect()
    for made in cache.iterdir():
        (made / "manifest.json").write_text("{")
    assert "damaged" in diskgnn("cache", "list", "--cache", cache)
    assert [batch.n_id.tolist() for batch in loader(cache)] == expected


def test_what_cannot_be_opened_after_it_was_made_again_is_an_error(cache, monkeypatch):
    opened = []

    def fails(path):
        opened.append(path)
        raise ArtifactError(f"{path} is damaged")

    monkeypatch.setattr(Graph, "open", fails)
    with pytest.raises(ArtifactError, match="is damaged"):
        next(iter(loader(cache)))
    assert len(opened) == 4  # each time by who made it, too, who needs no more than to say what looks odd
