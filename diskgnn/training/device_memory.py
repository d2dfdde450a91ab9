"""Finds what a model leaves of the GPU's memory, by trying it on the largest minibatches before tiers are filled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from diskgnn.batches.batch_source import BatchSource
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.embeddings.disk_embeddings import DiskEmbeddings
from diskgnn.errors import ConfigError
from diskgnn.loading.sequence import MinibatchSequence
from diskgnn.training.source_opening import Evaluations
from diskgnn.training.task import Task

_OPTIMIZER_COPIES = 3  # of the parameters: Adam's two moments, and what a step computes with
MARGIN_SHARE = 0.05  # of the GPU's memory, left free: the allocator's fragments, and libraries that load later


def size_device_tier(
    net: nn.Module, task: Task, source: BatchSource, evaluations: Evaluations, device: torch.device, *, amp: bool
) -> None:
    """Let the device tier of a `Loader` have what the model leaves of the GPU's memory, unless its size was given.

    Other sources have no `sequence`, and are left as they are. Nobody asks for their type: a `Loader` may be wrapped.

    Raises:
        ConfigError: the model does not fit the device's memory.
    """
    sequence: MinibatchSequence | None = getattr(source, "sequence", None)
    if device.type != "cuda" or sequence is None:
        return
    loader: Any = source
    if sequence.packed.config.num_static == 0 or loader.device_cache is not None or sequence.num_batches == 0:
        return
    with ExitStack() as opened:
        others = [opened.enter_context(evaluation()) for evaluation in evaluations.values()]
        sequences = [found for other in others if (found := getattr(other, "sequence", None)) is not None]
        sequences = [each for each in sequences if each.num_batches]  # a rank may have none of a small split
        row_bytes = max(row_set.rows.row_bytes for row_set in sequence.packed.config.row_sets)
        num_rows = free_for_rows(net, task, sequence, sequences, amp=amp) // row_bytes
        loader.choose_device_cache(num_rows * row_bytes)


def dry_pass(net: nn.Module, task: Task, batch: AnyMiniBatch, *, amp: bool, backward: bool) -> None:
    """Runs a forward and, if asked for, a backward pass, as training does them; leaves the model and torch's random
    numbers as they were, without gradients.

    Raises:
        ConfigError: the device has not enough memory.
    """
    device = batch.seeds.device
    buffers = [(buffer, buffer.detach().clone()) for buffer in net.buffers()]
    was_training = net.training
    net.train(backward)
    try:
        with (
            torch.set_grad_enabled(backward),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.autocast(device.type, torch.bfloat16, enabled=amp),
        ):
            loss = task.loss(task.outputs(net, batch), batch)
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            f"the model does not fit {device}'s memory with the largest minibatch ({batch.num_input_nodes} input "
            f"nodes, {batch.num_edges} edges): use a smaller hidden width or amp=True, or prepare with a smaller "
            "batch_size or fanouts"
        ) from error
    finally:
        net.zero_grad(set_to_none=True)
        net.train(was_training)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def free_for_rows(
    net: nn.Module, task: Task, train: MinibatchSequence, evaluations: Sequence[MinibatchSequence], *, amp: bool
) -> int:
    """Returns the bytes of GPU memory that training `net` leaves for the device tier.

    The blocks that a dry pass needed stay with torch's allocator, which will give them out again, so that what the
    driver calls free is what was never needed. From that, what is still to come is subtracted: minibatches ahead, the
    optimizer's state, a margin.

    Raises:
        ConfigError: the model does not fit the device's memory.
    """
    device = train.device
    dry_pass(net, task, train.largest_minibatch(), amp=amp, backward=True)
    for sequence in evaluations:
        dry_pass(net, task, sequence.largest_minibatch(), amp=amp, backward=False)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    parameter_bytes = sum(parameter.nbytes for parameter in net.parameters())
    ahead_bytes = max(sequence.device_bytes_ahead for sequence in (train, *evaluations))
    if DiskEmbeddings(net):
        ahead_bytes += train.device_bytes_of_one  # held by `ReadingAhead`
    margin_bytes = int(total_bytes * MARGIN_SHARE)
    return max(0, free_bytes - ahead_bytes - _OPTIMIZER_COPIES * parameter_bytes - margin_bytes)
