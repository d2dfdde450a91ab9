"""Memory that processes of one machine share: the first one that asks for it fills it, the others see what it wrote.

It is a memfd, handed on over a unix socket that has its name in no file system. So nothing stays behind, however a
process ends: the socket goes with the process that made it, the memory with the last one that has it. Where a process
cannot reach the others (another user, another network namespace), it has memory of its own, filled by itself.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from diskgnn._native import page_memory

Memory = npt.NDArray[np.uint8]

_WAITING = 128  # processes that ask at the same time; others wait to
_RETRY_SECONDS = 0.01
_ATTEMPTS = 200  # any user can take the name and never answer


class SharedMemory:
    """Holds some bytes, the same in all processes of this user that ask for `name`. Nobody writes once they are filled.

    Processes that ask while another one fills them wait until that is done; if that one fails, the next one fills them.
    Once the process that filled them has dropped them, whoever asks next fills new ones.

    Attributes:
        data: [num_bytes] uint8, page-aligned; valid as long as it is referred to.

    Args:
        name: what they are; two names for different bytes must differ.
        num_bytes: at least 1.
        fill: writes all of them.

    Example:
        shared = SharedMemory("squares", 100, lambda data: np.copyto(data, np.arange(100) ** 2))
    """

    def __init__(self, name: str, num_bytes: int, fill: Callable[[Memory], object]) -> None:
        address = f"\0diskgnn/{os.getuid()}/{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
        listener, received = _listener_or_memory(address, num_bytes)
        if received is not None:
            self.data = received
        elif listener is None:
            self.data = page_memory(num_bytes)[:num_bytes]
            fill(self.data)
        else:
            server = _Server(listener)
            try:
                self.data = server.made(num_bytes)
                fill(self.data)
                server.start()
            except BaseException:
                server.close()  # those that wait are told, and fill it themselves
                raise
            weakref.finalize(self, server.close)


def _listener_or_memory(address: str, num_bytes: int) -> tuple[socket.socket | None, Memory | None]:
    """Returns a socket to hand memory on at `address`, or the memory that another process hands on there; neither
    if there is no way to share."""
    for _ in range(_ATTEMPTS):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(_WAITING)
            return listener, None
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                return None, None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                asking.connect(address)
                if _user_of(asking) != os.getuid():
                    return None, None
                _, descriptors, _, _ = socket.recv_fds(asking, 1, 1)
        except (ConnectionRefusedError, ConnectionResetError):  # it has gone, or does not listen yet
            descriptors = []
        if descriptors:
            return None, _map_received(descriptors[0], num_bytes)
        time.sleep(_RETRY_SECONDS)
    return None, None


def _map_received(descriptor: int, num_bytes: int) -> Memory | None:
    try:
        return _mapped(descriptor, num_bytes) if os.fstat(descriptor).st_size == num_bytes else None
    finally:
        os.close(descriptor)


def _user_of(connected: socket.socket) -> int:
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def _mapped(descriptor: int, num_bytes: int) -> Memory:
    mapped = mmap.mmap(descriptor, num_bytes)
    with suppress(OSError, AttributeError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


class _Server:
    """Hands memory to whoever connects, in a thread of its own, until it is closed."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._pid = listener, os.getpid()
        self._descriptor = os.memfd_create("diskgnn", os.MFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="diskgnn-shared-memory", daemon=True)
        _servers.add(self)

    def made(self, num_bytes: int) -> Memory:
        """Returns the memory, all zeros."""
        os.truncate(self._descriptor, num_bytes)
        return _mapped(self._descriptor, num_bytes)

    def start(self) -> None:
        """Hand it on from now on, to those that are waiting first."""
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection, suppress(OSError):
                if _user_of(connection) == os.getuid():
                    socket.send_fds(connection, [b"m"], [self._descriptor])

    def close(self) -> None:
        """Stop. Nothing in a forked child, which has the socket but not the thread."""
        if os.getpid() != self._pid:
            return
        _servers.discard(self)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self.forget()

    def forget(self) -> None:
        """Close what a forked child would keep from going when its parent goes."""
        self._listener.close()
        os.close(self._descriptor)


_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


def _forget_all() -> None:
    while _servers:  # a child of this child must not close these numbers again
        _servers.pop().forget()


os.register_at_fork(after_in_child=_forget_all)
