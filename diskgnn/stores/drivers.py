"""Drivers of object stores: finds the one that knows a URL, and names what it says when it fails.

pyarrow.fs reads and writes s3, gs and hdfs; fsspec what pyarrow has no driver for. Endpoints, regions and credentials
come from where these look for them: the environment, files in the home directory, the role of the machine.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlunsplit

from diskgnn.errors import ConfigError, StoreError, UnavailableError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_ONE_REQUEST = "allow_delayed_open"  # files below 5 MB take one request then, not three
# What drivers say when asking again does not help.
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|EXPIRED|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION|INVALID_CLIENT_TOKEN"
    r"|HTTP (status )?(401|403)|PERMISSION_DENIED|UNAUTHENTICATED|Permission denied",
    re.IGNORECASE,
)
_NAMES = re.compile(r"(?<!\w)'.*?'(?!\w)|\S*/\S*")  # of objects and buckets, and URLs, as drivers repeat them


@lru_cache(maxsize=32)
def filesystem_of(
    scheme: str, netloc: str, query: str, settings: tuple[tuple[str, str], ...]
) -> tuple[pafs.FileSystem, str]:
    """Returns the file system of a bucket or server, and the path of its root.

    Its driver finds `settings` in the environment when it is made: with others, there is another one.
    """
    import pyarrow as pa

    root = urlunsplit((scheme, netloc, "/", query, ""))
    try:
        with named_errors(f"reaching {root}"):
            return _arrow_filesystem(scheme, root, query)
    except pa.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise ConfigError(f"{root} is no URL that pyarrow takes: {_first_line(error)}") from error
    except StoreError as error:
        if "libjvm" in str(error) or "libhdfs" in str(error):
            raise UnavailableError(
                f"{scheme}:// needs Java and Hadoop's libhdfs (JAVA_HOME, HADOOP_HOME, CLASSPATH), which are not here; "
                f"webhdfs:// does without"
            ) from error
        raise
    return _fsspec_filesystem(scheme, root)


def _arrow_filesystem(scheme: str, root: str, query: str) -> tuple[pafs.FileSystem, str]:
    import pyarrow as pa
    import pyarrow.fs as pafs

    found: tuple[pafs.FileSystem, str]
    if scheme == "s3" and _ONE_REQUEST not in query:
        with suppress(pa.ArrowInvalid):  # this pyarrow is older, or the URL is wrong: then the other call says so
            found = pafs.FileSystem.from_uri(f"{root}{'&' if query else '?'}{_ONE_REQUEST}=true")
            return found
    found = pafs.FileSystem.from_uri(root)
    return found


def _fsspec_filesystem(scheme: str, root: str) -> tuple[pafs.FileSystem, str]:
    import pyarrow.fs as pafs

    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(root)
    except ImportError as error:  # fsspec, or what it needs for this protocol; it says which
        raise UnavailableError(f"{scheme}:// needs a package that is not here: {error}") from error
    except ValueError as error:
        raise ConfigError(f"no driver knows {scheme}://, neither pyarrow's nor fsspec's: {error}") from error
    if not filesystem.async_impl:
        filesystem = _OneAtATime(filesystem, threading.RLock())
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


class _OneAtATime:
    """A file system of fsspec, or a file of it, whose methods are called by one thread at a time: many drivers that are
    not asynchronous have one connection (ftp, sftp)."""

    def __init__(self, inner: Any, lock: threading.RLock) -> None:
        self._inner, self._lock = inner, lock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                result = found(*args, **kwargs)
            return _OneAtATime(result, self._lock) if name == "open" else result

        return call


@contextmanager
def named_errors(doing: str) -> Iterator[None]:
    """Turns what a driver raises into a StoreError, which says what was done; what is not there stays that.

    Raises:
        StoreError: it failed.
        FileNotFoundError: the object, or its bucket, is not there.
    """
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    except OSError as error:
        raise StoreError(error.errno, f"{doing}: {problem(error)}") from error


def is_refused(error: OSError) -> bool:
    """Returns True if asking again would not help: credentials are wrong, or do not allow it."""
    return isinstance(error, (FileNotFoundError, PermissionError)) or bool(_REFUSED.search(_NAMES.sub("", str(error))))


def problem(error: BaseException) -> str:
    """Returns what a driver said, in a line, and where credentials are looked for if it is about them."""
    said = _first_line(error)
    if isinstance(error, OSError) and is_refused(error) and not isinstance(error, FileNotFoundError):
        return (
            f"the store refused ({said}); see that the credentials which its driver finds are right and allow "
            f"this: for s3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or ~/.aws/credentials"
        )
    return said


def _first_line(error: BaseException) -> str:
    text: Any = str(error) or type(error).__name__
    return str(text.splitlines()[0][:400])
