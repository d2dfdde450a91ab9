"""Describes what a checkpoint holds and how it came to be, for `diskgnn inspect`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from diskgnn.graph.artifact_description import flattened
from diskgnn.nn.model_spec import ONLY_OF, RELATIONAL, TYPED_MODELS, ModelSpec
from diskgnn.paths import PathLike
from diskgnn.specs.schema import NO_LABELS, SourceSchema, edge_type_name
from diskgnn.training.checkpoints import FORMAT, VERSION, changes_named, completed_config, load_checkpoint
from diskgnn.training.results import EpochResult
from diskgnn.training.task import task_of

_SHAPE = tuple(each.name for each in fields(ModelSpec) if each.name != "name")
_SHOWN_OF = {**ONLY_OF, "embeddings": TYPED_MODELS, "embedding_memory": ()}
_OUTPUTS = {"class": "classes", "multilabel": "labels", "regression": "targets", "link": "links"}


@dataclass(frozen=True)
class CheckpointDescription:
    """Holds the contents of one checkpoint, as plain values. Names of facts end in their unit."""

    path: str
    kind: str
    format: str
    version: int
    facts: dict[str, Any]  # the model, what it is for, and how far training came
    node_types: list[dict[str, Any]]  # that it was trained on
    edge_types: list[dict[str, Any]]
    feature_columns: list[dict[str, Any]]  # of the types whose features were made from tables
    sampling: dict[str, Any] | None  # how minibatches were drawn; None if their source did not say
    config: dict[str, Any]  # of training
    scores: list[dict[str, Any]]  # of the best epoch and of the last one
    used_by: dict[str, str]  # commands that take it


def describe_checkpoint(directory: PathLike) -> CheckpointDescription:
    """Describes the checkpoint in `directory`.

    Raises:
        ArtifactError: see `load_checkpoint`.
        ReadError: the disk failed.
    """
    checkpoint = load_checkpoint(directory)
    with changes_named(directory):
        config = _plain(completed_config(checkpoint["config"]))
        schema = SourceSchema.of_record(config["schema"])
        known = {*_SHAPE, "schema", "sampling", "model", "named_model", "task", "loss"}
        sampling = config["sampling"]
        return CheckpointDescription(
            path=str(directory),
            kind="a checkpoint of training",
            format=FORMAT,
            version=VERSION,
            facts=_plain({**_model_facts(checkpoint, config, schema), **_progress_facts(checkpoint)}),
            node_types=_plain([
                {"type": name, "nodes": nodes, "features": width} for name, nodes, width in schema.node_types
            ]),
            edge_types=_plain([
                {"type": edge_type_name(edge_type), "features": width} for edge_type, width in schema.edge_types
            ]),
            feature_columns=_plain([
                {"of": of if isinstance(of, str) else edge_type_name(of), **asdict(column)}
                for of, columns in schema.columns for column in columns
            ]),
            sampling=None if sampling is None else flattened(sampling),
            config={name: value for name, value in config.items() if name not in known},
            scores=_plain(_scores(checkpoint)),
            used_by=_uses(str(directory), config, schema),
        )  # fmt: skip


def _model_facts(checkpoint: Mapping[str, Any], config: Mapping[str, Any], schema: SourceSchema) -> dict[str, Any]:
    name, is_named = config["model"], config["named_model"]
    shape: dict[str, Any] = {}
    if is_named:
        ModelSpec(**{each: config[each] for each in _SHAPE}, name=name)  # checks them
        skipped = {each for each, names in _SHOWN_OF.items() if name not in names}
        skipped |= {"decoder"} if isinstance(schema.target, str) else set()
        shape = {each: config[each] for each in _SHAPE if each not in skipped}
    outputs = _OUTPUTS[schema.target_kind]
    count = "" if schema.target_kind == "link" else f"{schema.num_outputs} "
    of = f"{schema.target} nodes" if isinstance(schema.target, str) else f"{edge_type_name(schema.target)} edges"
    segments = {"segments": [name for name, _ in schema.segments]} if schema.segments else {}
    return {
        "model": name if is_named else f"your own module {name}",
        **shape,
        **segments,
        "weights_bytes": sum(each.numel() * each.element_size() for each in checkpoint["model"].values()),
        "task": f"{config['task']}: {count}{outputs} of {of}",
        "loss": config["loss"],
        **({} if schema.classes is None else {"class_values": list(schema.classes)}),
    }


def _progress_facts(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    position, best = checkpoint["position"], checkpoint["best"]
    under_way = {"minibatches_of_next_epoch": position["batch"]} if position["batch"] else {}
    return {
        "epochs": len(checkpoint["history"]),
        **under_way,
        **({} if best is None else {"best_epoch": best["epoch"]}),
    }


def _scores(checkpoint: Mapping[str, Any]) -> list[dict[str, Any]]:
    history, best = checkpoint["history"], checkpoint["best"]
    shown = {"last": len(history) - 1} if history else {}
    if best is not None:
        shown = {"best": best["epoch"], **shown}
    found = []
    for which, epoch in shown.items():
        result = EpochResult.parse(history[epoch])
        losses = {f"{split}_loss": evaluation.loss for split, evaluation in result.evaluations.items()}
        found.append({"weights": which, "epoch": result.epoch, "train_loss": result.loss, **losses, **result.scores()})
    return found


def _uses(directory: str, config: Mapping[str, Any], schema: SourceSchema) -> dict[str, str]:
    checkpoint = f"--checkpoint {shlex.quote(directory)}"
    if not config["named_model"]:
        return {"load_state_dict": f"yours, of load_checkpoint({directory!r})['model'] in diskgnn.training.checkpoints"}
    if schema.target_kind == NO_LABELS or task_of(schema).name != config["task"]:
        return {"load_model": f"diskgnn.load_model({directory!r}), as the task was your own"}
    sampling, is_pair = config["sampling"], not isinstance(schema.target, str)
    is_temporal = sampling is not None and sampling["temporal"] in ("uniform", "last")
    pairs = " --pairs pairs.parquet" if is_pair else ""
    node_type = f" --node-type {schema.target[0]}" if is_pair and schema.target[0] != schema.target[2] else ""
    infer = f"diskgnn infer GRAPH {checkpoint} --out all.npy{node_type}{' --ignore-times' * is_temporal}"
    return {
        "evaluate": f"diskgnn evaluate {'HOPS' if schema.segments else 'PACKED'} {checkpoint}",
        "predict": f"diskgnn predict GRAPH {checkpoint} --out scores.parquet{pairs}{' --at TIME' * is_temporal}",
        **({} if config["model"] == RELATIONAL else {"infer": infer}),
        "train": "the `diskgnn train` that made it, with --resume",
    }


def _plain(value: Any) -> Any:
    """Returns `value`, if JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is not None and not isinstance(value, str | int | float | bool):
        raise TypeError(f"expected a plain value, found {type(value).__name__}")
    return value
