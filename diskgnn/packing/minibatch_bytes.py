"""What the arrays of a minibatch take in samples, and in the header of an extent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diskgnn.packing.row_sets import RowSet
from diskgnn.storage.samples import SampledMinibatch

_COLUMN_BYTES = 116  # of Arrow's around one array, about
_EDGE_ID_BYTES = 8  # in a header, see `HeaderLayout`


@dataclass(frozen=True)
class MinibatchBytes:
    """Of one minibatch."""

    samples: int  # its row in a shard
    header: int  # all of its header but addresses and admissions

    @staticmethod
    def of(
        minibatch: SampledMinibatch,
        row_sets: Sequence[RowSet],
        *,
        keep_input_nodes: bool,
        edge_ids: bool,
        label_bytes: int,
    ) -> MinibatchBytes:
        """`label_bytes` are those of one seed's y. Nodes of types without features have their ids in the header."""
        columns = minibatch.columns()
        samples = sum(column.nbytes for column in columns)
        featured = {each.data.number for each in row_sets if not each.is_edges}
        dropped = sum(
            nodes.nbytes
            for number, nodes in enumerate(minibatch.input_nodes)
            if not keep_input_nodes and number in featured
        )
        dropped += sum(
            block.positions.nbytes for layer in minibatch.blocks for block in layer if block.positions is not None
        )
        spread = sum(4 * each.num_places(minibatch) for each in row_sets if each.may_repeat)
        ids = _EDGE_ID_BYTES * minibatch.num_edges if edge_ids else 0
        header = samples - dropped + ids + spread + label_bytes * len(minibatch.seeds)
        arrays = len(columns) + 2 * len(row_sets)
        return MinibatchBytes(samples + _COLUMN_BYTES * len(columns), header + _COLUMN_BYTES * arrays)
