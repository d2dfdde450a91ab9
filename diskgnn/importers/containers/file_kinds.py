"""What a file is, by its first bytes, so that a wrong one is called what it is."""

from __future__ import annotations

import codecs
import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diskgnn.errors import InputError, ReadError
from diskgnn.files.file_reading import ReadableFile, raise_if_disk_failed
from diskgnn.stores.locations import AnyPath, StoredPath, located

_HEAD_BYTES = 4096
_MAGIC = {
    b"\x93NUMPY": "npy",
    b"PAR1": "parquet",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"ARROW1": "arrow",
    b"SQLite format 3\0": "sqlite",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\x3f\xa1\xb4\x46\xf0\x4f\x2e\xdd": "dgl",  # of dgl.save_graphs
}
COMPRESSED_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh")
_NAMES = {
    "arrow": "an Arrow file; write it as Parquet (pyarrow.parquet.write_table)",
    "bzip2": "a file compressed by bzip2; unpack it, or let its name end in .bz2 if it is a table",
    "csv": "a CSV file; give tables as `nodes` or `edges`, or save the numbers with np.save",
    "csv.gz": "a compressed CSV file; give tables as `nodes` or `edges`, with names that end in .csv.gz, and a folder "
    "of OGB with format='ogb'",
    "dgl": "a graph saved by dgl.save_graphs; pass it with format='dgl'",
    "duckdb": "a DuckDB database; `diskgnn convert` takes it with format='duckdb' if its tables have foreign keys, or "
    "export them as Parquet",
    "empty": "an empty file",
    "gzip": "a compressed file (gzip); unpack it first",
    "hdf5": "an HDF5 file; save the dataset that is meant as .npy",
    "json": "a JSON file",
    "npy": "a .npy file",
    "npz": "an archive of several arrays (.npz); pass with format='scipy' if it is a sparse matrix, otherwise save the "
    "array that is meant with np.save",
    "parquet": "a Parquet file; give tables as `nodes` or `edges`",
    "pickle": "a Python pickle, which is never unpickled; save the array that is meant with np.save",
    "sqlite": "an SQLite database; `diskgnn convert` takes it with format='sqlite' if its tables have foreign keys, or "
    "export them as CSV",
    "stream": "a pipe or a device, which cannot be read twice; write what comes out of it to a file, and give that",
    "text": "a text file; name a table .csv, and pass it with format='snap' if it lists edges",
    "text.gz": "a compressed text file; pass it with format='snap' if it lists edges",
    "torch": "a file saved by torch; pass it with format='pyg' if it holds a graph of PyTorch Geometric",
    "zip": "a zip archive; unpack it first",
    "zstd": "a file compressed by zstd; unpack it, or let its name end in .zst if it is a table",
}  # fmt: skip


def kind_of(path: AnyPath) -> str | None:
    """Returns what the file at `path` is: "npy", "npz", "torch", "parquet", "csv", ...; None if nothing tells, or no
    file.

    Raises:
        InputError: it may not be read.
    """
    path = located(path)
    if isinstance(path, Path) and path.exists() and not path.is_file() and not path.is_dir():
        return "stream"  # opening a pipe waits for whoever writes to it
    try:
        with ReadableFile(path) as file:
            head = file.read(_HEAD_BYTES)
    except ReadError:  # of a disk or a store
        raise
    except PermissionError as error:
        raise InputError(f"you have no permission to read {path}") from error
    except OSError:
        return None
    if not head:
        return "empty"
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head[8:12] == b"DUCK":  # behind a checksum
        return "duckdb"
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(path) if isinstance(path, Path) else "zip"
    if head.startswith(b"\x1f\x8b"):
        if not isinstance(path, Path):
            return "gzip"
        inside = _text_kind(_inflated(path))
        return "gzip" if inside is None else f"{inside}.gz"
    if head[0] == 0x80 and head[1] in range(2, 6):
        return "torch" if b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." in head else "pickle"  # torch.save's former format
    return wide_encoding(head) or _text_kind(head)


def has_utf8_name(path: Path) -> bool:
    """Returns False for a name that Arrow opens no file by; Python and the kernel take any bytes."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def wide_encoding(head: bytes) -> str | None:
    """Returns "UTF-16" or "UTF-32" if `head` begins text in it, as Excel and PowerShell save; or None."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    sample = head[:64]
    for name, width in (("UTF-32", 4), ("UTF-16", 2)):  # without a mark: letters of ASCII, and zeros between
        for place, encoding in ((0, f"{name}-LE"), (width - 1, f"{name}-BE")):
            letters = sample[place::width]
            zeros = bytes(byte for at, byte in enumerate(sample) if at % width != place)
            if len(sample) >= 2 * width and 4 * zeros.count(0) >= 3 * len(zeros) and min(letters) >= 9:
                return encoding
    return None


def convert_from(encoding: str) -> str:
    """Returns what makes UTF-8 of a file, for the end of a message."""
    return f"convert it to UTF-8: iconv -f {encoding} -t UTF-8 OLD > NEW"


@contextmanager
def permission_named() -> Iterator[None]:
    """Has sources that may not be read called so, while they are opened.

    Raises:
        InputError: a file or folder that may not be read.
    """
    try:
        yield
    except PermissionError as error:
        raise InputError(f"you have no permission to read {error.filename}") from error


def describe(path: AnyPath) -> str:
    """Returns what lies at `path`, and what reads it, for the end of "expected ..., found ...".

    Example:
        >>> describe("edges.csv")
        "a CSV file; give tables as `nodes` or `edges`, or save the numbers with np.save"
    """
    path = located(path)
    if path.is_dir():
        found = sorted(path.entries() if isinstance(path, StoredPath) else (entry.name for entry in path.iterdir()))
        parquet, found = any(name.endswith((".parquet", ".pq")) for name in found), found[:4]
        if parquet:
            return f"a folder of Parquet files, {path}; give tables as `nodes` or `edges`"
        return f"a folder ({', '.join(found) or 'empty'}), {path}"
    if not path.exists():
        return f"no file {path}"
    kind = kind_of(path) or ""
    if kind.startswith("UTF-"):
        return f"a text file in {kind}; {convert_from(kind)}"
    return _NAMES.get(kind, "a file of a kind that diskgnn does not know")


def _zip_kind(path: Path) -> str:
    try:
        with ReadableFile(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise_if_disk_failed(error, path)
        return "zip"
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    return "npz" if names and all(name.endswith(".npy") for name in names) else "zip"


def _inflated(path: Path) -> bytes:
    try:
        with ReadableFile(path) as packed, gzip.open(packed) as file:
            return file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise_if_disk_failed(error, path)
        return b"\0"


def _text_kind(head: bytes) -> str | None:
    """Returns the kind of text that `head` is: csv, json or text; None for bytes that are none."""
    if any(byte < 9 or 13 < byte < 32 for byte in head):
        return None
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # otherwise the head ends within a character
            return None
        text = head[: error.start].decode()
    if text.lstrip()[:1] in ("{", "["):
        return "json"
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "csv" if lines and "," in lines[0] else "text"
