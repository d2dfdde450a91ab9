"""Writes rows of ascending nodes to the output, those that were chosen in the order in which they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import numpy.typing as npt
from torch import nn

from diskgnn.graph.type_data import NodeSet
from diskgnn.inference.output_folder import OutputFolder
from diskgnn.inference.prediction_files import FiniteRows, IdColumn, OutputFormat, RowNames, open_output

NodeRows = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]  # ascending nodes [n], and their rows [n, columns]


def write_rows(
    folder: OutputFolder,
    node_set: NodeSet,
    content: OutputFormat,
    chosen: npt.NDArray[np.int64] | None,
    windows: Iterator[NodeRows],
) -> int:
    """Writes what `content` makes of rows, and puts the output in place; returns its bytes.

    Args:
        folder: of the output.
        node_set: whose rows these are; tables have their ids.
        content: what is written of a row.
        chosen: [n] nodes in the order of a .npy file; some may be there several times. None: all.
        windows: the rows of all that are chosen, and perhaps of others, in ascending order.
    """
    num_rows, order, ascending = node_set.num_nodes, None, None
    if chosen is not None:
        order = np.argsort(chosen, kind="stable")
        num_rows, ascending = len(chosen), chosen[order]
    output, finite = folder.output, FiniteRows()
    with (
        folder.publishing() as path,
        node_set.user_ids or nullcontext() as ids,
        open_output(
            path, output.suffix, content, num_rows, order, RowNames.of_nodes(ids and IdColumn(ids)), folder.disk
        ) as write,
    ):
        for nodes, rows in windows:
            wanted = nodes
            if ascending is not None:
                begin, end = np.searchsorted(ascending, [nodes[0], nodes[-1] + 1])
                wanted = ascending[begin:end]
                rows = rows[np.searchsorted(nodes, wanted)]
            finite.count(rows)
            write(content.of(rows), wanted)
    finite.warn()
    return output.stat().st_size


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Turns dropout off within the block, and then restores the mode in which the model was."""
    was_training = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(was_training)
