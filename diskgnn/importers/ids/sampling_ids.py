"""The first reading of ids of the user's: ranges for each type of nodes, and the file of those that a list has."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from diskgnn.formats import artifacts
from diskgnn.importers.ids.id_file import IdFile
from diskgnn.importers.ids.id_ranges import IdRanges, IdSample, of_bytes, to_bytes
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import id_file_kind
from diskgnn.importers.ids.user_ids import UserIds
from diskgnn.specs.schema import EdgeType
from diskgnn.system.resources import Resources
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

ID_BYTES = 32  # typical, with what is kept beside it
_FIRST_CHUNK_IDS = 1 << 16  # before it is known how long ids are
_RANGES = "ranges"  # what is noted of them


@dataclass(frozen=True)
class SampledIds:
    """Holds what is known of the ids of one type of nodes after the first reading."""

    kind: pa.DataType  # of `id_keys`
    file_kind: pa.DataType
    ranges: IdRanges
    count: int  # of ids that were read
    mean_bytes: int
    part_ids: int  # how many to hold at once where several copies of them are made


def sample_ids(
    work: Work, found: UserIds, writer: ArtifactWriter, resources: Resources
) -> tuple[dict[str, SampledIds], int]:
    """Reads listed ids, and those that edges mention if nothing lists them.

    Returns:
        (what is known by type of nodes; for how many bytes of memory the ranges were made: those of a killed run stay
        unless there is less now).
    """
    mentioning = {name: each for name, each in found.ends.items() if {name[0], name[2]} & {*found.mentioned}}
    total = sum(each.num_rows for each in (*found.listed.values(), *mentioning.values()))
    samples = dict[str, IdSample]()
    with resources.reporter.stage("read ids", total, "ids") as advance:
        for name, column in found.listed.items():
            first, kind = IdSample(column.key_kinds[0]).state(), column.key_kinds[0]
            file = IdFile(writer, artifacts.ids_file(name), id_file_kind(column.kinds[0]), is_kept=True)
            listed = work.fold(f"list-{name}", partial(_list, file, column), first, files=[file], advance=advance)
            samples[name] = IdSample.of(listed, kind)
        empty = _states({name: IdSample(kind) for name, kind in found.mentioned.items()})
        mentioned = work.fold(
            "mention", partial(_mention, found.mentioned, mentioning), {"rows": 0, **empty}, advance=advance
        )
        samples |= {name: _sample(mentioned, name, kind) for name, kind in found.mentioned.items()}
    noted = work.state_of(_RANGES)
    if not 0 < int(noted.get("memory", 0)) <= resources.memory_bytes:
        noted = {f"{name}/bounds": to_bytes(each.ranges(resources).bounds) for name, each in samples.items()}
        noted["memory"] = np.array(resources.memory_bytes)
        work.note(_RANGES, noted)
    made_for_bytes = int(noted["memory"])
    return {
        name: SampledIds(
            each.kind,
            id_file_kind(found.listed[name].kinds[0] if name in found.listed else each.kind),
            IdRanges(of_bytes(noted[f"{name}/bounds"])),
            each.count,
            each.total_bytes // max(each.count, 1),
            each.part_ids(made_for_bytes),
        )
        for name, each in samples.items()
    }, made_for_bytes


def _list(file: IdFile, column: IdColumns, state: State, output: Output) -> Generator[int, None, None]:
    """Writes the file of the ids of a list. Nobody could go on within it, so it is one piece, without yields."""
    sample = IdSample(column.key_kinds[0])
    for (ids,) in column.chunks(_FIRST_CHUNK_IDS, 0):
        sample.add(ids.drop_null())
        sample.count += ids.null_count
        file.add(ids)
        output.advance(len(ids))
    state |= sample.state()
    yield from ()


def _mention(
    kinds: Mapping[str, pa.DataType],
    mentioning: Mapping[EdgeType, IdColumns],
    state: State,
    output: Output,
) -> Generator[int, None, None]:
    """Samples the ids that edges mention. What is read, all types one after the other, is counted in rows."""
    samples = {name: _sample(state, name, kind) for name, kind in kinds.items()}
    output.before_commit(lambda: state.update(_states(samples)))
    before = int(state["rows"])
    for edge_type, found in mentioning.items():
        first = min(before, found.num_rows)
        before -= first
        for chunk in found.chunks(_FIRST_CHUNK_IDS, first) if first < found.num_rows else ():
            for end, ids in zip((edge_type[0], edge_type[2]), chunk, strict=True):
                if end in samples:
                    samples[end].add(ids)
            state["rows"] += len(chunk[0])
            output.advance(len(chunk[0]))
            yield 2 * len(chunk[0]) * ID_BYTES


def _states(samples: Mapping[str, IdSample]) -> State:
    return {f"{name}/{key}": array for name, sample in samples.items() for key, array in sample.state().items()}


def _sample(state: State, name: str, kind: pa.DataType) -> IdSample:
    return IdSample.of({key: state[f"{name}/{key}"] for key in IdSample.KEYS}, kind)
