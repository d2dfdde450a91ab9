"""Panels of columns: each runs through all hops of all operators, between a few slices in memory.

Hops do not mix columns. So no hop of all rows is ever written, and a panel needs nothing of another one.

An operator P = D^-1 A is the mean of in-neighbours. The symmetric one is D^-1/2 A D^-1/2 = D^1/2 P D^-1/2: rows are
scaled when they are loaded, then averaged again and again, and what is kept of a hop is scaled back.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn._native import mean_rows, page_memory, scale_rows
from diskgnn.files.traffic import Traffic
from diskgnn.formats.hops_config import VALUE_BYTES
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.propagation.hop_edges import SCALED, WITH_OWN, HopEdges
from diskgnn.propagation.kept_pieces import empty_piece, piece_bytes
from diskgnn.propagation.propagation_plan import PropagationPlan
from diskgnn.propagation.record_order import RecordOrder
from diskgnn.propagation.stripes import load
from diskgnn.system.allocators import pages_kept
from diskgnn.work.fold import Output
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.work_folder import State

Slice = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Panels:
    """Everything that panels are computed from.

    `kept` gets what records keep of them: a partition for each window of records.
    """

    plan: PropagationPlan
    order: RecordOrder
    stripes: Sequence[Shuffle]  # of each source
    edges: HopEdges
    kept: Shuffle
    traffic: Traffic

    def write(self, reporter: Reporter, state: State, output: Output) -> Generator[int, None, None]:
        """Computes all panels that are missing.

        Raises:
            DamagedStepError: what steps before wrote is damaged.
        """
        plan = self.plan
        total = len(plan.operators) * sum(source.num_features for source in plan.sources)
        most_columns = max(source.most_columns for source in plan.sources)
        most_kept_bytes = max(piece_bytes(window.last - window.first, most_columns) for window in plan.windows)
        with pages_kept(most_kept_bytes), output.stage(reporter, "compute hops", total, "columns") as advance:
            own_scales = {operator: self._own_scales(operator) for operator in plan.operators if operator in SCALED}
            of_places, places = -1, list[Slice]()  # the source that has them
            while (number := int(state["sources"])) < len(plan.sources):
                source = plan.sources[number]
                columns = source.panel(int(state["columns"]))
                if number != of_places:  # later panels are no wider than the first one
                    places.clear()
                    num_bytes = (VALUE_BYTES * max(1, rows) * len(columns) for rows in source.walk.place_rows)
                    places += [page_memory(each).view(np.float32) for each in num_bytes]
                    of_places = number
                handled_bytes = self._panel(number, columns, places, own_scales, advance)
                is_last = columns.stop == source.num_features
                state["sources"] += is_last
                state["columns"][...] = 0 if is_last else columns.stop
                yield handled_bytes

    def _panel(
        self,
        number: int,
        columns: range,
        places: Sequence[Slice],
        own_scales: Mapping[str, Slice],
        advance: Advance,
    ) -> int:
        """Computes a panel of source `number`, with slices in `places`; returns the bytes that this took."""
        plan, source, handled_bytes = self.plan, self.plan.sources[number], 0
        num_rows = [len(rows) for rows in plan.rows.sets]
        in_order = sorted(plan.operators, key=SCALED.__contains__)  # first who leaves features as they are
        missing_rows = num_rows[source.root]  # of the features: the first ones
        for operator in in_order:
            for step in source.walk.steps:
                then = places[step.place][: num_rows[step.node] * len(columns)].reshape(-1, len(columns))
                if step.parent_place is None:
                    loaded_bytes = load(
                        source.features, self.stripes[number], columns, then, missing_rows, plan.loading_threads
                    )
                    self.traffic.add(read=loaded_bytes)
                    handled_bytes += loaded_bytes
                    missing_rows = num_rows[source.root] if operator in SCALED else source.walk.overwritten_rows
                    if operator == in_order[0]:
                        self._keep(then, step.node, columns, operator, None)
                    if operator in SCALED:
                        _scale(then, self.edges.scales(operator))
                    continue
                parent = plan.tree.nodes[step.node].parent
                assert parent is not None
                now = places[step.parent_place][: num_rows[parent] * len(columns)].reshape(-1, len(columns))
                handled_bytes += self._hop(step.node, operator, now, then)
                self._keep(then, step.node, columns, operator, own_scales.get(operator))
            advance(len(columns))
        return handled_bytes

    def _own_scales(self, operator: str) -> Slice:
        """Returns [records] the factor by which the rows of each record's node were scaled."""
        rows, first = self.plan.rows.sets[0], 0
        all_scales = np.empty(len(rows), np.float32)  # no slice is there yet, the first of which has as many
        for part in self.edges.scales(operator):
            all_scales[first : first + len(part)] = part
            first += len(part)
        assert first == len(rows), (first, len(rows))
        found, first = np.empty(self.order.num_records, np.float32), 0
        for nodes in self.order.all_nodes():
            found[first : first + len(nodes)] = all_scales[rows.ranks(nodes)]
            first += len(nodes)
        return found

    def _hop(self, node: int, operator: str, now: Slice, then: Slice) -> int:
        """Fills `then` with the means of in-neighbours' rows of `now`; returns the bytes of the edges."""
        width, row, edges = now.shape[1], 0, self.plan.rows.edges_of[node]
        assert edges is not None
        carry = np.zeros(width + 1)
        for piece in self.edges.pieces(edges):
            num_rows = len(piece.offsets) - 1
            mean_rows(
                piece.offsets, piece.sources, piece.weights, continues=piece.continues, goes_on=piece.goes_on,
                skips_own=self.edges.has_own and operator != WITH_OWN, carry=carry, rows=now.reshape(-1), width=width,
                target=then[row : row + num_rows].reshape(-1), threads=self.plan.threads,
            )  # fmt: skip
            row += num_rows - piece.goes_on
        assert row == len(then), (row, len(then))
        return int(self.edges.shuffle.partition_bytes[edges])

    def _keep(self, now: Slice, node: int, columns: range, operator: str, own_scales: Slice | None) -> None:
        """Adds the rows of records to `kept`, if they keep this tree node."""
        if not self.plan.tree.nodes[node].is_kept:
            return
        place, first = self.plan.first_values[operator, node] + columns.start, 0
        for number, window in enumerate(self.plan.windows):
            nodes = self.order.of_window(window)
            ranks = self.plan.rows.sets[node].ranks(nodes)
            piece, values = empty_piece(place, len(nodes), len(columns))
            np.take(now, ranks, axis=0, out=values, mode="clip")  # ranks are in range; to raise, it would make a copy
            if own_scales is not None:  # rows of a scale of 0 have no in-edges: they are 0
                scales = own_scales[first : first + len(nodes), None]
                with np.errstate(over="ignore"):
                    np.divide(values, scales, out=values, where=scales > 0)
            first += len(nodes)
            self.traffic.add(written=values.nbytes)
            self.kept.add(number, piece)


def _scale(rows: Slice, scales: Generator[Slice, None, None]) -> None:
    first = 0
    for part in scales:  # beyond float32, too: records that are not finite are refused in a sentence
        scale_rows(rows[first : first + len(part)].reshape(-1), rows.shape[1], part)
        first += len(part)
    assert first == len(rows), (first, len(rows))
