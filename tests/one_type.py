"""The native samplers on a graph of one type, whose arrays a test has made."""

from pathlib import Path

import numpy as np
from graphs import INDICES, INDPTR

from diskgnn._native import DrawRequest, Expansion32, Expansion64, GraphFiles
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.graph.graph import Graph


def request(seeds, fanouts, key=0, minibatch=0, slice_start=None):
    """Of one minibatch."""
    return DrawRequest([np.asarray(seeds)], np.asarray(fanouts, np.int32), key, minibatch, slice_start=slice_start)


def topology_files(indptr: Path, indices: Path, num_nodes, num_edges, *, offset=0, id_bytes=4):
    """Of files whose data begin at `offset`."""
    files = GraphFiles([num_nodes], [None])
    columns = {"indptr": (str(indptr), offset, 8), "indices": (str(indices), offset, id_bytes)}
    files.add_relation(0, 0, num_edges=num_edges, **columns)
    return files


def files_of(graph: Graph):
    """Of a graph directory."""
    indptr, indices = (graph.manifest.file(name) for name in (INDPTR, INDICES))
    assert npy_data_offset(indptr) == npy_data_offset(indices) == 128
    return topology_files(
        indptr, indices, graph.num_nodes, graph.num_edges, offset=128, id_bytes=graph.indices.itemsize
    )


def expansion(files, id_dtype, *arguments):
    """Of `request(*arguments)`."""
    return (Expansion32 if id_dtype == np.int32 else Expansion64)(request(*arguments), files)


def sampled_by(sampler, *arguments):
    """What `sampler` draws for `request(*arguments)`, see `take`."""
    return _only(sampler.draw(request(*arguments)))


def take(grown):
    """(input nodes, (indptr, indices) of each block, outermost first) of a finished expansion."""
    return _only(grown.take())


def _only(minibatch):
    (nodes,), trees, layers, _ = minibatch
    assert trees is None
    return nodes, [block[:2] for (block,) in layers]
