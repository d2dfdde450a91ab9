"""Describes a packed directory for `diskgnn inspect`: its purpose, its content, and the bytes that training reads."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from diskgnn.cli.rendering import Output
from diskgnn.specs.schema import edge_type_name
from diskgnn.specs.targets import LinkTarget
from diskgnn.specs.time_windows import windows_text
from diskgnn.units import format_count

if TYPE_CHECKING:
    from diskgnn.formats.packed import Packed
    from diskgnn.specs.fanouts import Fanouts
    from diskgnn.stores.locations import AnyPath

_SPLIT_COLUMNS = "split", "seeds", "minibatches", "prepared epochs", "size_bytes", "read in an epoch_bytes"
_TIER_COLUMNS = "split", "of", "rows", "device or pinned", "cpu", "disk", "disk_share"
_OUTPUTS = {"class": "classes", "multilabel": "labels", "regression": "targets"}


def show_packed(output: Output, packed: Packed, path: AnyPath, num_ranks: int) -> None:
    """Shows people a packed directory, or that of the first rank of the folder `path` of several."""
    config, spec = packed.config, packed.config.samples.spec
    static_bytes = sum(each.num_static * each.rows.row_bytes for each in config.row_sets)
    output.fields(f"{packed.location}: packed minibatches", {
        "prepared from": f"the graph with the digest {config.graph}",
        "prepared for": _purpose(packed),
        "total_bytes": packed.manifest.total_bytes,
        "batch size": spec.batch_size,
        "fanouts": _fanouts(spec.split_fanouts("train")),
        "fanouts of evaluation": _fanouts(spec.split_fanouts("test")),
        "times": _times(packed),
        **({"columns left out": ", ".join(spec.without)} if spec.without else {}),
        "seed of draws": spec.seed,
        "memory of cpu tier_bytes": max((_cpu_bytes(packed, split) for split in config.splits), default=0),
        "memory of device and pinned tiers_bytes": static_bytes,
    })  # fmt: skip
    output.table("splits", _SPLIT_COLUMNS, _splits(packed))
    output.table("rows that each tier serves in an epoch", _TIER_COLUMNS, _tiers(packed))
    output.table("feature rows", ("of", "rows", "row_bytes", "features"), [
        (each.name, each.num_rows, each.rows.row_bytes, each.rows.told)
        for each in config.row_sets
    ])  # fmt: skip
    output.fields("used by", _uses(packed, path, num_ranks))


def _purpose(packed: Packed) -> str:
    config, target = packed.config, packed.config.samples.spec.target
    of_links = isinstance(target, LinkTarget)
    of = f"{edge_type_name(target.edge_type)} edges" if isinstance(target, LinkTarget) else f"{target.node_type} nodes"
    if config.target is None:
        return f"{'links: whether there are' if of_links else 'scores of'} {of}{'' if of_links else ', without labels'}"
    return f"{config.target.num_outputs} {_OUTPUTS[config.target.kind]} of {of}"


def _times(packed: Packed) -> str:
    spec = packed.config.samples.spec
    if not spec.is_temporal:
        return "not looked at"
    window = "" if spec.temporal_window is None else f", window {windows_text(spec.temporal_window)}"
    late = "as late as" if spec.strict_time else "later than"
    return f"nothing {late} a seed is drawn, temporal {spec.temporal}{window}"


def _fanouts(fanouts: Fanouts) -> str:
    if isinstance(fanouts, Mapping):
        return "; ".join(f"{edge_type_name(each)} {_fanouts(found)}" for each, found in fanouts.items())
    return ", ".join(map(str, fanouts))


def _cpu_bytes(packed: Packed, split: str) -> int:
    config = packed.config
    return sum(
        rows.cpu_rows * row_set.rows.row_bytes
        for rows, row_set in zip(config.splits[split].row_sets, config.row_sets, strict=True)
    )


def _splits(packed: Packed) -> Iterator[tuple[Any, ...]]:
    from diskgnn.formats.artifacts import extents_file

    for split, sequence in packed.config.splits.items():
        name = extents_file(split)
        size_bytes = sum(
            entry.bytes for file, entry in packed.manifest.files.items() if file.startswith((f"{split}-", f"{split}."))
        )
        seeds = _num_seeds(packed, split)
        read_bytes = packed.manifest.files[name].bytes // sequence.epochs
        yield split, seeds, sequence.batches_per_epoch, sequence.epochs, size_bytes, read_bytes


def _num_seeds(packed: Packed, split: str) -> int | str:
    """Returns the seeds of an epoch: all minibatches but the last are full."""
    from diskgnn._native import crc32c
    from diskgnn.errors import DiskGNNError
    from diskgnn.files.file_reading import read_array
    from diskgnn.formats.minibatch_checks import checked_header

    spec, num_batches = packed.config.samples.spec, packed.config.splits[split].batches_per_epoch
    if not num_batches:
        return 0
    try:
        index = packed.index(split)
        last = index.extents[num_batches - 1]
        content = read_array(packed.extents(split), np.uint8, int(last["header_bytes"]), int(last["offset"]))
        if crc32c(content) != last["header_crc32c"]:
            raise ValueError
        header = checked_header(content, packed.config.header_layout(), index.rows[num_batches - 1])
    except (DiskGNNError, OSError, ValueError):  # `verify` says what is wrong with it
        return f"{format_count(num_batches * spec.batch_size)} at most"
    count = len(header.seeds)
    if isinstance(spec.target, LinkTarget):
        assert header.pairs is not None
        negatives = spec.target.negatives if split == "train" else spec.target.eval_negatives
        count = len(header.pairs.label) // (1 + negatives)
    return (num_batches - 1) * spec.batch_size + count


def _tiers(packed: Packed) -> Iterator[tuple[Any, ...]]:
    for split, sequence in packed.config.splits.items():
        for row_set, found in zip(packed.config.row_sets, sequence.row_sets, strict=True):
            rows = found.rows
            counts = [each // sequence.epochs for each in (rows.requested, rows.static, rows.cpu, rows.disk)]
            yield split, row_set.name, *counts, rows.disk / rows.requested if rows.requested else None


def _uses(packed: Packed, path: AnyPath, num_ranks: int) -> dict[str, str]:
    where, config = shlex.quote(str(path)), packed.config
    if config.target is None and not isinstance(config.samples.spec.target, LinkTarget):
        return {"predict": f"diskgnn predict {where} --checkpoint RUN --out scores.parquet --split SPLIT"}
    uses = {}
    if "train" in config.splits:
        program = f"torchrun --nproc-per-node {num_ranks} -m diskgnn" if num_ranks else "diskgnn"
        uses["train"] = f"{program} train {where} --checkpoint RUN"
    if evaluated := [split for split in config.splits if split != "train"]:
        uses["evaluate"] = f"diskgnn evaluate {where} --checkpoint RUN --split {evaluated[-1]}"
        if not num_ranks and not isinstance(config.samples.spec.target, LinkTarget):
            uses["predict"] = f"diskgnn predict {where} --checkpoint RUN --out scores.parquet --split {evaluated[-1]}"
    return {**uses, "verify": f"diskgnn verify {where}"}
