"""What lies where an artifact is to be written: whether it may be replaced, and what killed runs left of their own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from diskgnn.errors import ArtifactError, ConfigError, OutputExistsError
from diskgnn.files.checked_files import sync
from diskgnn.files.destination import lock_of, staging_of
from diskgnn.files.disk_space import JOURNAL
from diskgnn.files.exchange import aside_of
from diskgnn.files.file_reading import read_whole
from diskgnn.files.locks import FileLock
from diskgnn.formats.artifacts import MANIFEST, rank_named
from diskgnn.formats.manifest import Manifest, read_manifest
from diskgnn.paths import resolved
from diskgnn.stores.locations import AnyPath, Location, StoredPath, located
from diskgnn.work.journal import Journal, appended_scratch
from diskgnn.work.sent_record import names_sent, record_of

_FORMAT = re.compile(rb'"format":\s*"diskgnn\.(\w+)"')


def refuse_inside_artifact(output: AnyPath, argument: str = "out", *, is_folder: bool = False) -> None:
    """Refuse an output that lies in the directory of an artifact, at any depth, before anything is written.

    It might replace one of the artifact's files. Where it does not, the artifact could not be overwritten any more.

    Args:
        output: a file or directory that is to be written; it need not exist.
        argument: what to call it.
        is_folder: files are written to it, so that it must not be an artifact's directory either.

    Raises:
        ConfigError: names the directory.
    """
    place = located(output)
    place = resolved(place) if isinstance(place, Path) else place
    for folder in (*((place,) if is_folder else ()), *place.parents):
        if (kind := _kind_of_artifact(folder)) is not None:
            where = f"is a {kind} directory" if folder == place else f"lies inside of the {kind} directory {folder}"
            raise ConfigError(f"{argument}: {output} {where}: choose another place")


def refuse_other_bytes_than_text(path: Path) -> None:
    """Refuses a path whose bytes are no text in UTF-8, by which native code opens no file.

    Raises:
        ConfigError: names the path.
    """
    try:
        str(resolved(path)).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"cannot write {path}: expected a path in UTF-8, and a locale that says so (LC_ALL=C.UTF-8); choose "
            f"another output"
        ) from error


def _kind_of_artifact(folder: Location) -> str | None:
    """Returns a kind such as 'graph', also of a damaged one or of another version; None where there is none, or
    none to be seen."""
    with suppress(OSError):
        if (folder / MANIFEST).is_file() and (found := _FORMAT.search(read_whole(folder / MANIFEST))):
            return found[1].decode()
    return None


def require_replaceable(final: Path, format: str, *, overwrite: bool) -> None:  # noqa: A002  (the manifest's word)
    """Refuse an output that exists, unless an artifact is to be overwritten, before any work is done.

    Raises:
        OutputExistsError: something is there, and `overwrite` is False; or it is not just such an artifact.
        ConfigError: a symbolic link that leads in a circle.
    """
    if final.is_symlink():  # `final` has no links, unless it leads in a circle
        raise ConfigError(f"cannot write {final}: it is a symbolic link that leads in a circle; remove it")
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    # Overwriting deletes a directory: only one that holds the same kind of artifact and nothing else. Anything else
    # is a slip, such as the input's name given as the output.
    try:
        manifest = read_manifest(final)
    except ArtifactError as error:
        raise OutputExistsError(
            f"{final} exists and is no artifact ({error}): it is never overwritten. Choose another output, or "
            f"remove it by hand."
        ) from error
    if manifest.format != format:
        raise OutputExistsError(
            f"{final} exists and is a {manifest.format!r}: it is never overwritten with a {format!r}. "
            f"Choose another output."
        )
    known = {MANIFEST, *manifest.files, *_left(manifest)}
    if foreign := sorted(entry.name for entry in final.iterdir() if entry.name not in known):
        raise OutputExistsError(
            f"{final} holds files that are no part of the artifact ({', '.join(foreign[:5])}): refusing to "
            f"delete them. Choose another output, or move them away."
        )
    if not overwrite:
        raise OutputExistsError(f"{final} exists already; pass overwrite=True to replace it")


def require_place_there(target: StoredPath) -> None:
    """Refuse a place on a store where nothing can be.

    Raises:
        ConfigError: there is no such bucket; `target` lies in an artifact.
        StoreError: the store failed, or refused.
    """
    refuse_inside_artifact(target, "url")
    if target.is_bucket_missing():
        raise ConfigError(f"{target.root} is not there: make the bucket first, or choose another")


def artifact_at(target: StoredPath) -> Manifest | None:
    """Returns the artifact on a store that is at `target`; None if there is none.

    Raises:
        OutputExistsError: a manifest is there, of something that is not known.
    """
    if not (target / MANIFEST).is_file():
        return None
    try:
        return read_manifest(target)
    except ArtifactError as error:
        raise OutputExistsError(f"{target} exists and is no artifact ({error}): it is never overwritten") from error


def require_replaceable_there(
    target: StoredPath,
    format: str,  # noqa: A002  (the manifest's word)
    sent: Manifest | None,
    *,
    overwrite: bool,
) -> None:
    """Refuses as `require_replaceable` does, of a place on a store.

    Args:
        target: the place.
        format: of what is to be sent.
        sent: what is to be; None where it is not made yet.
        overwrite: replace an artifact of the same format.

    Raises:
        OutputExistsError: something is there that may not be replaced.
        ConfigError, StoreError: see `require_place_there`.
    """
    require_place_there(target)
    there = artifact_at(target)
    if there is not None:
        _refuse_foreign(target, {MANIFEST, *there.files, *names_sent(target)})
        if sent is not None and there.digest == sent.digest:
            return
        if there.format != format:
            raise OutputExistsError(
                f"{target} exists and is a {there.format!r}: it is never overwritten with a {format!r}. "
                f"Choose another output"
            )
        if not overwrite:
            raise OutputExistsError(f"{target} exists already; pass overwrite=True to replace it")
    elif not record_of(target).exists():  # what was sent from here is gone on with, or replaced
        _refuse_foreign(target, set() if sent is None else set(sent.files))


def _refuse_foreign(target: StoredPath, known: Set[str]) -> None:
    foreign = sorted(target.entries().keys() - known)
    if ranks := [name for name in foreign if rank_named(name)]:
        raise OutputExistsError(
            f"{target} holds what was prepared for several ranks already: {', '.join(ranks[:5])}. Choose another "
            f"place, or remove them there"
        )
    if foreign:
        raise OutputExistsError(
            f"{target} holds files that are no part of what is to be there ({', '.join(foreign[:5])}): choose another "
            f"place, or remove them"
        )


def restore_replaced(final: Path) -> None:
    """Give a directory its name back that a run took for the one which replaces it, and was killed; remove it if that
    one has the name, which is whole then.

    Whoever calls this has the lock of whoever writes the directory.
    """
    if not (aside := aside_of(final)).exists():
        return
    if (final / MANIFEST).exists():
        shutil.rmtree(aside, ignore_errors=True)
    elif not final.exists() or not any(final.iterdir()):  # somebody may have made an empty one meanwhile
        aside.rename(final)
    sync(final.parent)


def remove_left(manifest: Manifest) -> None:
    """Remove the journal and the scratch of the run that published a directory, if it was killed before it did.

    Whoever calls this has the lock of whoever writes the directory.
    """
    for name in _left(manifest):  # the journal last, which knows the others
        path = manifest.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _left(manifest: Manifest) -> list[str]:
    """Returns what a killed run left in the directory that it published, and is no part of it; the journal comes
    last."""
    journal = manifest.folder / JOURNAL
    if not journal.is_file():
        return []
    return [name for name in appended_scratch(journal) if name not in manifest.files] + [JOURNAL]


def clean_beside(final: Path) -> bool:
    """Remove what killed runs left in an output that is there and beside it; not what a run with `overwrite` goes on
    with.

    Returns True if there is such, and nobody is at work on it.
    """
    staging, lock = staging_of(final), FileLock(lock_of(final))
    with suppress(ArtifactError, OSError):  # no artifact, or a folder that cannot be written to: nothing of ours
        there = read_manifest(final)
        journal = Journal(staging / JOURNAL, [there.format, there.version, there.config, there.source])
        if (staging.exists() or lock.path.exists() or _left(there)) and lock.acquire():
            remove_left(there)
            if not journal.path.exists() or journal.read():
                shutil.rmtree(staging, ignore_errors=True)
            lock.release()
            return staging.exists()
    return False


def replace_file(made: Path, damaged: Path) -> None:
    """Put a file that was made again, durably, in the place of a damaged one, or of what else is there."""
    sync(made)
    if damaged.is_dir():
        shutil.rmtree(damaged)
    made.replace(damaged)
