"""Features of nodes on their way into a graph directory: opened once, then copied, quantised or referred to."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from diskgnn._native import crc32c
from diskgnn.errors import ConfigError
from diskgnn.files.checked_files import ChunkChecksums, npy_data_offset
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.value_counts import ValueCounts
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource
from diskgnn.importers.graph_input import NodeInput
from diskgnn.importers.quantising import is_scanned, quantised_format, write_quantised
from diskgnn.importers.tables.category_file import write_categories
from diskgnn.importers.value_scan import ValueScan
from diskgnn.progress.reporter import Reporter
from diskgnn.system.allocators import pages_kept
from diskgnn.system.resources import Resources
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter


@dataclass(frozen=True)
class NodeFeatures:
    """The features of one type of nodes: where their rows come from, and how the graph has them.

    Attributes:
        rows: [N, D], as they are given.
        given: the format of these.
        stored: the format in the graph.
        is_referred: they stay in the file `rows.path`.
    """

    rows: RowSource
    given: RowFormat
    stored: RowFormat
    is_referred: bool = False

    @staticmethod
    def of(rows: RowSource | None, nodes: NodeInput, owner: str) -> NodeFeatures | None:
        """Returns the features `rows`, stored as `nodes` says; None if there are none. `owner` is the type, for
        messages.

        Raises:
            ConfigError: features that are not there, or these, cannot be stored so.
        """
        where, is_referred = owner and owner + ": ", nodes.reference_features
        if rows is None:
            if is_referred or nodes.quantise is not None:
                raise ConfigError(f"{where}expected features to store or refer to, found none")
            return None
        if is_referred and rows.path is None:
            raise ConfigError(
                f"{where}reference_features: features can stay where they are only as a .npy file in C order, or as "
                "raw:DTYPE:WIDTH:PATH without a header, in native byte order and a dtype that is stored as it is "
                "(float32, float16, int8, bfloat16 as uint16): save np.ascontiguousarray(features, np.float32), or "
                "leave it out"
            )
        if is_referred and nodes.quantise is not None:
            raise ConfigError(
                f"{where}quantise: quantised features are written anew; leave out reference_features=True"
            )
        given = rows.record or RowFormat.stored_as(rows.dtype, rows.row_shape[0])
        quantise = "int8" if nodes.quantise is None and rows.codes is not None else nodes.quantise
        stored = given if quantise is None else quantised_format(quantise, given)
        return NodeFeatures(rows, given, stored, is_referred)

    @property
    def is_quantised(self) -> bool:
        """Returns True if they are stored in fewer bits."""
        return self.stored != self.given

    @property
    def needed_bytes(self) -> int:
        """Returns the disk space that they take in the graph."""
        return 0 if self.is_referred else self.rows.num_rows * self.stored.row_bytes

    @property
    def read_bytes(self) -> int:
        """Returns the bytes that all passes read of files."""
        return (1 + (self.is_quantised and is_scanned(self.rows, self.stored))) * self.rows.stored_bytes

    def write(
        self, writer: ArtifactWriter, node_type: str, resources: Resources
    ) -> tuple[dict[str, int | float | str], ValueCounts]:
        """Write them, or refer to them, whatever `resources` there are; `node_type` names the files.

        Returns:
            What quantising them changed, and what they hold that training fails on, which is warned of.

        Raises:
            InputError: values that cannot be quantised; names the row and column.
        """
        if self.is_quantised:
            error = write_quantised(
                writer, node_type, self.rows, self.given, self.stored, resources.reporter, self._version
            )
            details, counts = error.details(), ValueCounts()
        else:
            if self.is_referred:
                scan = self._refer(writer, node_type, resources.reporter)
            else:
                scan = self._copy(writer, node_type, resources)
            scan.warn(self.rows.name, "node")
            details, counts = {}, scan.counts
        if self.rows.categories is not None:
            write_categories(writer, node_type, self.rows.categories)
        return details, counts

    @property
    def _version(self) -> str:
        """Names the functions that embed text, with their versions: what a killed run has written with other ones is
        not gone on with."""
        embedders = [column.embedder for column in self.rows.columns or () if column.embedder is not None]
        return f"-{crc32c(','.join(embedders).encode()):08x}" if embedders else ""

    def _refer(self, writer: ArtifactWriter, node_type: str, reporter: Reporter) -> ValueScan:
        rows, scan, checksums = self.rows, ValueScan(self.given), ChunkChecksums()
        assert rows.path is not None
        with reporter.stage("scan features", rows.total_bytes, "B") as advance:
            if not rows.headerless:
                checksums.add(_header_bytes(rows.path))
            for chunk in rows.chunks():
                scan.add(chunk)
                checksums.add(chunk.reshape(-1).view(np.uint8))
                advance(chunk.nbytes)
        headerless = (rows.dtype.str, tuple(rows.shape)) if rows.headerless else None
        file_name = node_file(artifacts.FEATURES, node_type)
        writer.add_external(file_name, rows.path, crc32c=checksums.crc32c, headerless=headerless)
        writer.save_array(node_file(artifacts.FEATURE_CHECKSUMS, node_type), checksums.chunks())
        return scan

    def _copy(self, writer: ArtifactWriter, node_type: str, resources: Resources) -> ValueScan:
        rows, threads = self.rows, self.rows.threads(resources)
        name, checksums = (node_file(kind, node_type) for kind in (artifacts.FEATURES, artifacts.FEATURE_CHECKSUMS))
        file = ArrayFile(writer, name, rows.dtype, rows.num_rows, rows.row_shape, checksums, may_stream=True)

        def copy(state: State, output: Output) -> Generator[int, None, None]:
            scan = ValueScan(self.given, file.rows_written, state["values"])
            with (
                pages_kept((threads + 2) * CHUNK_BYTES),
                output.stage(resources.reporter, "copy features", rows.total_bytes, "B") as advance,
            ):
                for chunk in rows.chunks_from(file.rows_written, threads):
                    scan.add(chunk)
                    file.write(chunk)
                    advance(chunk.nbytes)
                    yield chunk.nbytes

        first = {"values": np.zeros(len(fields(ValueCounts)), np.int64)}
        found = Work(writer, name).run(lambda work: work.fold(f"copy{self._version}", copy, first, files=[file]))
        return ValueScan(self.given, rows.num_rows, found["values"])


def _header_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(npy_data_offset(path))
