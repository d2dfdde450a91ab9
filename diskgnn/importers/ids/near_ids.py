"""Finds the id that was meant where one is given that no node has: the same one, written another way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diskgnn.files.file_reading import ReadableFile
from diskgnn.importers.ids.id_types import id_keys

_BATCH_IDS = 1 << 17


def ids_in_file(path: Path) -> Iterator[pa.Array]:
    """Yields the ids of the file of a type of nodes, as `id_keys`."""
    with pq.ParquetFile(pa.PythonFile(ReadableFile(path), mode="r")) as file:
        for batch in file.iter_batches(_BATCH_IDS, columns=["id"]):
            yield id_keys(batch.column(0))


def near_id(unknown: object, known: Iterable[pa.Array]) -> str:
    """Says which id of `known` is `unknown` but for type, blanks, capitals, zeros or braces, for the end of a message.

    Returns "" if none is. Ids that are neither text nor whole numbers are near to none.
    """
    if not isinstance(unknown, (str, int)):
        return ""
    wanted = _plain(pa.array([unknown]))[0]
    for ids in known:
        if not (pa.types.is_integer(ids.type) or pa.types.is_large_string(ids.type)):
            return ""
        alike = ids.filter(pc.equal(_plain(ids), wanted))
        if len(alike):
            found = alike[0].as_py()
            as_text = " (columns of CSV: types=NAME:string)" if type(found) is not type(unknown) else ""
            return f"; there is {found!r}, which may be meant: write ids alike everywhere{as_text}"
    return ""


def _plain(ids: pa.Array) -> pa.Array:
    """Ids as text, without blanks or braces around them, capitals, zeros in front, and a fraction of zeros."""
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(ids.cast(pa.large_string())))
    texts = pc.replace_substring_regex(texts, r"^\{(.*)\}$", r"\1")  # of UUIDs
    texts = pc.replace_substring_regex(texts, r"^([+-]?[0-9]+)\.0+$", r"\1")
    return pc.replace_substring_regex(texts, "^0+([0-9])", r"\1")
