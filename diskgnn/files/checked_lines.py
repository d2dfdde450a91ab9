"""Lines of a file that is only appended to, each behind its CRC-32C: one that is damaged or cut short is known."""

from __future__ import annotations

from collections.abc import Iterator

from diskgnn._native import crc32c


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


def whole_lines(content: bytes) -> tuple[list[str], int]:
    """Returns the texts before the first line that is damaged or cut short, and the bytes that they take.

    What follows a damaged line may depend on what that said, so it counts as never written.
    """
    texts: list[str] = []
    for text in checked_lines(content):
        if text is None:
            break
        texts.append(text)
    return texts, sum(len(checked_line(text)) for text in texts)
