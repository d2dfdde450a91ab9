"""The first stage of converting a database: each of its tables is read once, in one snapshot, into Arrow files.

All later passes read the files. A server that is asked again has another state, so fetching from one begins anew after
a kill; a file that did not change goes on with the next table. What was fetched as a whole is kept for the run after a
kill, and removed when the graph is published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import ChecksummedFile, checksum_file
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import open_artifact, read_manifest
from diskgnn.importers.given_graph import TABLE_BYTES, TABLES_FOLDER
from diskgnn.importers.ids.replacing_ids import LEAST_ID_BYTES
from diskgnn.importers.source_formats.catalogue import Catalogue, CatalogueTable
from diskgnn.importers.source_formats.databases import Database
from diskgnn.importers.source_formats.table_keys import ForeignKey, TableKeys
from diskgnn.importers.source_listing import EXCLUDED
from diskgnn.importers.tables import arrow_tables
from diskgnn.progress.reporter import Advance, say
from diskgnn.system.resources import Need, Resources
from diskgnn.work.runner import UnitFiles, Work
from diskgnn.work.writer import ArtifactWriter

_CATALOGUE = "catalogue.json"
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Wanted:
    """Says which parts of a database become a graph.

    Attributes:
        keys, links, times: as the options of its format say them.
        exclude: columns to leave out, TABLE.COLUMN or COLUMN.
        encode: how columns become features, by such names.
        require: refuses tables that cannot become a graph, before any row is read.
    """

    keys: str | None = None
    links: str | None = None
    times: str | None = None
    exclude: Sequence[str] = ()
    encode: Mapping[str, str] = field(default_factory=dict)
    require: Callable[[Catalogue], None] = lambda _: None


def identity_of(database: Database, staging: Path) -> str:
    """Names a database, also a file that is gone and whose tables lie in the `staging` folder of a graph.

    Raises:
        InputError: the file is gone, and was not fetched.
    """
    try:
        known = read_manifest(staging / TABLES_FOLDER, artifacts.TABLES).config["database"]
    except ArtifactError:
        known = ""
    return database.identity(known)


def fetched(database: Database, wanted: Wanted, writer: ArtifactWriter, resources: Resources) -> Catalogue:
    """Returns the tables of a database as files in the work folder of a graph, fetched by this run or a killed one.

    Args:
        database: it is opened only if tables are missing.
        wanted: what of it.
        writer: of the graph.
        resources: what fetching may spend.

    Raises:
        ConfigError: too little memory, or what is wanted is not there.
        InputError: the database cannot be read, or has values that cannot.
        DiskFullError: too little disk space.
    """
    work, folder = Work(writer, "fetch"), writer.path(TABLES_FOLDER)
    if folder.exists() and not _is_whole(folder):
        writer.restart()  # what was made of it is of a state that nobody can fetch again
    is_there = folder.exists()
    if not is_there:
        resources.require("to read the source", database.held_bytes + arrow_tables.HELD_BYTES)
        # What comes next is better refused before hours of fetching than after.
        resources.require_each(Need("to read the sources and replace ids", TABLE_BYTES, LEAST_ID_BYTES))
    work.artifact(TABLES_FOLDER, lambda path: _fetch(database, wanted, path, writer, resources))
    found = _read_catalogue(folder)
    num_rows = sum(table.rows.num_rows for table in found.tables.values())
    done = "goes on with the tables as they were fetched" if is_there else "fetched"
    as_of = found.about and f" ({found.about})"
    told = f"{done}: {num_rows:,} rows in {len(found.tables)} tables of {database.shown}{as_of}"
    say(resources.reporter, lambda: told)
    return found


def _fetch(database: Database, wanted: Wanted, path: Path, graph: ArtifactWriter, resources: Resources) -> None:
    config = {"database": database.identity(""), "graph": graph.config}
    writer = ArtifactWriter(path, artifacts.TABLES, config=config, resumable=True, disk=graph.disk)
    with writer:
        work = Work(writer, "fetch")
        if database.is_server and work.state_of("snapshot"):
            say(resources.reporter, lambda: (
                f"fetching {database.shown} was stopped, and what was read then is of a snapshot that is gone: it "
                "starts again with the first table"
            ))  # fmt: skip
            writer.restart()
        try:
            catalogue = database.catalogue(wanted.keys, wanted.links, wanted.encode)
            wanted.require(catalogue)
            work.note("snapshot", {"about": np.array(catalogue.about)})
            work.commit()
            work.run(lambda work: _fetch_tables(work, catalogue, wanted, writer, resources))
            _write_catalogue(catalogue, wanted, writer)
            writer.publish()
        except BaseException:
            with suppress(Exception):  # the first error is the one to tell
                database.close()
            raise
        database.close()


def _fetch_tables(
    work: Work, catalogue: Catalogue, wanted: Wanted, writer: ArtifactWriter, resources: Resources
) -> None:
    files = {name: _files(number) for number, name in enumerate(catalogue.tables)}

    def fetch_missing(missing: Iterator[str]) -> Generator[tuple[str, UnitFiles], None, None]:
        for name in missing:
            table, (file, facts) = catalogue.tables[name], files[name]
            total = table.about_rows or table.rows.num_rows
            with resources.reporter.stage(f"fetch {name}", total, "rows") as advance:
                batches = _advancing(table.rows.batches(wanted_columns[name], _BATCH_ROWS), advance)
                schema = pa.schema([table.rows.field(column) for column in wanted_columns[name]])
                crc, pieces = arrow_tables.write_table(
                    writer.path(file), schema, batches, writer.disk, resources.threads
                )
            found = {"pieces": pieces, "noticed": {**table.noticed()}, "unknown": {**table.unknown()}}
            yield name, {file: crc, facts: _write_json(writer, facts, found)}

    wanted_columns = {name: _columns(catalogue, name, wanted) for name in files}
    work.map(files, fetch_missing, files=lambda name: files[name])


def _advancing(batches: Iterable[pa.RecordBatch], advance: Advance) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        advance(batch.num_rows)


def _columns(catalogue: Catalogue, name: str, wanted: Wanted) -> list[str]:
    """Returns the columns of a table that are fetched: one at least, by which its rows are counted."""
    found = catalogue.columns_to_fetch(name, wanted.times, wanted.exclude)
    return found or catalogue.tables[name].rows.schema.names[:1]


def _files(number: int) -> tuple[str, str]:
    """Returns the names of the files of a table: its rows, and what was found of them."""
    return f"table-{number}.arrow", f"table-{number}.json"


def _write_json(writer: ArtifactWriter, name: str, content: Any) -> int:
    """Returns the CRC-32C of the file."""
    with ChecksummedFile(writer.path(name), disk=writer.disk) as file:
        file.write(json.dumps(content).encode())
        return file.crc32c


def _write_catalogue(catalogue: Catalogue, wanted: Wanted, writer: ArtifactWriter) -> None:
    tables = {}
    for name, table in catalogue.tables.items():
        columns = {*_columns(catalogue, name, wanted)}
        excluded = {column: EXCLUDED for column in table.rows.schema.names
                    if column not in columns and column not in table.keys.looked_up}  # fmt: skip
        unique = None if table.keys.unique is None else sorted(table.keys.unique)
        tables[name] = {
            "name": table.rows.name, "keys": asdict(table.keys) | {"unique": unique},
            "left_out": {**table.left_out, **excluded},
            "encodings": {column: how for column, how in table.encodings.items() if column in columns},
        }  # fmt: skip
    content = {"about": catalogue.about, "left_out": {**catalogue.left_out}, "tables": tables}
    writer.add(_CATALOGUE, crc32c=_write_json(writer, _CATALOGUE, content))


def _is_whole(folder: Path) -> bool:
    """Returns True if all files of a folder are what was written."""
    try:
        manifest = open_artifact(folder, artifacts.TABLES)
        for name in manifest.files:
            manifest.check(name, checksum_file(folder / name))
    except ArtifactError:
        return False
    return True


def _read_catalogue(folder: Path) -> Catalogue:
    content, tables = json.loads((folder / _CATALOGUE).read_text()), {}
    for number, (name, said) in enumerate(content["tables"].items()):
        file, facts = _files(number)
        found = json.loads((folder / facts).read_text())
        keys = said["keys"]
        unique = None if keys["unique"] is None else frozenset(keys["unique"])
        foreign = [
            ForeignKey(tuple(key["columns"]), key["table"], tuple(key["referred"]), key["ids"])
            for key in keys["foreign_keys"]
        ]
        tables[name] = CatalogueTable(
            arrow_tables.ArrowTable(said["name"], folder / file, found["pieces"]),
            TableKeys(keys["columns"], tuple(keys["primary_key"]), foreign, unique),
            said["left_out"], said["encodings"], partial(dict, found["noticed"]), partial(dict, found["unknown"]),
        )  # fmt: skip
    return Catalogue(tables, content["left_out"], content["about"])
