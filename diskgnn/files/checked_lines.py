"""Logs of lines, each behind its CRC-32C, that are only appended to: one that is damaged or cut short is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from diskgnn._native import crc32c
from diskgnn.files.disk_space import UNLIMITED, DiskBudget, file_bytes


def checked_line(text: str) -> bytes:
    """Returns `text` as a line to append: 8 hexadecimal digits of its CRC-32C, a space, the text, a line feed."""
    content = text.encode()
    return b"%08x %s\n" % (crc32c(content), content)


def checked_lines(content: bytes) -> Iterator[str | None]:
    """Yields the text of each line, or None for a line that is damaged, or that a kill cut short."""
    for line in content.splitlines(keepends=True):
        try:
            text = line[9:-1].decode()
        except UnicodeDecodeError:
            yield None
        else:
            yield text if line == checked_line(text) else None


class CheckedLog:
    """The log at `path`, which may not be there yet. What is appended is claimed of `disk`, as a journal."""

    def __init__(self, path: Path, disk: DiskBudget = UNLIMITED) -> None:
        self.path, self._disk = path, disk

    def read(self, *, for_more: bool) -> list[str]:
        """Returns the texts before the first line that is damaged or cut short: what follows one may depend on what
        that said, so it counts as never written. `for_more`, to be appended, it is cut off."""
        texts, num_bytes = list[str](), 0
        with suppress(FileNotFoundError):
            for text in checked_lines(content := self.path.read_bytes()):
                if text is None:
                    break
                texts.append(text)
                num_bytes += len(checked_line(text))
            if for_more and num_bytes < len(content):
                os.truncate(self.path, num_bytes)
        return texts

    def append(self, *texts: str, durable: bool = True) -> None:
        """Appends lines, all or none of them."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        content = memoryview(b"".join(map(checked_line, texts)))
        try:
            num_bytes = os.fstat(descriptor).st_size
            self._disk.claim(file_bytes(num_bytes + len(content)) - file_bytes(num_bytes), is_journal=True)
            num_bytes = os.fstat(descriptor).st_size  # claiming may have more appended, also where it fails then
            try:
                while content:
                    content = content[os.write(descriptor, content) :]
                if durable:
                    os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, num_bytes)  # nothing behind a torn line would count
                raise
        finally:
            os.close(descriptor)
