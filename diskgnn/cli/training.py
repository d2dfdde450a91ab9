"""Commands that train and evaluate models: train, evaluate."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import model_options, options
from diskgnn.cli.command import Command
from diskgnn.cli.options import CACHE, Size, combined
from diskgnn.cli.rendering import Output
from diskgnn.errors import ConfigError
from diskgnn.nn.model_spec import EMBEDDINGS
from diskgnn.stores.locations import located
from diskgnn.units import format_seconds, format_size

if TYPE_CHECKING:
    from diskgnn.loading.hops_options import HopsOptions
    from diskgnn.loading.loader_options import LoaderOptions
    from diskgnn.training.results import TrainResult

_reading, _experts = options.section("Reading"), options.section(options.EXPERTS)
_reading_options = combined(
    _reading("--device-cache", type=CACHE,
             help="GPU memory for the hottest static rows: 4GiB, or 10% of all rows; the others stay in pinned host "
                  "memory.  [default: what the model leaves, for evaluate half of what is free]"),
    _experts("--prefetch", type=int, help="Minibatches read ahead.  [default: 1, on a GPU 2]"),
    _experts("--engine", type=options.Choice(["auto", "io_uring", "threads"]), default="auto", show_default=True,
             help="How the disk is read."),
    _reading("--verify/--no-verify", default=True, show_default=True,
             help="Compare rows with their checksums as they are read."),
    _reading("--stream", is_flag=True,
             help="PACKED is the URL of an object store: read it from there in every epoch."),
)  # fmt: skip
_hop_reading = combined(
    _reading("--batch-size", type=int,
             help="Of a hops directory: seeds in a minibatch, at most.  [default: 1024]"),
    _reading("--memory", type=Size("auto"),
             help="Of a hops directory: what records may take; those of train are read once if they fit.  [default: "
                  "auto, half of what is available]"),
)  # fmt: skip
_model = options.section("Model")
_optimization = options.section("Training")
_checkpoints = options.section("Checkpoints")
_records = options.section("Records")


@click.command(cls=Command, short_help="Train a model on prepared minibatches.")
@click.argument("packed", type=options.PACKED)
@model_options.shape
@_model(
    "--task",
    type=options.Choice(["classification", "multilabel", "regression", "link"]),
    help="Refuse minibatches that are for another task.  [default: what they are for]",
)
@_model(
    "--loss",
    type=options.Choice(["mse", "l1", "bce", "softmax"]),
    help="mse or l1 for regression; bce or softmax for links.  [default: mse; bce, softmax for in-batch negatives]",
)
@_model("--layers", "num_layers", type=int, help="Layers.  [default: as many as were prepared]")
@_model("--heads", type=int, default=4, show_default=True, help="Attention heads (GAT, R-GAT, HGT).")
@_model("--bases", "num_bases", type=int, help="Edge types mix their weights from so many (R-GCN).  [default: none]")
@_model(
    "--embeddings",
    type=options.Choice(EMBEDDINGS),
    default="memory",
    show_default=True,
    help="Where the vectors of nodes without features lie: on disk, in the folder of --checkpoint.",
)
@_optimization("--epochs", type=int, default=10, show_default=True, help="Epochs in all, resumed ones included.")
@model_options.training
@_optimization("--weight-decay", type=float, default=0.0, show_default=True, help="Adam's weight decay.")
@_optimization("--evaluate-every", type=int, default=1, show_default=True, help="Epochs between evaluations.")
@_optimization("--patience", type=int, metavar="N", help="End after N evaluations without a better one.")
@_experts(
    "--averaging-period",
    type=int,
    metavar="K",
    help="Of several ranks: from the second epoch on, average parameters every K steps, while training goes on, in "
    "place of gradients in every step: for slow networks.",
)
@_optimization(
    "--keep-going",
    is_flag=True,
    help="Leave out minibatches whose loss is not finite, and count them, in place of ending.",
)
@_optimization("--amp", is_flag=True, help="Compute in bfloat16 where that is safe (autocast).")
@_optimization("--seed", type=int, default=0, show_default=True, help="Seed of initial weights and dropout.")
@_checkpoints(
    "--checkpoint",
    type=options.OUTPUT,
    metavar="DIR",
    help="Keep a checkpoint here, written after each epoch and on Ctrl-C, SIGTERM or SIGHUP.",
)
@_checkpoints(
    "--checkpoint-every",
    "checkpoint_every_batches",
    type=int,
    metavar="N",
    help="Also write a checkpoint after every N minibatches. A crash then loses at most N.",
)
@_checkpoints("--resume", is_flag=True, help="Go on exactly where the checkpoint was written.")
@_records("--metrics", type=options.OUTPUT, metavar="FILE", help="Append metrics to FILE, one JSON object a line.")
@_records("--tensorboard", type=options.OUTPUT, metavar="DIR", help="Write metrics for TensorBoard into DIR.")
@_experts(
    "--trace",
    type=options.OUTPUT,
    metavar="FILE",
    help="Write the timeline of what each thread did (200,000 events at most): open it at ui.perfetto.dev.",
)
@_reading_options
@_hop_reading
@model_options.device
@options.serve
@click.pass_obj
def train(
    output: Output, /, packed: Path | str, device_cache: int | str | None, prefetch: int | None, engine: str,
    verify: bool, stream: bool, batch_size: int | None, memory: int | str | None, **arguments: Any,
) -> None:  # fmt: skip
    """Train a model on the minibatches in PACKED and report the best epoch's scores.

    PACKED is what `diskgnn prepare` made, or the hops of `diskgnn propagate`.

    What was prepared with `--ranks 4` is trained on by four processes: `torchrun --nproc-per-node 4 -m diskgnn train
    PACKED`. With `--max-restarts` and `--checkpoint`, they go on from the checkpoint when one of them has died.
    """
    from diskgnn.formats.rank_directories import shard_of_environment
    from diskgnn.training.train import train

    shard = shard_of_environment()
    is_other = shard is not None and shard.rank > 0
    try:
        result = train(
            packed,
            **arguments,
            loader_options=_loader_options(
                packed,
                batch_size=batch_size,
                memory=memory,
                device_cache=device_cache,
                prefetch=prefetch,
                engine=engine,
                verify=verify,
                stream=stream,
            ),
            callback=lambda record: _show_record(output, record),
            reporter=output.epochs_reporter(),
        )
    except KeyboardInterrupt:
        if not is_other:
            _note_interrupt(output, arguments["checkpoint"])
        raise
    if not is_other:  # the first rank tells
        _show_trained(output, packed, result, **arguments)


def _note_interrupt(output: Output, checkpoint: Path | None) -> None:
    """Says how to go on with a training that was interrupted."""
    from diskgnn.training.checkpoints import checkpoint_exists

    if checkpoint is None:
        output.note("there is no checkpoint to go on from (--checkpoint DIR keeps one)")
    elif checkpoint_exists(checkpoint):
        output.note(f"the checkpoint is in {checkpoint}: go on with the same command and --resume")
    else:
        output.note(f"nothing was trained yet, so {checkpoint} has no checkpoint: start the same command again")


def _show_trained(
    output: Output, packed: Path | str, result: TrainResult, *, checkpoint: Path | None, epochs: int,
    patience: int | None, **others: Any,
) -> None:  # fmt: skip
    """Shows what training came to, and what to do next."""
    del others
    if len(result.epochs) < epochs:
        output.note(f"ended after epoch {len(result.epochs) - 1}: none after epoch {result.best_epoch} was better in "
                    f"{patience} evaluations")  # fmt: skip
    scores = result.scores()
    shown = {name: _score_text(name, value) for name, value in scores.items()}
    count = "1 epoch" if len(result.epochs) == 1 else f"{len(result.epochs)} epochs"
    output.fields(f"trained {count}", {"best_epoch": result.best_epoch, **shown})
    output.result({"epochs": [epoch.as_record() for epoch in result.epochs], "best_epoch": result.best_epoch,
                   **scores, "resumed_from": result.resumed_from})  # fmt: skip
    if checkpoint is None:
        output.next("diskgnn", "train", packed, "--checkpoint", _beside(packed),
                    why="the same with a checkpoint: this model was not kept")  # fmt: skip
    else:
        output.next("diskgnn", "evaluate", packed, "--checkpoint", checkpoint)


def _loader_options(packed: Path | str, **given: Any) -> LoaderOptions | HopsOptions:
    """Makes the options of a packed or a hops directory, which have some each, and some in common.

    Raises:
        ConfigError: one of the other kind was given.
    """
    from diskgnn.formats.hops import is_hops
    from diskgnn.loading.hops_options import HopsOptions
    from diskgnn.loading.loader_options import LoaderOptions

    of_hops = is_hops(packed)
    found = HopsOptions if of_hops else LoaderOptions
    known = {each.name for each in fields(found)}
    for name, value in given.items():
        if name not in known and value:
            kind = "a hops directory, which `diskgnn propagate` made" if of_hops else "a packed directory"
            raise ConfigError(f"{name}: {packed} is {kind}, and its minibatches have no such option; leave it out")
    return found(**{name: value for name, value in given.items() if name in known and value is not None})


def _beside(packed: Path | str) -> Path:
    """Returns a folder for a checkpoint."""
    found = located(packed)
    name = f"{found.name}-run"
    return found.with_name(name) if isinstance(found, Path) else Path(name)


def _show_record(output: Output, record: dict[str, Any]) -> None:
    """Prints one line for each finished epoch, from the records that `train` hands to its callback."""
    output.record(record)
    if record["event"] != "epoch":
        return
    parts = [f"epoch {record['epoch']}: loss {record['loss']:.4f}"]
    for name, value in record.items():
        if name.startswith("valid_") and name != "valid_loss" and value is not None:
            parts.append(f"{name.replace('_', ' ')} {_score_text(name, value)}")
    parts.append(f"{format_seconds(record['train_seconds'])}, {format_seconds(record['wait_seconds'])} of it waiting")
    parts.append(f"read {format_size(record['read_bytes'])}")
    output.note(", ".join(parts))


def _score_text(name: str, value: float) -> str:
    """Shares in percent; errors and R2 as numbers."""
    return f"{value:.6g}" if name.endswith(("mae", "rmse", "r2")) else f"{value:.2%}"


@click.command(cls=Command, short_help="Measure a trained model's loss and scores.")
@click.argument("packed", type=options.PACKED)
@click.option(
    "--checkpoint",
    type=options.LOCAL,
    required=True,
    metavar="DIR",
    help="What `diskgnn train --checkpoint DIR` left.",
)
@click.option(
    "--split",
    type=options.Choice(["train", "valid", "test"]),
    default="test",
    show_default=True,
    help="Which nodes to evaluate on.",
)
@_reading_options
@model_options.device
@options.serve
@click.pass_obj
def evaluate(
    output: Output, /, packed: Path | str, checkpoint: Path, split: str, device: str, **reading: Any
) -> None:  # fmt: skip
    """Loss and scores of a trained model on one split of PACKED."""
    from diskgnn.training.evaluate import evaluate

    result = evaluate(
        checkpoint, packed, device, split=split, loader_options=_loader_options(packed, **reading),
        reporter=output.reporter,
    )  # fmt: skip
    record = result.as_record()
    scores = {name: _score_text(name, value) for name, value in result.scores.items()}
    output.fields(f"{split} split of {packed}", {**record, **scores})
    output.result(record)
    out, what = _usual_output(checkpoint)
    wanted = ("GRAPH", "--checkpoint", checkpoint, "--out", out, *what)
    from diskgnn.formats.hops import is_hops
    from diskgnn.inference.asked_times import is_temporal, trained_sampling

    if is_temporal(trained_sampling(checkpoint)):
        output.next("diskgnn", "predict", *wanted, "--at", "TIME",
                    why="for the graph directory GRAPH, by what was there at TIME, such as 2024-01-31")  # fmt: skip
    else:
        why = "for all nodes of the graph directory GRAPH; `predict` says it of some"
        with_times = "; with --ignore-times if `propagate` was given it" if is_hops(packed) else ""
        output.next("diskgnn", "infer", *wanted, why=why + with_times)


def _usual_output(checkpoint: Path) -> tuple[str, tuple[str, ...]]:
    """Returns what people mostly want of a model: a file, and the option for it."""
    from diskgnn.training.checkpoints import load_checkpoint

    task = load_checkpoint(checkpoint)["config"]["task"]
    asked = {"node classification": "classes", "multi-label classification": "probabilities"}
    if task in asked:
        return "predictions.parquet", ("--what", asked[task])
    return ("predictions.parquet", ()) if task == "regression" else ("vectors.npy", ())
