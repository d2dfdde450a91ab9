"""Commands that prepare a graph for training: sample and pack, or both: prepare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.rendering import Output
from diskgnn.cli.sampling_arguments import sampling_arguments
from diskgnn.errors import ConfigError, InputError
from diskgnn.progress.reporter import StageReport
from diskgnn.specs.caches import DEFAULT_CPU_CACHE
from diskgnn.specs.engines import ENGINES
from diskgnn.specs.schema import NO_LABELS
from diskgnn.specs.targets import NodeTarget
from diskgnn.stores.locations import Location, StoredPath
from diskgnn.system.memory import available_cores

if TYPE_CHECKING:
    from diskgnn.preparing.estimate import Estimate
    from diskgnn.propagation.choice import Way

_spending = options.combined(options.memory, options.disk, options.threads, options.overwrite, options.serve)


def _finish(output: Output, reports: StageReport | list[StageReport]) -> None:
    output.stages(reports if isinstance(reports, list) else [reports])
    output.result(reports)


def _ready_to_train(output: Output, reports: StageReport | list[StageReport], packed: Location, ranks: int = 1) -> None:
    from diskgnn.formats.manifest import read_manifest
    from diskgnn.formats.packed_config import PackedConfig
    from diskgnn.formats.rank_directories import rank_directories

    _finish(output, reports)
    if isinstance(packed, StoredPath):
        output.next("diskgnn", "fetch", packed, packed.name, why="copies it to a disk here, to train from")
        return
    first = packed if ranks == 1 else rank_directories(packed)[0]
    config = read_manifest(first).parsed(PackedConfig.parse)
    split = next(iter(config.splits))
    if config.schema().target_kind == NO_LABELS:
        output.next("diskgnn", "predict", first, "--checkpoint", "RUN", "--split", split, "--out", "FILE",
                    why="the seeds have no labels to train on")  # fmt: skip
        return
    if "train" not in config.splits:
        output.next("diskgnn", "evaluate", first, "--checkpoint", "RUN", "--split", split, why="without a train split")
        return
    launch = ("diskgnn",) if ranks == 1 else ("torchrun", "--nproc-per-node", str(ranks), "-m", "diskgnn")
    output.next(*launch, "train", packed, "--checkpoint", packed.with_name(f"{packed.name}-run"))


def _say_cpu_cache(output: Output) -> None:
    """Tells what the cpu tier is where nobody has said it: the size of what is written depends on it."""
    context = click.get_current_context()
    if context.get_parameter_source("cpu_cache") is click.core.ParameterSource.DEFAULT:
        output.note(f"--cpu-cache {DEFAULT_CPU_CACHE}: the cpu tier of training holds so much of all feature rows")


@click.command(cls=Command, short_help="Sample minibatches: the first half of prepare.")
@click.argument("graph", type=options.ARTIFACT)
@click.argument("out", type=options.ARTIFACT)
@options.sampling
@options.seed
@_spending
@click.pass_obj
def sample(output: Output, /, graph: Path, out: Path, **arguments: Any) -> None:
    """Sample the minibatches of GRAPH into OUT (the first half of `prepare`).

    Stopped half-way, the same command goes on where it was.
    """
    from diskgnn.sampling.sample import sample

    _finish(output, sample(graph, out, **sampling_arguments(arguments, graph), reporter=output.reporter))
    output.next("diskgnn", "pack", graph, out, out.with_name(f"{out.name}-packed"), "--cpu-cache", "10%")


@click.command(cls=Command, short_help="Pack their features: the second half of prepare.")
@click.argument("graph", type=options.ARTIFACT)
@click.argument("samples", type=options.ARTIFACT)
@click.argument("out", type=options.ARTIFACT)
@options.caches
@_spending
@click.pass_obj
def pack(output: Output, /, graph: Path, samples: Path, out: Path, **arguments: Any) -> None:
    """Place and pack the features of GRAPH for SAMPLES into OUT (the second half of `prepare`)."""
    from diskgnn.packing.pack import pack

    _say_cpu_cache(output)
    _ready_to_train(output, pack(graph, samples, out, **arguments, reporter=output.reporter), out)


@click.command(cls=Command, short_help="Sample and pack a graph for training.")
@click.argument("graph", type=options.ARTIFACT)
@click.argument("out", type=options.ARTIFACT)
@options.sampling
@options.caches
@click.option("--samples", type=options.OUTPUT, help="Keep the samples here.  [default: they are removed]")
@options.seed
@_spending
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that train together: OUT gets a directory for each, with its own minibatches and caches.",
)
@options.engine
@click.option(
    "--estimate",
    is_flag=True,
    help="Only sample some minibatches; predict time, memory and disk space, here and with other settings.",
)
@click.pass_obj
def prepare(output: Output, /, graph: Path, out: Path, estimate: bool, **arguments: Any) -> None:
    """Sample, place and pack GRAPH into OUT, ready for `diskgnn train`."""
    arguments = sampling_arguments(arguments, graph)
    _say_cpu_cache(output)
    if estimate:
        import diskgnn.preparing.prepare  # noqa: F401  (memory is that of a process that has loaded it)
        from diskgnn.cli.estimates import show, show_ways
        from diskgnn.preparing.estimate import estimate as predict

        arguments.pop("overwrite")  # nothing is written
        if (arguments.pop("engine"), arguments.pop("address")) != (ENGINES[0], None):
            raise ConfigError("engine: an estimate is made here, and of this machine; leave it out with --estimate")
        if arguments.pop("ranks") > 1:
            raise ConfigError("ranks: an estimate is of one process that trains; leave it out with --estimate")
        prediction = predict(graph, out, **arguments, reporter=output.reporter)
        show(output, prediction, graph, out)
        ways = _ways(output, graph, out, prediction, arguments)
        show_ways(output, ways)
        output.result({**vars(prediction), "ways": ways})
        if prediction.missing_disk_bytes == prediction.missing_memory_bytes == 0:
            group = click.get_current_context().parent
            assert group is not None  # which keeps the arguments
            output.next("diskgnn", *(each for each in group.obj if each != "--estimate"))
    else:
        from diskgnn.preparing.prepare import prepare

        reports = prepare(graph, out, **arguments, reporter=output.reporter)
        _ready_to_train(output, reports, out, arguments["ranks"])


def _ways(output: Output, graph: Path, out: Path, prediction: Estimate, arguments: Mapping[str, Any]) -> list[Way]:
    """Compares sampling with propagating as many hops for the same seeds; empty where propagating is no choice."""
    from diskgnn.propagation.choice import ways
    from diskgnn.propagation.propagate import estimate_propagation

    fanouts, target = arguments["fanouts"], arguments["target"]
    asks_of_splits = isinstance(target, NodeTarget) and target == NodeTarget(target.node_type)
    if not isinstance(fanouts, list) or arguments["sampler"] is not None or not asks_of_splits:
        return []
    try:
        found = estimate_propagation(
            graph, out, hops=len(fanouts), target=target.node_type, memory=arguments["memory"],
            threads=arguments["threads"], reporter=output.reporter,
        )  # fmt: skip
    except (ConfigError, InputError):
        return []  # no or many paths, times, features of edges, or less memory than it takes
    return ways(prediction, fanouts, found, arguments["threads"] or available_cores())
