"""The file that says what codes of categories stand for."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.formats.artifacts import categories_file
from diskgnn.work.writer import ArtifactWriter


def write_categories(writer: ArtifactWriter, node_type: str, categories: pa.Table) -> None:
    """Writes what `NodeSet.categories` returns."""
    name = categories_file(node_type)
    with ChecksummedFile(writer.path(name), disk=writer.disk) as file:
        pq.write_table(categories, file, compression="zstd", row_group_size=1 << 17)
    writer.add(name, crc32c=file.crc32c)
