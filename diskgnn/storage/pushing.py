"""Directories sent to an object store: files first, the manifest last, so that they appear whole or not at all."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from diskgnn.errors import ArtifactError, ConfigError, OutputExistsError
from diskgnn.ordered import in_order
from diskgnn.paths import PathLike
from diskgnn.progress import SILENT, Advance, Reporter, StageReport
from diskgnn.storage import faults
from diskgnn.storage.artifacts import MANIFEST
from diskgnn.storage.file_reading import read_whole
from diskgnn.storage.locks import alone
from diskgnn.storage.manifest import Manifest, open_artifact, read_manifest
from diskgnn.storage.object_stores import AnyPath, StoredPath, local, located
from diskgnn.storage.outgoing import FILES_AT_ONCE, copy_file, record_of, sent_to, write_file
from diskgnn.storage.remote_files import attempted
from diskgnn.storage.replacing import refuse_inside_artifact
from diskgnn.storage.writer import staging_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def push(path: PathLike, url: AnyPath, *, overwrite: bool = False, reporter: Reporter = SILENT) -> StageReport:
    """Send a graph, samples or packed directory, or a folder with those of all ranks, to an object store.

    Each file is compared with its checksum on the way. The manifest is sent last, so nobody opens what is not whole.
    When it stops half-way, the same call goes on: files that are there, as this machine sent them, are not sent again.
    Features that the graph refers to (`--reference-features`) are sent along.

    Args:
        path: the directory.
        url: what it is to be called there, such as 's3://bucket/graph'.
        overwrite: replace what is there, if it is of the same kind. Who reads that meanwhile gets an error.
        reporter: told about the bytes sent.

    Raises:
        OutputExistsError: something else is there.
        ArtifactError: the directory is damaged, or none.
        StoreError: the store failed, or refused.
        ConfigError: no URL, or no such bucket.

    Example:
        >>> diskgnn.push("packed", "s3://bucket/packed")
    """
    target = located(url)
    if not isinstance(target, StoredPath):
        raise ConfigError(f"url: expected a URL such as s3://bucket/graph, found {str(url)!r}")
    folder, started = local(path, "push"), time.perf_counter()
    sendings = [_Sending(folder, target)] if (folder / MANIFEST).exists() else _of_ranks(folder, target)
    for sending in sendings:
        sending.check_output(overwrite=overwrite)
    sent = [_send(sending, reporter) for sending in sendings]
    total_bytes, sent_bytes = sum(each.num_bytes for each in sendings), sum(sent)
    return StageReport("push", time.perf_counter() - started, total_bytes, sent_bytes)


def published(format: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:  # noqa: A002
    """Let a function that writes an artifact `out` of `format` take a URL for it: it writes to scratch, which is sent.

    The function takes `overwrite` and `reporter` as well.
    """

    def decorate(make: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(make)

        @wraps(make)
        def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            bound = signature.bind(*args, **kwargs)
            target = located(bound.arguments["out"])
            if not isinstance(target, StoredPath):
                return make(*args, **kwargs)
            bound.apply_defaults()
            overwrite, reporter = bound.arguments["overwrite"], bound.arguments["reporter"]
            with _made_here(target, format, overwrite=overwrite) as scratch:
                bound.arguments["out"] = scratch
                # What is there stays until what replaces it is complete.
                sending = nullcontext() if _manifest_at(target) else sent_to(scratch, target)
                with sending:
                    made = make(*bound.args, **bound.kwargs)
                if scratch.exists():
                    with _saying_what_is_kept(scratch, target):
                        push(scratch, target, overwrite=overwrite, reporter=reporter)
            return made

        return wrapped

    return decorate


@contextmanager
def _made_here(target: StoredPath, format: str, *, overwrite: bool) -> Iterator[Path]:  # noqa: A002
    """Where to make what is to be sent to `target`; gone in the end, unless what is complete there can be gone on with.

    Raises:
        OutputExistsError: something is at `target`; or an earlier run has made it, but not sent it.
        ConfigError: there is no such bucket.
    """
    _check_output(target, format, None, overwrite=overwrite)
    scratch = target.scratch
    scratch.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (scratch / MANIFEST).exists() and not overwrite:
        raise OutputExistsError(
            f"an earlier run made {target} in {scratch} and could not send it: send that with `diskgnn push {scratch} "
            f"{target}`, or remove it to make it again"
        )
    yield scratch
    shutil.rmtree(scratch.parent, ignore_errors=True)


@contextmanager
def _saying_what_is_kept(made: Path, target: StoredPath) -> Iterator[None]:
    try:
        yield
    except BaseException:
        warnings.warn(f"what was made is kept: `diskgnn push {made} {target}` goes on with sending it", stacklevel=4)
        raise


class _Sending:
    """One directory, on its way."""

    def __init__(self, folder: Path, target: StoredPath) -> None:
        self.manifest, self.target = open_artifact(folder), target
        self.num_bytes = self.manifest.total_bytes
        if headerless := [name for name, file in self.manifest.external.items() if file.headerless]:
            raise ConfigError(
                f"{folder} refers to files without a header ({', '.join(headerless)}), which cannot be sent as a part "
                f"of it: make it without `reference_features`"
            )

    def check_output(self, *, overwrite: bool) -> None:
        """Refuse a place that something else has."""
        _check_output(self.target, self.manifest.format, self.manifest, overwrite=overwrite)

    def document(self) -> bytes:
        """The manifest as it is sent: files that lay elsewhere are a part of it then."""
        text = read_whole(self.manifest.folder / MANIFEST)
        if not self.manifest.external:
            return bytes(text)
        return (json.dumps({**json.loads(text), "external": {}}, indent=1) + "\n").encode()


def _of_ranks(folder: Path, target: StoredPath) -> list[_Sending]:
    found = sorted(each for each in folder.glob("rank-*-of-*") if (each / MANIFEST).exists())
    if not found:
        open_artifact(folder)  # says what is wrong
    if (there := _manifest_at(target)) is not None:
        raise OutputExistsError(f"{target} exists and is a {there.format!r}, no folder of ranks. Choose another output")
    return [_Sending(each, target / each.name) for each in found]


def _check_output(target: StoredPath, format: str, manifest: Manifest | None, *, overwrite: bool) -> None:  # noqa: A002
    """Refuse a place where something is: another artifact, unless it is overwritten, or files of no artifact.

    Args:
        target: the place.
        format: of what is to be sent.
        manifest: of that; None where it is not made yet.
        overwrite: replace an artifact of the same format.
    """
    refuse_inside_artifact(target, "url")
    if target.is_bucket_missing():
        raise ConfigError(f"{target.root} is not there: make the bucket first, or choose another")
    there = _manifest_at(target)
    if there is not None:
        _refuse_foreign(target, {MANIFEST, *there.files})
        if manifest is not None and there.digest == manifest.digest:
            return
        if there.format != format:
            raise OutputExistsError(
                f"{target} exists and is a {there.format!r}: it is never overwritten with a {format!r}. "
                f"Choose another output"
            )
        if not overwrite:
            raise OutputExistsError(f"{target} exists already; pass overwrite=True to replace it")
        return
    if _sent_file(target).exists() or record_of(staging_of(target.scratch.resolve())).exists():
        # What is there was sent from here, and is gone on with or replaced.
        return
    _refuse_foreign(target, set() if manifest is None else set(manifest.files))


def _refuse_foreign(target: StoredPath, known: Set[str]) -> None:
    foreign = sorted(target.entries().keys() - known)
    if ranks := [name for name in foreign if re.fullmatch(r"rank-\d+-of-\d+", name)]:
        raise OutputExistsError(
            f"{target} holds what was prepared for several ranks already: {', '.join(ranks[:5])}. Choose another "
            f"place, or remove them there"
        )
    if foreign:
        raise OutputExistsError(
            f"{target} holds files that are no part of what is to be there ({', '.join(foreign[:5])}): choose another "
            f"place, or remove them"
        )


def _sent_file(target: StoredPath) -> Path:
    return target.scratch.parent / "sent.jsonl"


def _manifest_at(target: StoredPath) -> Manifest | None:
    """That of the artifact which is there.

    Raises:
        OutputExistsError: it cannot be read, so what is there is not known.
    """
    if not (target / MANIFEST).is_file():
        return None
    try:
        return read_manifest(target)
    except ArtifactError as error:
        raise OutputExistsError(f"{target} exists and is no artifact ({error}): it is never overwritten") from error


def _send(sending: _Sending, reporter: Reporter) -> int:
    """Send what is not there; bytes sent."""
    manifest, target = sending.manifest, sending.target
    filesystem, root = target.locate()
    scratch = target.scratch.parent
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    busy = f"another process is sending {target} now; wait for it or stop it"
    with (
        alone(scratch / "push.lock", scratch, busy),
        reporter.stage(f"send {target}", sending.num_bytes, "B") as advance,
    ):
        there = _manifest_at(target)
        sent = _SentFiles(_sent_file(target), manifest.digest, set() if there is None else set(there.files))
        if there is not None and there.digest != manifest.digest:
            filesystem.delete_file(f"{root}/{MANIFEST}")  # from now on, nobody opens it
        if not target.has_buckets():
            filesystem.create_dir(root, recursive=True)
        found = target.entries()
        whole = {name for name, entry in manifest.files.items() if name in found and found[name].size == entry.bytes}
        if there is None or there.digest != manifest.digest:
            whole = {name for name in whole if sent.holds(name, found[name].mtime_ns)}
        missing = [name for name in manifest.files if name not in whole]
        advance(sum(manifest.files[name].bytes for name in whole))
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="push") as pool:
            calls = (partial(_send_file, sending, name, sent, advance) for name in missing)
            for _ in in_order(pool, calls, ahead=FILES_AT_ONCE):
                pass
        faults.point("push.files")
        if there is None or there.digest != manifest.digest:
            attempted(f"writing {target / MANIFEST}", partial(write_file, target / MANIFEST, sending.document()))
        for name in (found.keys() & sent.replaced) - manifest.files.keys():
            filesystem.delete_file(f"{root}/{name}")
        sent.path.unlink(missing_ok=True)
    with suppress(OSError):  # unless something was made there
        scratch.rmdir()
    return sum(manifest.files[name].bytes for name in missing)


def _send_file(sending: _Sending, name: str, sent: _SentFiles, advance: Advance) -> None:
    manifest, target = sending.manifest, sending.target / name
    expected = manifest.files[name].bytes
    manifest.check(name, attempted(f"writing {target}", partial(copy_file, manifest.file(name), target)))
    info = target.info()
    if info.size != expected:
        raise ArtifactError(f"{target} has {info.size} bytes, expected {expected}: somebody else writes there, too")
    sent.add(name, info.mtime_ns)
    faults.point("push.file")
    advance(expected)


@dataclass
class _SentFiles:
    """What this machine has sent of an artifact: names, and when the store says that they were written."""

    path: Path
    digest: str
    replaced: set[str]  # files of what was there before, of other artifacts that were sent in part, too

    def __post_init__(self) -> None:
        self._adding = threading.Lock()
        digest, self._sent = "", dict[str, int]()
        if self.path.exists():
            lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("]")]
            (digest, *replaced), *sent = lines or [("",)]
            self._sent, self.replaced = dict(sent), self.replaced.union(*replaced)
        if digest != self.digest:
            self.replaced, self._sent = self.replaced | self._sent.keys(), {}
        begun = self.path.with_suffix(".begun")
        begun.write_text(
            "".join(f"{json.dumps(line)}\n" for line in [[self.digest, sorted(self.replaced)], *self._sent.items()])
        )
        begun.replace(self.path)  # without the end of a line that a kill cut off

    def holds(self, name: str, mtime_ns: int | None) -> bool:
        """Whether the file that was written then is the one that was sent."""
        return mtime_ns is not None and self._sent.get(name) == mtime_ns

    def add(self, name: str, mtime_ns: int | None) -> None:
        """A file is there whole."""
        with self._adding, self.path.open("a") as file:
            file.write(json.dumps([name, mtime_ns]) + "\n")
