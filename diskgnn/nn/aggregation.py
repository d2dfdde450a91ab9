"""Sums over sampled neighbours, forward and backward, without materialising a message per edge.

Both directions are `embedding_bag`s. Forward, each destination is a bag of sources; backward, each source is a bag
of destinations (`Block.by_source`, sorted once per block). On a CPU that is faster, sorting included, than
embedding_bag's own backward pass, sparse matrix products, or adding the gradient up edge by edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diskgnn.batches.blocks import Block

_EDGES_GATHERED = 1 << 14  # at a time, where their rows have to be
_SLOPE = 0.2  # of the leaky ReLU on attention scores, below zero


def own_and_mean(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Returns the destinations' own rows of x, and the mean of their neighbours' rows (zeros where there are none).

    Args:
        x: [num_src, W] floating point.
        block: the edges.

    Returns:
        Two [num_dst, W] tensors. They come together because x[:num_dst] by itself would cost the backward pass a
        second gradient of x's size, zeros for the most part.
    """
    own, mean = _OwnAndMean.apply(x, block)  # type: ignore[no-untyped-call]
    return own, mean


def neighbour_mean(x: Tensor, block: Block) -> Tensor:
    """Returns [num_dst, W]: the mean of each destination's neighbours' rows of x [num_src, W]; zeros where there are
    none.
    """
    mean: Tensor = _Neighbours.apply(x, block, "mean")  # type: ignore[no-untyped-call]
    return mean


def neighbour_sum(x: Tensor, block: Block) -> Tensor:
    """Returns [num_dst, W]: the sum of each destination's neighbours' rows of x [num_src, W]."""
    sums: Tensor = _Neighbours.apply(x, block, "sum")  # type: ignore[no-untyped-call]
    return sums


def neighbour_max(x: Tensor, block: Block) -> Tensor:
    """Returns [num_dst, W]: of each column, the largest of each destination's neighbours' rows of x [num_src, W]; zeros
    where there are none. Of equal ones, one has the gradient.
    """
    return _bags(x, block.indptr, block.indices, mode="max")


def edge_mean(edge_x: Tensor, block: Block) -> Tensor:
    """Returns [num_dst, D]: the mean of edge_x [num_edges, D] over each destination's edges; zeros where there are
    none.
    """
    return _segment_sums(edge_x, block.indptr) / block.in_degrees.clamp(min=1).unsqueeze(1)


def weighted_sums(x: Tensor, weights: Tensor, block: Block) -> Tensor:
    """Computes, for each head, the weighted sum of every destination's neighbours' rows.

    Args:
        x: [num_src, H, W], or [num_src, 1, W] where all heads sum the same rows.
        weights: [num_edges, H], cast to x's dtype.
        block: the edges.

    Returns:
        [num_dst, H, W], zeros for destinations without neighbours.
    """
    sums: Tensor = _WeightedSums.apply(x, weights.to(x.dtype), block)  # type: ignore[no-untyped-call]
    return sums


def attention(
    x: Tensor,
    source_scores: Tensor,
    destination_scores: Tensor,
    block: Block,
    edge_scores: Tensor | None = None,
) -> Tensor:
    """Averages neighbours' rows with the softmax of leaky_relu(source score + destination score) over each
    destination's edges: Velickovic et al., Graph Attention Networks, ICLR 2018, equations 1 to 4.

    Args:
        x: [num_src, H, W], or [num_src, 1, W] where all heads average the same rows.
        source_scores: [num_src, H].
        destination_scores: [num_dst, H].
        block: the edges.
        edge_scores: [num_edges, H], added to the sum of the two scores.

    Returns:
        [num_dst, H, W], zeros for destinations without neighbours.
    """
    weights = _AttentionWeights.apply(source_scores, destination_scores, edge_scores, block)  # type: ignore[no-untyped-call]
    return weighted_sums(x, weights, block)


def edge_products(by_destination: Tensor, by_source: Tensor, block: Block) -> Tensor:
    """Returns [num_edges, H]: for each head, the dot product of each edge's row of the destination and row of the
    source.

    Args:
        by_destination: [num_dst, H, W].
        by_source: [num_src, H, W].
        block: the edges.
    """
    products: Tensor = _EdgeProducts.apply(by_destination, by_source, block)  # type: ignore[no-untyped-call]
    return products


def softmax_over_types(scores: Sequence[Tensor], blocks: Sequence[Block]) -> list[Tensor]:
    """Computes a softmax over all edges of each destination, of whatever type they are.

    Args:
        scores: for each edge type [num_edges, H].
        blocks: the edges of each, with the same destinations.

    Returns:
        For each edge type [num_edges, H].
    """
    return list(_JointSoftmax.apply(tuple(blocks), *scores))  # type: ignore[no-untyped-call]


def _bags(x: Tensor, indptr: Tensor, indices: Tensor, mode: str = "sum", weights: Tensor | None = None) -> Tensor:
    return F.embedding_bag(indices, x, indptr, mode=mode, per_sample_weights=weights, include_last_offset=True)


def _segment_sums(x: Tensor, indptr: Tensor) -> Tensor:
    return torch.segment_reduce(x, "sum", offsets=indptr, unsafe=True, initial=0)


def _sums_over_types(parts: Sequence[Tensor], blocks: Sequence[Block]) -> Tensor:
    return torch.stack([_segment_sums(x, block.indptr) for x, block in zip(parts, blocks, strict=True)]).sum(0)


