"""Outputs with a URL: a function writes to scratch of this machine, and what it writes is sent while it is made."""

from __future__ import annotations

import inspect
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from diskgnn.errors import OutputExistsError, callers_level
from diskgnn.files.destination import Destination, make_scratch, scratch_of
from diskgnn.formats.artifacts import MANIFEST, rank_directory
from diskgnn.formats.rank_directories import ranks_in
from diskgnn.specs.near_names import near_name
from diskgnn.stores.locations import StoredPath, located
from diskgnn.stores.uploads import sending_bytes
from diskgnn.work.outbox import Outbox
from diskgnn.work.overwriting import artifact_at, require_place_there, require_replaceable_there
from diskgnn.work.pushing import push
from diskgnn.work.sent_record import SentRecord, record_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def published(
    format: str,  # noqa: A002
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Lets a function that writes an artifact `out` of `format` take a URL for it: it writes to scratch, which is sent.

    The function takes `overwrite`, `progress` and `reporter` as well, and maybe `ranks`. Of a path of this machine it
    gets what `located` makes of it. A keyword that it does not take is a TypeError, which tells the one that was meant,
    or for a name of `elsewhere` what to pass in its place.
    """

    def decorate(make: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(make)

        @wraps(make)
        def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                wrong = next((name for name in kwargs if name not in signature.parameters), "")
                hint = f"; pass {elsewhere[wrong]}" if wrong in elsewhere else near_name(wrong, signature.parameters)
                raise TypeError(f"{make.__name__}: {error}{hint}") from None
            target = located(bound.arguments["out"])
            if not isinstance(target, StoredPath):
                bound.arguments["out"] = target
                return make(*bound.args, **bound.kwargs)
            bound.apply_defaults()
            overwrite, progress, reporter = (bound.arguments[name] for name in ("overwrite", "progress", "reporter"))
            if bound.arguments.get("ranks", 1) == 1:
                _finish_what_was_published(target)
                require_replaceable_there(target, format, None, overwrite=overwrite)
            else:
                for shard in ranks_in(target):
                    _finish_what_was_published(target / rank_directory(shard.rank, shard.world_size))
                _require_place_of_ranks(target, overwrite=overwrite)
            with _made_here(target, overwrite=overwrite) as scratch:
                is_new = artifact_at(target) is None
                bound.arguments["out"] = Destination(scratch, target if is_new else None, sending_bytes(target))
                made = make(*bound.args, **bound.kwargs)
                if is_new:
                    return made
                # What is there stayed until what replaces it was complete.
                with _saying_what_is_kept(scratch, target):
                    push(scratch, target, overwrite=overwrite, progress=progress, reporter=reporter)
                return made

        return wrapped

    return decorate


def _require_place_of_ranks(target: StoredPath, *, overwrite: bool) -> None:
    """Refuses to overwrite ranks one by one: readers would find some of the old and some of the new.

    Raises:
        OutputExistsError: there are some, and they would be overwritten; or an artifact is there. What else is,
            `prepare` looks at.
        ConfigError: see `require_place_there`.
    """
    require_place_there(target)
    if (there := artifact_at(target)) is not None:
        raise OutputExistsError(f"{target} exists and is a {there.format!r}, no folder of ranks. Choose another output")
    if overwrite and ranks_in(target):
        raise OutputExistsError(
            f"{target} holds ranks already, which are never overwritten on a store: leave out `overwrite` to make "
            f"those that are missing, or remove them there to make all again"
        )


@contextmanager
def _made_here(target: StoredPath, *, overwrite: bool) -> Iterator[Path]:
    """Yields where to make what is to be sent to `target`. Removes it in the end, unless the next run can
    go on with it.

    Raises:
        OutputExistsError: an earlier run has made it, but not sent it.
    """
    scratch = make_scratch(target)
    if (scratch / MANIFEST).exists() and not overwrite:
        raise OutputExistsError(
            f"an earlier run made {target} in {scratch} and could not send it: send that with `diskgnn push {scratch} "
            f"{target}`, or remove it to make it again"
        )
    try:
        yield scratch
    except BaseException:
        with suppress(OSError):  # something is kept there
            scratch.parent.rmdir()
        raise
    _remove_scratch(target)


def _remove_scratch(target: StoredPath) -> None:
    """Removes what was needed here to send to `target`: the record last, by which a later run knows the rest."""
    folder, record = scratch_of(target).parent, record_of(target)
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path != record:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _finish_what_was_published(target: StoredPath) -> None:
    """Removes what a run left, here and there, that was killed between the manifest's arrival and its end.

    Raises:
        BusyError: it is still at that.
    """
    record = SentRecord(target)
    record.read()
    there = artifact_at(target) if record.publishing is not None else None
    if there is None or there.digest != record.publishing:
        return
    with Outbox(target) as outbox:
        outbox.begin()
        outbox.finish(there.files)
    _remove_scratch(target)


@contextmanager
def _saying_what_is_kept(made: Path, target: StoredPath) -> Iterator[None]:
    try:
        yield
    except BaseException:
        warnings.warn(
            f"what was made is kept: `diskgnn push {made} {target}` goes on with sending it", stacklevel=callers_level()
        )
        raise
