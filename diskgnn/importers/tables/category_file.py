"""The file that says what codes of categories stand for."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.formats.artifacts import categories_file
from diskgnn.graph.type_data import NodeSet
from diskgnn.work.writer import ArtifactWriter


def write_categories(writer: ArtifactWriter, node_type: str, categories: pa.Table | NodeSet) -> None:
    """Writes what `NodeSet.categories` returns; those of a type of another graph are copied, byte for byte.

    Raises:
        ArtifactError: the other graph's are damaged.
    """
    name = categories_file(node_type)
    with ChecksummedFile(writer.path(name), disk=writer.disk) as file:
        if isinstance(categories, NodeSet):
            of_other = categories_file(categories.name)
            with categories.manifest.local(of_other).open("rb") as source:
                shutil.copyfileobj(source, file)
            categories.manifest.check(of_other, file.crc32c)
        else:
            pq.write_table(categories, file, compression="zstd", row_group_size=1 << 17)
    writer.add(name, crc32c=file.crc32c)
