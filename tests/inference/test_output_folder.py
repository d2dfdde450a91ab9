"""The folder beside a file of predictions, killed while the file gets its name."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from diskgnn.errors import OutputExistsError
from diskgnn.files import faults
from diskgnn.inference.output_folder import OutputFolder, check_output


def write(output: Path, content: str, *, overwrite: bool = True, resumable: bool = True) -> None:
    with OutputFolder(output, "words", overwrite=overwrite, resumable=resumable) as folder:
        folder.path("scratch").write_text("more words")
        folder.add("scratch")
        folder.commit_files(["scratch"])
        with folder.publishing() as path:
            path.write_text(content)


def killed(output: Path, point: str, content: str, *, resumable: bool = True) -> None:
    """Writes in a child process, which dies at a point."""
    if (child := os.fork()) == 0:
        try:
            with faults.armed(point, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                write(output, content, resumable=resumable)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_a_run_left_beside_its_output_goes_with_the_next(tmp_path: Path, resumable: bool, again: bool) -> None:
    output = tmp_path / "out.csv"
    if again:
        write(output, "before")
    killed(output, "output.published", "words", resumable=resumable)
    assert output.read_text() == "words"
    assert len(list(tmp_path.iterdir())) > 1
    with pytest.raises(OutputExistsError):
        write(output, "others", overwrite=False)
    assert list(tmp_path.iterdir()) == [output]
    assert output.read_text() == "words"


@pytest.mark.filterwarnings("ignore:.*fork")
def test_what_a_run_that_replaces_it_left_stays(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    write(output, "before")
    killed(output, "unit.written", "words")
    folder = tmp_path / ".out.csv.partial"
    left = sorted(folder.iterdir())
    assert folder / "scratch" in left
    with pytest.raises(OutputExistsError):
        check_output(output, overwrite=False)
    assert sorted(folder.iterdir()) == left
    assert output.read_text() == "before"
    write(output, "words")
    assert list(tmp_path.iterdir()) == [output]
    assert output.read_text() == "words"


def test_a_running_one_is_left_alone(tmp_path: Path) -> None:
    output, seen = tmp_path / "out.csv", list[list[Path]]()

    def look() -> None:
        with suppress(OutputExistsError):
            check_output(output, overwrite=False)
        seen.append([path for path in tmp_path.rglob("*") if path.name == "scratch"])

    with faults.armed("output.published", look):
        write(output, "words")
    assert len(seen[0]) == 1
    assert list(tmp_path.iterdir()) == [output]


def test_a_lock_without_a_folder_goes(tmp_path: Path) -> None:
    """Of a run that was killed when it had removed the folder."""
    output = tmp_path / "out.csv"
    write(output, "words")
    (tmp_path / ".out.csv.lock").touch()
    with pytest.raises(OutputExistsError):
        check_output(output, overwrite=False)
    assert list(tmp_path.iterdir()) == [output]


def test_an_output_takes_the_place_of_a_link_and_leaves_what_it_leads_to(tmp_path: Path) -> None:
    """Anybody may make a link where many may write."""
    other, output = tmp_path / "others.parquet", tmp_path / "out.csv"
    for there in (True, False):
        if there:
            other.write_text("theirs")
        output.symlink_to(other)
        with pytest.raises(OutputExistsError):
            check_output(output, overwrite=False)
        write(output, "words")
        assert (output.read_text(), output.is_symlink(), other.exists()) == ("words", False, there)
        assert not there or other.read_text() == "theirs"
        output.unlink()
        other.unlink(missing_ok=True)
    assert not list(tmp_path.iterdir())
