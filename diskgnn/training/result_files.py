"""Files that training writes beside its result: a path that cannot be written is named before anything is computed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diskgnn.batches.batch_source import BatchSource
from diskgnn.errors import ConfigError, DiskGNNError
from diskgnn.files.file_reading import ReadableFile
from diskgnn.files.write_errors import raise_write_error
from diskgnn.loading.tracing import TRACE_START, Timeline, write_trace
from diskgnn.paths import PathLike
from diskgnn.stores.locations import local
from diskgnn.work.overwriting import refuse_inside_artifact


@contextmanager
def writing(path: PathLike, argument: str) -> Iterator[None]:
    """Turns what the operating system refuses within the block into an error that names `path` and its `argument`.

    Raises:
        DiskFullError: the disk or the quota is full.
        ConfigError: anything else: no permission, a file where a directory should be, ...
    """
    try:
        yield
    except DiskGNNError:
        raise
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error  # torch.save raises a RuntimeError while it handles the OSError
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        if cause is None:
            raise
        raise_write_error(cause, Path(path), f"`{argument}` says where")
        reason = cause.strerror or str(cause)
        raise ConfigError(f"{argument}: cannot write {path} ({reason}); choose another place") from error


def output_places(**outputs: PathLike | None) -> dict[str, Path | None]:
    """Returns where the outputs of `train` go, by argument: outside of all artifacts, which is looked at before
    anything is written. `checkpoint` and `tensorboard` are folders, the others files.

    Raises:
        ConfigError: one is a URL, lies in an artifact's directory or is one; names the argument.
    """
    places = {argument: None if path is None else local(path, argument) for argument, path in outputs.items()}
    for argument, path in places.items():
        if path is not None:
            refuse_inside_artifact(path, argument, is_folder=argument in ("checkpoint", "tensorboard"))
    return places


def check_writable(directory: PathLike, argument: str) -> None:
    """Make `directory` and try to write a file in it.

    Raises:
        ConfigError, DiskFullError: see `writing`.
    """
    with writing(directory, argument):
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(bytes(4096))
            os.fsync(file.fileno())


def refuse_foreign(path: PathLike, argument: str, start: str, what: str) -> None:
    """Refuses a file that is there and does not begin with `start`: it is something else, which would be lost.

    Args:
        path: of the output.
        argument: that names it.
        start: with what each file of this kind begins.
        what: the kind, for the message.

    Raises:
        ConfigError: it is another file, or cannot be read.
    """
    with writing(path, argument):
        if not Path(path).is_file():
            return
        with ReadableFile(Path(path)) as file:
            head = file.read(len(start))
    if head != start.encode()[: len(head)]:  # of a killed run, less may be there
        raise ConfigError(f"{argument}: {path} exists and is no {what}; name another file (it was not changed)")


@contextmanager
def traced(source: BatchSource, path: PathLike) -> Iterator[Timeline]:
    """Makes a timeline of the block, written to `path` when it ends, however it ends.

    Raises:
        ConfigError, DiskFullError: see `writing`. `path` is tried before the block begins.
    """
    refuse_foreign(path, "trace", TRACE_START, "timeline of training")
    with writing(path, "trace"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_trace([], path)
    timeline = Timeline(source)
    try:
        yield timeline
    finally:
        with writing(path, "trace"):
            write_trace(timeline.events(), path)
