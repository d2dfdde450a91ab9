"""Commands that look: inspect, verify, doctor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.options import Size
from diskgnn.cli.rendering import Output
from diskgnn.formats.artifacts import GRAPH, MANIFEST, PACKED
from diskgnn.units import format_count, format_size

if TYPE_CHECKING:
    from diskgnn.errors import DiskGNNError
    from diskgnn.formats.verification import Damage
    from diskgnn.stores.locations import AnyPath


@click.command(cls=Command, short_help="Say what a directory holds and how it was made.")
@click.argument("artifact", type=options.ARTIFACT)
@click.option("--diagram", is_flag=True, help="Print the types of a graph as a diagram in Mermaid, and nothing else.")
@click.pass_obj
def inspect(output: Output, /, artifact: Path, diagram: bool) -> None:
    """Say what a graph, samples, packed or hops directory holds and how it was made, or a folder of several ranks; or
    what a checkpoint of `diskgnn train` is, and which commands take it."""
    from diskgnn.formats.rank_directories import rank_directories
    from diskgnn.graph.artifact_description import describe

    _require_there(artifact)
    if diagram:
        from diskgnn.graph.diagram import diagram as diagram_of
        from diskgnn.graph.graph import Graph

        drawn = diagram_of(Graph.open(artifact))
        output.text(drawn)
        output.result({"path": artifact, "diagram": drawn})
        return
    if _is_checkpoint(artifact):
        _show_checkpoint(output, artifact)
        return
    folders = rank_directories(artifact)
    first = folders[0] if folders else artifact
    ranks = [describe(directory) for directory in folders]
    description = ranks[0] if ranks else describe(artifact)
    facts = dict(description.facts)
    if ranks:
        columns = [name for name in facts if name.endswith(("_bytes", "_minibatches", "_disk_share"))]
        rows = [(number, *(each.facts.get(name, "") for name in columns)) for number, each in enumerate(ranks)]
        output.table(f"{artifact}: {description.kind}, of {len(ranks)} ranks", ["rank", *columns], rows)
    output.result({"path": artifact, "ranks": ranks} if ranks else description)
    if description.format == PACKED:
        from diskgnn.cli.packed_inspection import show_packed
        from diskgnn.formats.manifest import open_artifact
        from diskgnn.formats.packed import Packed

        show_packed(output, Packed(open_artifact(first)), artifact, len(ranks))
        return
    if description.format == GRAPH:
        facts["digest"] = description.digest
    types = [facts.pop(name, []) for name in ("node_types", "edge_types", "kept_columns")]
    output.fields(f"{description.path}: {description.kind}", facts)
    for title, listed in zip(("node types", "edge types", "columns kept"), types, strict=True):
        if listed:
            kept = ("type", "nodes", "edges", "offset")
            shown = [name for name in listed[0] if name in kept or any(each[name] for each in listed)]
            output.table(title, shown, [tuple(_cell(each[name]) for name in shown) for each in listed])
    if description.contents is not None:
        output.source_contents(description.contents)
    output.fields("made with", description.config)
    files = [(file.name, file.bytes, _dtype(file.dtype), _shape(file.shape)) for file in description.files]
    output.table("files", ["name", "size_bytes", "dtype", "shape"], files)


def _require_there(path: AnyPath) -> None:
    """Raises ArtifactError if nothing lies at a path of this machine."""
    from diskgnn.errors import ArtifactError

    if not isinstance(path, Path):
        return
    try:
        path.stat()
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path} is not there; expected a graph, samples, packed or hops directory, or a checkpoint of "
            f"`diskgnn train`"
        ) from error
    except OSError:  # whoever opens it says so
        return


def _is_checkpoint(path: AnyPath) -> bool:
    """Imports torch only where there is something else than an artifact."""
    if not isinstance(path, Path) or not os.access(path, os.X_OK) or (path / MANIFEST).exists():
        return False
    from diskgnn.training.checkpoints import checkpoint_exists

    return path.is_dir() and checkpoint_exists(path)


def _show_checkpoint(output: Output, path: Path) -> None:
    from diskgnn.training.checkpoint_description import describe_checkpoint

    found = describe_checkpoint(path)
    output.fields(f"{found.path}: {found.kind}", found.facts)
    columns = [{name: each[name] for name in ("of", "name", "encoding", "width")} for each in found.feature_columns]
    tables = {"scores": found.scores, "trained on nodes": found.node_types, "trained on edges": found.edge_types,
              "feature columns": columns}  # fmt: skip
    for title, rows in tables.items():
        if rows:
            names = list(dict.fromkeys(name for row in rows for name in row))
            output.table(title, names, [[row.get(name, "") for name in names] for row in rows])
    if "segments" not in found.facts:  # of hop features, nothing is drawn
        output.fields("minibatches drawn with", found.sampling or {"source": "your own: it did not say"})
    output.fields("trained with", found.config)
    output.fields("used by", found.used_by)
    output.result(found)


def _cell(value: object) -> object:
    return ("yes" if value else "") if isinstance(value, bool) else value


def _dtype(dtype: str | None) -> str:
    return "" if dtype is None else "record" if dtype.startswith("[") else dtype


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else " x ".join(format_count(length) for length in shape)


@click.command(cls=Command, short_help="Find damaged files by their checksums; repair them.")
@click.argument("artifact", type=options.ARTIFACT)
@click.option("--repair", is_flag=True, help="Make what is damaged again; needs --graph.")
@click.option("--graph", type=options.ARTIFACT, help="For --repair: the graph that ARTIFACT was made from.")
@click.option(
    "--samples",
    type=options.ARTIFACT,
    help="For --repair of a packed directory: the samples it was made from.  [default: sampled again]",
)
@options.memory
@options.threads
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    artifact: Path,
    repair: bool,
    graph: Path | None,
    samples: Path | None,
    memory: int | str,
    threads: int | None,
) -> None:
    """Compare every byte of a graph, samples, packed or hops directory with its checksum, and list all that is damaged.

    With --repair, make damaged samples and packed data again, equal to the byte. A folder of several ranks is taken
    rank by rank.
    """
    from diskgnn.formats.rank_directories import rank_directories

    output: Output = ctx.obj
    if not repair and (graph or samples):
        raise click.UsageError(f"--{'graph' if graph else 'samples'} is for --repair: pass that, too, or leave it out")

    def made_again(path: AnyPath, samples: Path | None) -> list[Damage]:
        from diskgnn.preparing.repair import repair as make_again
        from diskgnn.system.resources import Resources

        if not repair:
            return []
        return make_again(path, graph=graph, samples=samples, resources=Resources.of(memory, threads, output.reporter))

    if ranks := rank_directories(artifact):
        found = [_verify(output, each, made_again(each, samples and samples / each.name)) for each in ranks]
        result: dict[str, Any] = {"path": artifact, "ranks": found}
    else:
        result = _verify(output, artifact, made_again(artifact, samples))
        found = [result]
    output.result(result)
    if codes := [each["error"]["exit_code"] for each in found if "error" in each]:
        ctx.exit(codes[0])


def _verify(output: Output, artifact: AnyPath, repaired: Sequence[Damage]) -> dict[str, Any]:
    """Say what is damaged of one directory, if anything is; the same for --json."""
    from diskgnn.formats.verification import DamagedError, UnreadableError, find_damage

    for damage in repaired:
        output.text(f"made again: {damage.file}{_which(damage)}")
    try:
        manifest, damages = find_damage(artifact, reporter=output.reporter)
    except UnreadableError as error:
        for problem in (str(error), *(damage.problem for damage in error.damages)):
            output.error(problem)
        return {"path": artifact, "damaged": error.damages, "repaired": repaired, "error": _told_error(error)}
    for damage in damages:
        output.error(damage.problem)
    found = {"path": artifact, "format": manifest.format, "files": len(manifest.files), "bytes": manifest.total_bytes,
             "digest": manifest.digest, "damaged": damages, "repaired": repaired}  # fmt: skip
    if damages:
        return {**found, "error": _told_error(DamagedError(manifest, damages))}
    output.text(f"{artifact} is whole: {len(manifest.files)} files, {format_size(manifest.total_bytes)}")
    return found


def _told_error(error: DiskGNNError) -> dict[str, Any]:
    return {"kind": type(error).__name__, "message": str(error), "exit_code": error.exit_code}


def _which(damage: Damage) -> str:
    return f", extents {', '.join(map(str, damage.extents))}" if damage.extents else ""


@click.command(cls=Command, short_help="Say what this machine and disk offer to diskgnn.")
@click.argument("folder", type=options.LOCAL, default=".")
@click.option(
    "--measure/--no-measure",
    default=True,
    show_default=True,
    help="Measure read rates with a temporary file in FOLDER.",
)
@click.option(
    "--size",
    "file_bytes",
    type=Size(),
    default="1GiB",
    show_default=True,
    help="Size of the file used to measure the disk.",
)
@click.pass_obj
def doctor(output: Output, /, folder: Path, measure: bool, file_bytes: int) -> None:
    """Say what this machine, and the disk that FOLDER lies on, offer to diskgnn."""
    from diskgnn.system.doctor import diagnose

    found = diagnose(folder, measure=measure, file_bytes=file_bytes, reporter=output.reporter)
    output.result(found)
    machine, disk = found.machine, found.folder
    ring = machine.io_uring
    output.fields(f"diskgnn {found.diskgnn} on this machine", {
        "system": f"{machine.kernel}, Python {machine.python}, torch {machine.torch or 'not installed'}",
        "cores": f"{format_count(machine.usable_cores)} usable of {machine.cores}",
        "memory_bytes": machine.memory_bytes,
        "available_memory_bytes": machine.available_memory_bytes,
        "cgroup_memory_limit_bytes": machine.cgroup_memory_limit_bytes,
        "GPUs": ", ".join(f"{gpu.name} ({format_size(gpu.memory_bytes)})" for gpu in machine.gpus) or "none",
        "io_uring": ring.kernel,
    })  # fmt: skip
    direct, rates = disk.direct_io, disk.rates
    output.fields(disk.path, {
        "filesystem": f"{disk.filesystem} on {disk.device}",
        "free": f"{format_size(disk.free_bytes)} of {format_size(disk.total_bytes)}",
        "O_DIRECT": "not tried: the folder cannot be written" if direct is None
        else "no" if not direct.supported
        else f"yes; offsets aligned to {direct.offset_alignment_bytes} bytes, memory to "
             f"{direct.memory_alignment_bytes} ({direct.source})",
        **({} if rates is None else {
            "sequential read": f"{format_size(rates.sequential_bytes_per_second)}/s in reads of 1 MiB",
            "random read": f"{format_size(rates.random_bytes_per_second)}/s in reads of 4 KiB "
                           f"({rates.random_reads_per_second:,.0f} a second)",
            "measured": f"with {rates.engine} on a file of {format_size(rates.file_bytes)}"
                        f"{'' if rates.direct_io else ', through the page cache'}",
        }),
    })  # fmt: skip
    for advice in found.advice:
        output.text(f"- {advice}")
