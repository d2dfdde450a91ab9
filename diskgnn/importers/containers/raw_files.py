"""How one says, where a path is expected, that a file is nothing but numbers: raw:float32:1024:features.bin."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from diskgnn.errors import ConfigError
from diskgnn.importers.containers.file_rows import headerless
from diskgnn.importers.containers.rows import RowSource
from diskgnn.stores.locations import local

_PREFIX = "raw:"
_DTYPES = {"bfloat16": "uint16"}


@dataclass(frozen=True)
class RawFile:
    """Numbers of one dtype in a file without a header: [N, width], or [N] where there is no width."""

    dtype: str
    width: int | None
    path: Path

    @classmethod
    def parse(cls, source: object) -> RawFile | None:
        """Returns `raw:DTYPE:WIDTH:PATH` or `raw:DTYPE:PATH`; None for anything else.

        Raises:
            ConfigError: it begins so, and is neither.
        """
        if not isinstance(source, (str, os.PathLike)) or not os.fspath(source).startswith(_PREFIX):
            return None
        dtype, _, rest = os.fspath(source).removeprefix(_PREFIX).partition(":")
        width, colon, path = rest.partition(":")
        if not colon or not width.isdecimal():
            width, path = "", rest
        try:
            known = np.dtype(_DTYPES.get(dtype, dtype)).kind in "biuf"
        except TypeError:
            known = False
        if not known or not path or width == "0":
            raise ConfigError(
                f"expected raw:DTYPE:WIDTH:PATH, such as raw:float32:1024:features.bin, or raw:int64:labels.bin; "
                f"found {os.fspath(source)!r}"
            )
        return cls(dtype, int(width) if width else None, local(path, "raw:"))

    def rows(self, name: str) -> RowSource:
        """Returns the numbers.

        Raises:
            InputError: the file is not there, or ends within a row.
        """
        shape = () if self.width is None else (self.width,)
        rows = headerless(name, self.path, shape, _DTYPES.get(self.dtype, self.dtype))
        return replace(rows, bfloat16=self.dtype == "bfloat16")

    def within(self, folder: Path) -> str:
        """Returns the same, its path taken as one in `folder`."""
        width = "" if self.width is None else f"{self.width}:"
        return f"{_PREFIX}{self.dtype}:{width}{folder / self.path}"
