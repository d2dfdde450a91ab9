import os
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import diskgnn

ROOT = Path(__file__).parents[1]
_SOURCES = {".py", ".css", ".js"}
pytestmark = pytest.mark.timeout(1800)  # the wheel's native code is compiled, on a machine that may be busy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that `pip install .` would install; built without isolation, so nothing is downloaded.

    What tools/build has compiled for this Python, with the same options, is not compiled again: tools/wheel, of which
    CI makes and tries wheels, begins with nothing.
    """
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    if (compiled := ROOT / "build" / f"dev-{sys.implementation.cache_tag}").exists():
        command.append(f"--config-settings=build-dir={compiled}")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = message_from_string(archive.read(f"diskgnn-{diskgnn.__version__}.dist-info/METADATA").decode())
    assert {"diskgnn/py.typed", "diskgnn/_native.pyi", "diskgnn/cli/__init__.py"} <= names
    assert sum(name.startswith("diskgnn/_native.") and name.endswith(".so") for name in names) == 1
    assert {name.split("/")[0] for name in names} == {"diskgnn", f"diskgnn-{diskgnn.__version__}.dist-info"}
    assert metadata["Version"] == diskgnn.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"diskgnn-{diskgnn.__version__}.dist-info/licenses/LICENSE" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "diskgnn").rglob("*.*") if path.suffix in _SOURCES}
    assert sources <= names


@pytest.mark.slow
def test_installed_command_works_from_any_folder(wheel, tmp_path):
    elsewhere, environment = tmp_path / "elsewhere", tmp_path / "environment"
    elsewhere.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"

    def told(*command):
        done = subprocess.run(command, cwd=elsewhere, check=True, capture_output=True, text=True, env={"PATH": ""})
        return done.stdout.strip()

    # What diskgnn needs comes from this environment, by its path alone, so that no editable diskgnn comes with it.
    site = Path(told(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL)

    assert told(environment / "bin" / "diskgnn", "--version") == f"diskgnn {diskgnn.__version__}"
    where = "import diskgnn, diskgnn._native; print(diskgnn.__file__, diskgnn._native.__file__)"
    assert all(Path(path).is_relative_to(site) for path in told(python, "-c", where).split())


def test_the_changelog_begins_with_this_version():
    assert (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].startswith(diskgnn.__version__)


def test_constraints_pin_everything_that_pyproject_names():
    tomllib = pytest.importorskip("tomllib")
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    pins = [Requirement(line) for line in (ROOT / "tools" / "constraints.txt").read_text().splitlines()
            if line and not line.startswith("#")]  # fmt: skip
    for python in ("3.10", "3.11", "3.12", "3.13"):
        environment = {"python_version": python}
        pinned = {pin.name: pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)}
        assert len(pinned) == sum(pin.marker is None or pin.marker.evaluate(environment) for pin in pins)
        for requirement in map(Requirement, wanted):
            if requirement.marker is None or requirement.marker.evaluate(environment):
                (exact,) = pinned[requirement.name].specifier
                assert exact.operator == "=="
                assert exact.version in requirement.specifier


def test_public_names_are_importable_and_typed():
    assert all(getattr(diskgnn, name) is not None for name in diskgnn.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        diskgnn.nonsense  # noqa: B018
