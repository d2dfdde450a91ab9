"""Places of files: a path of this machine, or a URL of an object store, such as s3://bucket/graph.

This is the one place that knows URLs. A URL with a secret in it is refused: it would get into manifests and logs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from diskgnn.errors import ConfigError, StoreError
from diskgnn.paths import PathLike
from diskgnn.redaction import has_secret, redacted
from diskgnn.stores.drivers import filesystem_of, named_errors

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)")  # what is left of a URL that was a `Path` for a while

# As SQLAlchemy has it, too; and without its colon, which may be a URL that is wrong, with a password in it.
_DATABASE = re.compile(r"postgres(ql)?(\+\w+)?(:|//)", re.IGNORECASE)


@dataclass(frozen=True)
class StoredPath:
    """A folder or a file of an object store, by its URL. It is no path of this machine: nothing takes it for one."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> StoredPath:
        parts = urlsplit(self.url)
        return StoredPath(urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}")))

    @property
    def name(self) -> str:
        """Returns the last part of the path."""
        return urlsplit(self.url).path.rstrip("/").rpartition("/")[2]

    @property
    def root(self) -> StoredPath:
        """Returns the bucket, or the root of the server."""
        return StoredPath(urlunsplit(urlsplit(self.url)._replace(path="/")))

    @property
    def parent(self) -> StoredPath:
        """Returns the folder that it lies in."""
        parts = urlsplit(self.url)
        return StoredPath(urlunsplit(parts._replace(path=parts.path.rpartition("/")[0])))

    @property
    def parents(self) -> list[StoredPath]:
        """Returns the folders that it lies in: the nearest first, the root last."""
        parts = urlsplit(self.url)
        return [StoredPath(urlunsplit(parts._replace(path=str(each)))) for each in PurePosixPath(parts.path).parents]

    def with_name(self, name: str) -> StoredPath:
        """Returns another path in the same folder."""
        return self.parent / name

    def absolute(self) -> StoredPath:
        """Returns itself: a URL is whole."""
        return self

    @property
    def suffix(self) -> str:
        """Returns what `Path.suffix` is."""
        return Path(self.name).suffix

    @property
    def suffixes(self) -> list[str]:
        """Returns what `Path.suffixes` are."""
        return Path(self.name).suffixes

    @property
    def stem(self) -> str:
        """Returns what `Path.stem` is."""
        return Path(self.name).stem

    def locate(self) -> tuple[pafs.FileSystem, str]:
        """Returns the file system, and the path in it.

        Raises:
            ConfigError: no driver knows URLs of this kind, or its package is not installed.
            StoreError: the store does not answer.
        """
        parts = urlsplit(self.url)
        settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
        filesystem, root = filesystem_of(parts.scheme, parts.netloc, parts.query, settings)
        return filesystem, f"{root.rstrip('/')}/{parts.path.strip('/')}".rstrip("/")

    def info(self) -> pafs.FileInfo:
        """Returns kind, size and time of change of what is there.

        Raises:
            StoreError: the store does not answer, or refuses.
        """
        filesystem, path = self.locate()
        with named_errors(f"looking for {self}"):
            return filesystem.get_file_info(path)

    def is_file(self) -> bool:
        """Returns True if an object is there. Raises StoreError, as all that asks the store."""
        return bool(self.info().is_file)

    def is_dir(self) -> bool:
        """Returns True if objects lie below it."""
        return not self.info().is_file and bool(self.entries())

    def exists(self) -> bool:
        """Returns True if an object is there, or objects lie below it, or it is a bucket."""
        return str(self.info().type.name) != "NotFound"

    def files(self) -> dict[StoredPath, pafs.FileInfo]:
        """Returns all objects below this folder, in the order of their paths; or itself, if it is an object."""
        import pyarrow.fs as pafs

        if (info := self.info()).is_file:
            return {self: info}
        filesystem, path = self.locate()
        with named_errors(f"listing {self}"):
            found = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True))
        files = {info.path.removeprefix(f"{path}/"): info for info in found if info.is_file}
        return {self / name: files[name] for name in sorted(files)}

    def relative_to(self, folder: StoredPath) -> PurePosixPath:
        """Returns its path as seen from a folder that it lies in."""
        return PurePosixPath(urlsplit(self.url).path).relative_to(urlsplit(folder.url).path)

    def has_buckets(self) -> bool:
        """Returns True if the store is flat: a folder is there as soon as something is in it."""
        return self.locate()[0].type_name in ("s3", "gcs", "abfs")

    def is_bucket_missing(self) -> bool:
        """Returns True if the store says that there is no such bucket; it does not say so to everybody."""
        try:
            return self.has_buckets() and not self.root.exists()
        except StoreError:
            return False

    def entries(self) -> dict[str, pafs.FileInfo]:
        """Returns what lies directly in this folder, by name; {} if it is not there. A thousand take one request."""
        import pyarrow.fs as pafs

        filesystem, path = self.locate()
        with named_errors(f"listing {self}"):
            found = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return {info.base_name: info for info in found if info.base_name}


