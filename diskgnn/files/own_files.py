"""Files and folders whose names others can guess, in folders that others may write to, such as TMPDIR.

Another user may put something under such a name before diskgnn does: a folder of their own, or a symbolic link to a
file of the victim. What is made here is new, what is taken is this user's, and no link is followed.

As with `tempfile.mkdtemp`, this holds where others cannot rename what is not theirs: in a folder of one's own, or in
one with the sticky bit, as /tmp has it.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from diskgnn.errors import ConfigError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(path: Path) -> Path:
    """Makes folder `path`, mode 0700, with the folders above it; or takes one that this user made before.

    Returns:
        `path`.

    Raises:
        ConfigError: what is there is a symbolic link, no folder, another user's, or others may write to it. It names
            owner and mode, and what to do.
        OSError: it cannot be made.

    Example:
        private_folder(Path(tempfile.gettempdir()) / f"diskgnn-{os.getuid()}")
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = _open_own_folder(path)
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", str(path))
    try:
        found = os.fstat(descriptor)
        if found.st_mode & _OTHERS_WRITE:
            raise ConfigError(_refusal(path, found, "a folder that nobody else may write to (mode 0700)"))
        if stat.S_IMODE(found.st_mode) != 0o700:  # others could read it
            with suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    return path


def require_own_folder(path: Path) -> None:
    """Refuses what is at `path`, if anything is, unless it is a folder that this user made.

    Raises:
        ConfigError: see `private_folder`; the mode does not matter.
    """
    if (descriptor := _open_own_folder(path)) is not None:
        os.close(descriptor)


def open_new_file(path: Path) -> BinaryIO:
    """Opens a new file `path` for writing, after removing what a killed run left there.

    Raises:
        OSError: it cannot be made; also if somebody else was faster to make something of that name.
    """
    path.unlink(missing_ok=True)  # a link, not what it leads to
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def open_to_append(path: Path) -> BinaryIO:
    """Opens file `path`, which is made where it is missing, for appending.

    Raises:
        OSError: it cannot be opened, or is a symbolic link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "ab")


def open_lock_file(path: Path) -> int:
    """Opens a file to lock, which is made where it is missing, and never truncated. Returns its descriptor.

    Raises:
        ConfigError: what is there is a symbolic link or no file, or another user's file that cannot be written.
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        found = _state(path)
        if found is not None and not (stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()):
            raise ConfigError(_refusal(path, found, "a lock file of this user")) from error
        raise
    if not stat.S_ISREG((found := os.fstat(descriptor)).st_mode):
        os.close(descriptor)
        raise ConfigError(_refusal(path, found, "a lock file"))
    return descriptor


def _open_own_folder(path: Path) -> int | None:
    """Returns a descriptor of the folder, which `path` itself has to be; None if nothing is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if (found := _state(path)) is None:
            return None
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            raise
        raise ConfigError(_refusal(path, found, "a folder of this user")) from error
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() and found.st_uid != _owner_of_new_files(path.parent):
        os.close(descriptor)
        raise ConfigError(_refusal(path, found, "a folder of this user"))
    return descriptor


def _owner_of_new_files(folder: Path) -> int:
    """Returns who owns what this process makes there: on shares that map users, it is not this user."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_uid
    except OSError:
        return os.geteuid()


def _state(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _refusal(path: Path, found: os.stat_result, expected: str) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "no file")
    return (
        f"{path}: expected {expected}, {_user(os.geteuid())}; found {kind} of {_user(found.st_uid)}, mode "
        f"{stat.S_IMODE(found.st_mode):04o}. What others made, or may change, is not used: remove it, or choose "
        f"another folder (TMPDIR says where scratch goes)"
    )


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"
