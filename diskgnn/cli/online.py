"""Commands that read packed directories: train, evaluate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.options import CACHE, combined
from diskgnn.cli.rendering import BarReporter, Output
from diskgnn.units import format_seconds, format_size

_LOADER_OPTIONS = ("device_cache", "pinned_cache", "prefetch", "engine", "verify")
_loader_options = combined(
    click.option("--device", default="cpu", show_default=True, help="Where the model is: cpu, cuda, cuda:1."),
    click.option("--device-cache", type=CACHE,
                 help="GPU memory for the hottest static rows: 4GiB, or 10% of all rows.  [default: what the model "
                      "leaves, for evaluate half of what is free]"),
    click.option("--pinned-cache", type=CACHE,
                 help="Host memory, page-locked for a GPU, for the other static rows: 4GiB, or 10% of all rows.  "
                      "[default: as they need]"),
    click.option("--prefetch", type=int, help="Minibatches read ahead.  [default: 1, on a GPU 2]"),
    click.option("--engine", type=click.Choice(["auto", "io_uring", "threads"]), default="auto", show_default=True,
                 help="How the disk is read."),
    click.option("--verify", is_flag=True, help="Compare all rows read with their checksums."),
)  # fmt: skip


def _split_loader_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes the `Loader`'s keyword arguments out of a command's."""
    return {name: arguments.pop(name) for name in _LOADER_OPTIONS}


@click.command(cls=Command)
@click.argument("packed", type=options.ARTIFACT)
@click.option(
    "--model",
    type=click.Choice(["sage", "gat", "gcn"]),
    default="sage",
    show_default=True,
    help="GraphSAGE (mean), GAT or GCN, with as many layers as fanouts were prepared.",
)
@click.option("--hidden", type=int, default=256, show_default=True, help="Width of the hidden layers.")
@click.option("--layers", "num_layers", type=int, help="Layers.  [default: as many as were prepared]")
@click.option("--heads", type=int, default=4, show_default=True, help="Attention heads (GAT).")
@click.option("--dropout", type=float, default=0.5, show_default=True, help="Share of hidden units dropped.")
@click.option("--lr", type=float, default=0.003, show_default=True, help="Adam's learning rate.")
@click.option("--weight-decay", type=float, default=0.0, show_default=True, help="Adam's weight decay.")
@click.option("--epochs", type=int, default=10, show_default=True, help="Epochs in all, resumed ones included.")
@click.option("--evaluate-every", type=int, default=1, show_default=True, help="Epochs between evaluations.")
@click.option("--amp", is_flag=True, help="Compute in bfloat16 where that is safe (autocast).")
@_loader_options
@click.option(
    "--checkpoint",
    type=options.OUTPUT,
    metavar="DIR",
    help="Keep a checkpoint here, written after each epoch and on Ctrl-C or SIGTERM.",
)
@click.option(
    "--checkpoint-every",
    "checkpoint_every_batches",
    type=int,
    metavar="N",
    help="Write it also after every N minibatches of an epoch: what a crash can cost.",
)
@click.option("--resume", is_flag=True, help="Go on exactly where the checkpoint was written.")
@click.option("--metrics", type=options.OUTPUT, metavar="FILE", help="Append metrics to FILE, one JSON object a line.")
@click.option("--tensorboard", type=options.OUTPUT, metavar="DIR", help="Write metrics for TensorBoard into DIR.")
@click.option(
    "--trace",
    type=options.OUTPUT,
    metavar="FILE",
    help="Write the timeline of what each thread did (200,000 events at most): open it at ui.perfetto.dev.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of initial weights and dropout.")
@click.pass_obj
def train(output: Output, /, packed: Path, **arguments: Any) -> None:
    """Train a node classifier on the minibatches in PACKED and report the best epoch's test accuracy."""
    from diskgnn.training.checkpoints import checkpoint_exists
    from diskgnn.training.train import train

    loader_options = _split_loader_options(arguments)
    try:
        result = train(
            packed,
            **arguments,
            loader_options=loader_options,
            callback=lambda record: show_epoch(output, record),
            reporter=BarReporter(output.messages, transient=True),  # each epoch ends with a line of its own
        )
    except KeyboardInterrupt:
        checkpoint = arguments["checkpoint"]
        if checkpoint is not None and checkpoint_exists(checkpoint):
            output.note(f"the checkpoint is in {checkpoint}: go on with the same command and --resume")
        else:
            output.note("there is no checkpoint to go on from (--checkpoint DIR keeps one)")
        raise
    accuracies = {name: getattr(result, name) for name in ("valid_accuracy", "test_accuracy")}
    shown = {name: f"{value:.2%}" for name, value in accuracies.items() if value is not None}
    output.fields(f"trained {len(result.epochs)} epochs", {"best_epoch": result.best_epoch, **shown})
    output.result({"epochs": [asdict(epoch) for epoch in result.epochs], "best_epoch": result.best_epoch,
                   **accuracies, "resumed_from": result.resumed_from})  # fmt: skip


def show_epoch(output: Output, record: dict[str, Any]) -> None:
    """One line for each finished epoch, from the records that `train` hands to its callback."""
    if record["event"] != "epoch":
        return
    parts = [f"epoch {record['epoch']}: loss {record['loss']:.4f}"]
    if record.get("valid_accuracy") is not None:
        parts.append(f"valid accuracy {record['valid_accuracy']:.2%}")
    parts.append(f"{format_seconds(record['train_seconds'])}, {format_seconds(record['wait_seconds'])} of it waiting")
    parts.append(f"read {format_size(record['read_bytes'])}")
    output.note(", ".join(parts))


@click.command(cls=Command)
@click.argument("packed", type=options.ARTIFACT)
@click.option(
    "--checkpoint",
    type=options.ARTIFACT,
    required=True,
    metavar="DIR",
    help="What `diskgnn train --checkpoint DIR` left.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test"]),
    default="test",
    show_default=True,
    help="Which nodes to evaluate on.",
)
@_loader_options
@click.pass_obj
def evaluate(output: Output, /, packed: Path, checkpoint: Path, split: str, device: str, **arguments: Any) -> None:
    """Loss and accuracy of a trained model on one split of PACKED."""
    from diskgnn.training.checkpoints import load_model
    from diskgnn.training.evaluate import evaluate

    result = evaluate(
        load_model(checkpoint), packed, device, split=split,
        loader_options=_split_loader_options(arguments), reporter=output.reporter,
    )  # fmt: skip
    output.fields(f"{split} split of {packed}", {**vars(result), "accuracy": f"{result.accuracy:.2%}"})
    output.result(result)
