"""How much memory it takes to compute a model for one sampled minibatch after another."""

from __future__ import annotations

from torch import nn

from diskgnn.inference.network import FLOAT_BYTES
from diskgnn.nn.block_models import BlockModel
from diskgnn.nn.typed_models import TypedLayers
from diskgnn.sampling.fanout_sizes import most_minibatch_bytes, most_minibatch_nodes
from diskgnn.sampling.plan import SamplingPlan

_RESERVED_BYTES = 48 << 20  # the loader's reads that are under way, and what torch allocates when it first computes
_READ_COPIES = 3  # of a minibatch: read ahead, assembled, in use
_ACTIVATIONS = 3  # of a layer: what enters, what it is multiplied to, what comes out
_OUTPUT_COPIES = 2  # while those of all minibatches are put together
_NODE_BYTES = 32  # of each output: its node, its place, and both while they are sorted


def predicting_bytes(plan: SamplingPlan, net: nn.Module, num_outputs: int, output_columns: int | None = None) -> int:
    """Returns what reading the minibatches of `plan`, computing `net` and keeping so many outputs takes at most.

    Rows are taken to be as wide as the widest features, and as what any layer of `net` takes or returns. Outputs are
    taken to be as wide as what its last layer takes or returns, where nobody says their columns.
    """
    graph, num_nodes = plan.graph, most_minibatch_nodes(plan)
    files = [file for nodes in graph.nodes.values() if (file := nodes.feature_file) is not None]
    columns = max([_widest(net), *(file.rows.num_features for file in files)])
    row_bytes = max((file.row_bytes for file in files), default=0)
    computed_bytes = num_nodes * (_READ_COPIES * row_bytes + _ACTIVATIONS * FLOAT_BYTES * columns)
    output_bytes = num_outputs * (_NODE_BYTES + _OUTPUT_COPIES * FLOAT_BYTES * (output_columns or _widest(_last(net))))
    return _RESERVED_BYTES + computed_bytes + 2 * _READ_COPIES * most_minibatch_bytes(plan) + output_bytes


def _last(net: nn.Module) -> nn.Module:
    """Returns its last layer; all of a module that is not ours."""
    if isinstance(net, TypedLayers) and net.head is not None:
        return net.head
    return net.layers[-1] if isinstance(net, BlockModel | TypedLayers) else net


def _widest(net: nn.Module) -> int:
    """Returns the columns of the widest rows that a layer takes or returns: the longest side of a weight."""
    sides = [
        max(weight.shape[-1:] if isinstance(layer, nn.Embedding) else weight.shape, default=1)
        for layer in net.modules() for weight in layer.parameters(recurse=False)
    ]  # fmt: skip
    return max(sides, default=1)
