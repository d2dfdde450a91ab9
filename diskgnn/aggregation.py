"""Sums over sampled neighbours, forward and backward, without materialising a message per edge.

Both directions are `embedding_bag`s. Forward, each destination is a bag of sources. Backward, each source is a bag of
destinations (`Block.by_source`, sorted once per block): several times faster on a CPU than scattering the gradient
edge by edge, and than sparse matrix products, which convert or copy the matrix in their backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diskgnn.minibatch import Block


def own_and_mean(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """The destinations' own rows of x, and the mean of their neighbours' rows (zeros where there are none).

    Args:
        x: [num_src, W] floating point.
        block: the edges.

    Returns:
        Two [num_dst, W] tensors. They come together because x[:num_dst] by itself would cost the backward pass a
        second gradient of x's size, zeros for the most part.
    """
    own, mean = _OwnAndMean.apply(x, block)
    return own, mean


def weighted_sums(x: Tensor, weights: Tensor, block: Block) -> Tensor:
    """For each head, the weighted sum of every destination's neighbours' rows.

    Args:
        x: [num_src, H, W], or [num_src, 1, W] where all heads sum the same rows.
        weights: [num_edges, H], cast to x's dtype.
        block: the edges.

    Returns:
        [num_dst, H, W], zeros for destinations without neighbours.
    """
    sums: Tensor = _WeightedSums.apply(x, weights.to(x.dtype), block)
    return sums


def attention(x: Tensor, source_scores: Tensor, destination_scores: Tensor, block: Block, slope: float) -> Tensor:
    """Neighbours' rows, averaged with the softmax of leaky_relu(source score + destination score) over each
    destination's edges: Velickovic et al., Graph Attention Networks, ICLR 2018, equations 1 to 4.

    Args:
        x: [num_src, H, W], or [num_src, 1, W] where all heads average the same rows.
        source_scores: [num_src, H].
        destination_scores: [num_dst, H].
        block: the edges.
        slope: of leaky_relu below zero.

    Returns:
        [num_dst, H, W], zeros for destinations without neighbours.
    """
    scores = F.leaky_relu(_EdgeScores.apply(source_scores, destination_scores, block), slope)
    highest = torch.segment_reduce(scores.detach(), "max", offsets=block.indptr, unsafe=True)
    weights = torch.exp(scores - highest[block.destinations])
    # Divided after the sum, so once per destination. A destination without neighbours has 0 / 1 instead of 0 / 0.
    totals = torch.segment_reduce(weights, "sum", offsets=block.indptr, unsafe=True, initial=0)
    totals = totals + (block.in_degrees == 0).unsqueeze(1)
    return weighted_sums(x, weights, block) / totals.unsqueeze(2)


def _bags(x: Tensor, indptr: Tensor, indices: Tensor, mode: str = "sum", weights: Tensor | None = None) -> Tensor:
    return F.embedding_bag(indices, x, indptr, mode=mode, per_sample_weights=weights, include_last_offset=True)


class _OwnAndMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        ctx.block = block
        return x[: block.num_dst], _bags(x, block.indptr, block.indices, mode="mean")

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, own_gradient: Tensor, mean_gradient: Tensor) -> tuple[Tensor, None]:
        block: Block = ctx.block
        by_source = block.by_source
        share = mean_gradient / block.in_degrees.clamp(min=1).unsqueeze(1)
        gradient = _bags(share, by_source.indptr, by_source.destinations)
        gradient[: block.num_dst] += own_gradient
        return gradient, None


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, block: Block) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x, weights)
        heads, distinct = weights.shape[1], x.shape[1]
        out = x.new_empty(block.num_dst, heads, x.shape[2])
        for head, weight in enumerate(weights.t().contiguous()):
            out[:, head] = _bags(x[:, head % distinct], block.indptr, block.indices, weights=weight)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        block: Block = ctx.block
        x, weights = ctx.saved_tensors
        x_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            indptr, destinations, edges = block.by_source
            by_head = [
                _bags(gradient[:, head], indptr, destinations, weights=weight)
                for head, weight in enumerate(weights[edges].t().contiguous())
            ]
            x_gradient = torch.stack(by_head, dim=1) if x.shape[1] > 1 else sum(by_head).unsqueeze(1)
        if ctx.needs_input_grad[1]:
            # embedding_bag's own: one dot product per edge, of its destination's gradient and its source's row.
            edge_dot = torch.ops.aten._embedding_bag_per_sample_weights_backward
            offsets = block.indptr[:-1]
            weights_gradient = torch.stack(
                [
                    edge_dot(gradient[:, head], x[:, head % x.shape[1]], block.indices, offsets, block.destinations, 0)
                    for head in range(weights.shape[1])
                ],
                dim=1,
            )
        return x_gradient, weights_gradient, None


class _EdgeScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source_scores: Tensor, destination_scores: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return source_scores[block.indices] + destination_scores[block.destinations]

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        indptr, _, edges = ctx.block.by_source
        by_source = torch.segment_reduce(gradient[edges], "sum", offsets=indptr, unsafe=True, initial=0)
        by_destination = torch.segment_reduce(
            gradient.contiguous(), "sum", offsets=ctx.block.indptr, unsafe=True, initial=0
        )
        return by_source, by_destination, None