Location = Path | StoredPath
AnyPath = PathLike | StoredPath


def located(path: AnyPath) -> Location:
    """Returns what a path argument means: a URL if it contains `://`, otherwise a path of this machine, where a leading
    `~` or `~user` is a home directory, as it is for the shell.

    Raises:
        ConfigError: no path; a URL that was a `Path` before, which takes one of its slashes away; or one with a secret.
    """
    if isinstance(path, StoredPath):
        return path
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"expected a path or a URL, found {path!r:.80}")
    text = os.fspath(path)
    if _ONE_SLASH.match(text) and not os.path.exists(text.partition("/")[0]):  # noqa: PTH110  (a path of any kind)
        raise ConfigError(f"expected a path or a URL, found {text!r}: pass URLs as text, a Path takes a slash away")
    if "://" not in text:
        if text.startswith("~"):
            return Path(os.path.expanduser(text))  # noqa: PTH111  (which leaves the name of no user as it is)
        return path if isinstance(path, Path) else Path(path)  # a path that is pinned stays that
    _refuse_secrets(text)
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(f"expected file:///path, of this machine, found {text!r}, of {parts.netloc!r}")
        return Path(unquote(parts.path))
    if not parts.path.strip("/") or ".." in parts.path.split("/"):
        raise ConfigError(f"expected the URL of a folder, such as s3://bucket/graph, found {text!r}")
    return StoredPath(urlunsplit(parts._replace(path=parts.path.rstrip("/"), fragment="")))


def is_database(place: object) -> bool:
    """Returns True for text that is meant as the URL of a PostgreSQL database, which is no place of files."""
    return isinstance(place, str) and _DATABASE.match(place) is not None


def stored(url: AnyPath, example: str) -> StoredPath:
    """Returns `url` as a path on a store.

    Raises:
        ConfigError: it is none; names `example` as what was expected.
    """
    if isinstance(place := located(url), StoredPath):
        return place
    raise ConfigError(
        f"url: expected a URL of a store such as {example}, found {place}, a path of this machine (as file:// is): "
        f"copy with `cp -r`"
    )


def names_in(folder: Location) -> list[str]:
    """Returns the names of what lies directly in a folder, wherever that is, in order; nothing if it is not there."""
    if isinstance(folder, StoredPath):
        return sorted(folder.entries())
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def bytes_of(path: Location) -> int:
    """Returns the length of a file, wherever it lies."""
    return int(path.info().size or 0) if isinstance(path, StoredPath) else path.stat().st_size


def is_url(path: object) -> bool:
    """Returns True if an argument is the URL of an object store."""
    return isinstance(path, StoredPath) or (isinstance(path, str) and isinstance(located(path), StoredPath))


def local(path: AnyPath, what: str) -> Path:
    """Returns a path of this machine, for what works with nothing else.

    Raises:
        ConfigError: it is a URL; the message says that `what` needs a local path, and how to have one.
    """
    found = located(path)
    if isinstance(found, StoredPath):
        raise ConfigError(
            f"{what} needs a path of this machine, found {found}; `diskgnn fetch` and `diskgnn push` copy between both"
        )
    return found


def _refuse_secrets(url: str) -> None:
    if has_secret(url):
        raise ConfigError(
            f"{redacted(url)} has credentials in it (shown as ***), which would get into logs. Give them where its "
            f"driver looks: for s3, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials"
        )
