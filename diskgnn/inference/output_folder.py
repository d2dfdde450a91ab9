"""The work folder of a file that inference writes: what lies in it goes when the file is whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ConfigError, OutputExistsError
from diskgnn.files import faults
from diskgnn.files.checked_files import sync
from diskgnn.files.checked_lines import checked_lines
from diskgnn.files.destination import lock_of, staging_of
from diskgnn.files.disk_space import JOURNAL, DiskBudget
from diskgnn.files.locks import FileLock
from diskgnn.files.write_errors import beginning
from diskgnn.paths import resolved
from diskgnn.work.overwriting import refuse_inside_artifact
from diskgnn.work.work_folder import WorkFolder

if TYPE_CHECKING:
    from typing_extensions import Self

_OUTPUT = "output"  # in the folder, until it is whole


class OutputFolder(WorkFolder):
    """The work folder of the file `output`.

    Args:
        output: the file that is made.
        making: what follows from nothing but the inputs, see `WorkFolder`.
        overwrite: replace `output` if it is there.
        resumable: another run may go on with what this one leaves.
        disk: what the folder and the output may take, in bytes or as '2GiB'; None is no bound.

    Raises:
        OutputExistsError: `output` exists and `overwrite` is False, or is no file.
        BusyError: another process is making it.
        ConfigError: the folder cannot be written to.
    """

    def __init__(
        self, output: Path, making: Any, *, overwrite: bool, resumable: bool, disk: int | str | None = None
    ) -> None:
        self.output = resolved(output.parent) / output.name  # which is replaced if it is a link: anybody may make one
        check_output(self.output, overwrite=overwrite)
        budget = DiskBudget(disk, [staging_of(self.output)])
        super().__init__(self.output, making, resumable=resumable, disk=budget)
        self._new_folders: list[Path] = []  # that were made for the output

    def __enter__(self) -> Self:
        self._new_folders = [folder for folder in self.output.parents if not folder.exists()]
        try:
            super().__enter__()
        except BaseException:
            self._remove_new_folders()
            raise
        self._remove_output()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._remove_new_folders()

    def _remove_new_folders(self) -> None:
        with suppress(OSError):  # something is in them
            for folder in self._new_folders:
                folder.rmdir()

    def _remove_output(self) -> None:
        """Removes what a killed run wrote of the output, or this one before it found that it had read damaged rows."""
        self.path(_OUTPUT).unlink(missing_ok=True)
        self.disk.look()

    @contextmanager
    def publishing(self) -> Iterator[Path]:
        """Yields where to write the output, whose bytes are claimed; then puts it in place and removes the folder."""
        temporary = self.path(_OUTPUT)
        self._remove_output()
        yield temporary
        sync(temporary)
        self._journal.append(_output_entry(temporary))
        temporary.replace(self.output)
        faults.point("output.published")
        self._published = True
        sync(self.output.parent)
        shutil.rmtree(self.staging, ignore_errors=True)


def _output_entry(output: Path) -> dict[str, int]:
    """Returns what the journal says of an output before that gets its name, which does not change this number."""
    return {"output": output.stat().st_ino}


def _clean_beside(output: Path) -> None:
    """Removes what a run left that was killed between giving `output` its name and the end; not what one that replaces
    it goes on with."""
    staging = staging_of(output)
    lock = FileLock(lock_of(output))
    with suppress(OSError):
        if (staging.exists() or lock.path.exists()) and lock.acquire():
            if not _is_begun(staging / JOURNAL, output):
                shutil.rmtree(staging, ignore_errors=True)
            lock.release()


def _is_begun(journal: Path, output: Path) -> bool:
    """Returns True if a run goes on with what lies beside the journal: it is not what made `output`."""
    return journal.exists() and json.dumps(_output_entry(output)) not in checked_lines(journal.read_bytes())


def check_output(output: Path, *, overwrite: bool, **inputs: object) -> None:
    """Refuse an output that is there, would be in an artifact, or cannot be written. `inputs` may be paths of files.

    Raises:
        ConfigError: it lies inside of an artifact's directory, or of a folder that may not be written to, or is one of
            the inputs.
        OutputExistsError: it is a file and `overwrite` is False, or it is something else.
    """
    refuse_inside_artifact(output)
    if output.is_dir():
        raise OutputExistsError(f"{output} is a directory; choose a file in it, ending in .npy, .parquet or .csv")
    if os.path.lexists(output) and not overwrite:
        _clean_beside(output)
        raise OutputExistsError(f"{output} exists already; pass overwrite=True to replace it")
    for name, path in inputs.items():
        if isinstance(path, str | os.PathLike) and output.exists() and Path(path).exists() and output.samefile(path):
            raise ConfigError(f"{name}: {path} would be replaced by what is made of it; choose another output")
    there = next(folder for folder in output.absolute().parents if folder.exists())
    with beginning(output), tempfile.TemporaryFile(prefix=f".{output.name}.", dir=there):
        pass
