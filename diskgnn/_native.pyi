"""The native core (native/bindings.cpp). Arrays are C-contiguous; the GIL is released while they are worked on."""

from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of `data`, continuing `crc`."""