def _edge_products(by_destination: Tensor, by_source: Tensor, block: Block) -> Tensor:
    """Returns [num_edges] dot products of each edge's destination row and source row."""
    # What embedding_bag's gradient of its weights computes with. It is private: a torch without it gathers rows, some
    # edges at a time.
    private = getattr(torch.ops.aten, "_embedding_bag_per_sample_weights_backward", None)
    if private is not None:
        ends = (by_destination, by_source)
        if by_source.is_cuda and by_source.dtype is torch.bfloat16:  # which it has no kernel for (torch 2.11)
            ends = (by_destination.float(), by_source.float())
        product: Tensor = private(*ends, block.indices, block.indptr[:-1], block.destinations, 0)
        return product.to(by_source.dtype)
    parts = zip(*(torch.split(ends, _EDGES_GATHERED) for ends in (block.destinations, block.indices)), strict=True)
    return torch.cat([(by_destination[i] * by_source[j]).sum(dim=1) for i, j in parts])


class _OwnAndMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        ctx.block = block
        return x[: block.num_dst], _bags(x, block.indptr, block.indices, mode="mean")

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, own_gradient: Tensor, mean_gradient: Tensor) -> tuple[Tensor, None]:
        block: Block = ctx.block
        by_source = block.by_source
        share = mean_gradient / block.in_degrees.clamp(min=1).unsqueeze(1)
        gradient = _bags(share, by_source.indptr, by_source.destinations)
        gradient[: block.num_dst] += own_gradient
        return gradient, None


class _Neighbours(torch.autograd.Function):
    """The sum or the mean of neighbours' rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, mode: str) -> Tensor:
        ctx.block, ctx.is_mean = block, mode == "mean"
        return _bags(x, block.indptr, block.indices, mode=mode)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        block: Block = ctx.block
        by_source = block.by_source
        share = gradient / block.in_degrees.clamp(min=1).unsqueeze(1) if ctx.is_mean else gradient
        return _bags(share, by_source.indptr, by_source.destinations), None, None


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
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        block: Block = ctx.block
        x, weights = ctx.saved_tensors
        x_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            indptr, destinations, edges = block.by_source
            by_head = torch.stack(
                [
                    _bags(gradient[:, head], indptr, destinations, weights=weight)
                    for head, weight in enumerate(weights[edges].t().contiguous())
                ],
                dim=1,
            )
            x_gradient = by_head if x.shape[1] > 1 else by_head.sum(dim=1, keepdim=True)
        if ctx.needs_input_grad[1]:
            weights_gradient = torch.stack(
                [_edge_products(gradient[:, head], x[:, head % x.shape[1]], block) for head in range(weights.shape[1])],
                dim=1,
            )
        return x_gradient, weights_gradient, None


class _AttentionWeights(torch.autograd.Function):
    """[num_edges, H] softmax over each destination's edges.

    The gradient is written out because autograd would add up those of the gathered rows edge by edge.
    """

    @staticmethod
    def forward(
        ctx: Any,
        source_scores: Tensor,
        destination_scores: Tensor,
        edge_scores: Tensor | None,
        block: Block,
    ) -> Tensor:
        scores = source_scores[block.indices] + destination_scores[block.destinations]
        if edge_scores is not None:
            scores += edge_scores
        scores = F.leaky_relu(scores, _SLOPE)
        highest = torch.segment_reduce(scores, "max", offsets=block.indptr, unsafe=True)
        weights = torch.exp(scores - highest[block.destinations])
        weights /= _segment_sums(weights, block.indptr)[block.destinations]
        ctx.block = block
        ctx.save_for_backward(weights, scores > 0)
        return weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        block: Block = ctx.block
        weights, above_zero = ctx.saved_tensors
        gradient = weights * gradient
        gradient -= weights * _segment_sums(gradient, block.indptr)[block.destinations]
        gradient = torch.where(above_zero, gradient, _SLOPE * gradient)
        by_source = block.by_source
        return (
            _segment_sums(gradient[by_source.edges], by_source.indptr),
            _segment_sums(gradient, block.indptr),
            gradient if ctx.needs_input_grad[2] else None,
            None,
        )


class _EdgeProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, by_destination: Tensor, by_source: Tensor, block: Block) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(by_destination, by_source)
        heads = range(by_source.shape[1])
        return torch.stack([_edge_products(by_destination[:, h], by_source[:, h], block) for h in heads], dim=1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        block: Block = ctx.block
        by_destination, by_source = ctx.saved_tensors
        indptr, destinations, edges = block.by_source
        to_destinations, to_sources = torch.empty_like(by_destination), torch.empty_like(by_source)
        for head, weight in enumerate(gradient.t().contiguous()):
            to_destinations[:, head] = _bags(by_source[:, head], block.indptr, block.indices, weights=weight)
            to_sources[:, head] = _bags(by_destination[:, head], indptr, destinations, weights=weight[edges])
        return to_destinations, to_sources, None


class _JointSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: tuple[Block, ...], *scores: Tensor) -> tuple[Tensor, ...]:
        highest = torch.stack(
            [torch.segment_reduce(found, "max", offsets=block.indptr, unsafe=True, initial=-torch.inf)
             for found, block in zip(scores, blocks, strict=True)]
        ).amax(0)  # fmt: skip
        weights = [torch.exp(found - highest[block.destinations]) for found, block in zip(scores, blocks, strict=True)]
        totals = _sums_over_types(weights, blocks)
        weights = [found / totals[block.destinations] for found, block in zip(weights, blocks, strict=True)]
        ctx.blocks = blocks
        ctx.save_for_backward(*weights)
        return tuple(weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        blocks, weights = ctx.blocks, ctx.saved_tensors
        products = [weight * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        totals = _sums_over_types(products, blocks)
        return None, *(
            product - weight * totals[block.destinations]
            for product, weight, block in zip(products, weights, blocks, strict=True)
        )
