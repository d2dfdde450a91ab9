"""`disk`: what samples, scratch and packed files may take at any time, compared with what the disk says they take."""

import re
import subprocess
import threading
from contextlib import contextmanager

import pytest
from graphs import make_graph

from diskgnn.errors import ConfigError, DiskFullError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.packing.pack import pack
from diskgnn.preparing.prepare import prepare
from diskgnn.sampling.sample import sample
from diskgnn.units import parse_size

SETTINGS = {"fanouts": [4, 3], "batch_size": 16, "epochs": 3, "static_cache": 0, "threads": 2}
CACHE = {"cpu_cache": "10%"}
SPLITS = {"train": 400, "valid": 100}
KIB = 1 << 10
PLENTY = 1 << 40
pytestmark = pytest.mark.filterwarnings("ignore:what was (sampled|packed) is kept")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("disk") / "graph", num_nodes=2000, width=64, splits=SPLITS)


class Du:
    """A reporter that notes the most that `folder` takes, whenever it is told of progress."""

    def __init__(self, folder):
        self.folder, self.most, self._measuring = folder, 0, threading.Lock()

    @contextmanager
    def stage(self, description, total, unit):
        yield self.measure

    def measure(self, _=0):
        with self._measuring:
            told = subprocess.run(["du", "-s", "-B1", self.folder], capture_output=True, text=True, check=False)
            self.most = max(self.most, int(told.stdout.split()[0]))


class Listener(Du):
    """One that is also told lines."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def test_what_will_be_written_is_said_before(graph, tmp_path, undisturbed):
    listener = Listener(tmp_path)
    prepare(graph, tmp_path / "packed", **SETTINGS, **CACHE, reporter=listener)
    (line,) = listener.lines
    packed, scratch = (parse_size(size.replace(" ", "")) for size in re.findall(r"about ([\d.]+ \w+)", line))
    assert packed == pytest.approx(open_artifact(tmp_path / "packed").total_bytes, rel=0.25)
    assert packed + scratch == pytest.approx(listener.most, rel=0.35)
    assert open_artifact(tmp_path / "packed").digest == undisturbed[0]


def attempt(graph, out, disk, **settings):
    """The digest of what was made, or the message of the refusal."""
    try:
        prepare(graph, out, **SETTINGS, **CACHE, disk=disk, **settings)
    except DiskFullError as error:
        return None, str(error)
    return open_artifact(out).digest, ""


@pytest.fixture(scope="module")
def undisturbed(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    du = Du(folder)
    prepare(graph, folder / "packed", **SETTINGS, **CACHE, reporter=du)
    return open_artifact(folder / "packed").digest, du.most


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97])
def test_what_is_written_never_exceeds_it(graph, tmp_path, undisturbed, share):
    digest, most = undisturbed
    du = Du(tmp_path)
    budget = int(share * most)
    found, message = attempt(graph, tmp_path / "packed", budget, reporter=du)
    du.measure()
    assert du.most <= max(budget, 16 * KIB)
    assert found == digest or re.search(r"disk: .* (exactly|at least) .* \d+ bytes are missing", message)
    assert found is None or share > 0.8
    # More of it, and the same command goes on.
    assert attempt(graph, tmp_path / "packed", 3 * most, overwrite=True) == (digest, "")
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def test_a_disk_of_just_that_size_never_runs_full(graph, tmp_path, undisturbed):
    """Whatever its size is: the budget ends it before the disk does."""
    digest, most = undisturbed
    outcomes = set()
    for size in range(64 * KIB, 2 * most, most // 12 // 4096 * 4096):
        folder = tmp_path / str(size)
        folder.mkdir()
        mounted = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if subprocess.run(mounted, capture_output=True, check=False).returncode != 0:
            pytest.skip("a small disk needs the right to mount one")
        try:
            with faults.pretending("disk.free", PLENTY):
                found, message = attempt(graph, folder / "packed", size)
        finally:
            subprocess.run(["umount", folder], check=True)
        assert found == digest or message.startswith("disk: "), message
        outcomes.add(found is None)
    assert outcomes == {True, False}


def test_an_exact_figure_is_just_enough(graph, tmp_path):
    spec = {name: value for name, value in SETTINGS.items() if name != "static_cache"}
    sample(graph, tmp_path / "samples", **spec)

    def missing(disk):
        with pytest.raises(DiskFullError, match="disk: packing") as caught:
            pack(graph, tmp_path / "samples", tmp_path / "packed", **CACHE, static_cache=0, disk=disk)
        (figure,) = re.findall(r"needs (exactly|at least) ", str(caught.value))
        needed, taken, kept, both, allowed, few = map(int, re.findall(r"(\d+) bytes", str(caught.value)))
        assert (both, allowed, few) == (needed + taken + kept, disk, both - allowed)
        return figure, int(re.findall(r"(\d+) bytes are missing", str(caught.value))[0])

    least, too_few = missing(200 * KIB)
    assert least == "at least"
    exact, few = missing(disk := 200 * KIB + too_few + 100 * KIB)
    assert exact == "exactly"
    assert missing(disk + few - 4 * KIB) == ("exactly", 4 * KIB)
    pack(graph, tmp_path / "samples", tmp_path / "packed", **CACHE, static_cache=0, disk=disk + few)
    taken = int(
        subprocess.run(["du", "-s", "-B1", tmp_path / "packed"], capture_output=True, check=True).stdout.split()[0]
    )
    assert taken <= disk + few


def test_what_is_no_size_is_refused(graph, tmp_path):
    with pytest.raises(ConfigError, match="'much'"):
        prepare(graph, tmp_path / "packed", **SETTINGS, **CACHE, disk="much")
    assert list(tmp_path.iterdir()) == []


def test_scratch_that_stays_in_memory_takes_no_disk(tmp_path):
    """Rows of 4 bytes: next to what placing knows of each access they take little."""
    graph = make_graph(tmp_path / "graph", num_nodes=2000, width=1, splits={"train": 1600})
    sample(graph, tmp_path / "samples", fanouts=[8, 8], batch_size=64, epochs=8)
    given = {"cpu_cache": "100%", "static_cache": 0, "memory": "1GiB"}
    pack(graph, tmp_path / "samples", tmp_path / "one", **given)
    told = subprocess.run(["du", "-s", "-B1", tmp_path / "one"], capture_output=True, text=True, check=True).stdout
    enough = int(told.split()[0]) + 25 * 8 * 4 * KIB + 256 * KIB  # a page of each minibatch is kept beside its extent
    found = pack(graph, tmp_path / "samples", tmp_path / "packed", **given, disk=enough)
    assert found.details["train_requested_rows"] * (4 + 4 + 1) > 2**20  # node, position, next use
    assert open_artifact(tmp_path / "packed").digest == open_artifact(tmp_path / "one").digest
