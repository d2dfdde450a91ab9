"""What PyG's loaders of prepared minibatches share: batches come from a packed directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor

from diskgnn.draws import batch_key
from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.pyg.disk_frames import frame_of
from diskgnn.pyg.drawn import Drawn, Rows, placed, places_of
from diskgnn.pyg.loader_request import LoaderRequest, Preparation
from diskgnn.pyg.sampler import DiskSampler, InputSeeds, Rules
from diskgnn.specs.sampling import SamplingSpec


class PreparedBatches:
    """A base of both loaders: PyG's own code gives batches their attributes."""

    data: Any
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    drop_last: bool
    input_data: Any
    dataset: Any

    def _begin(self, request: LoaderRequest, sampler: DiskSampler) -> None:
        self._request, self._disk_sampler = request, sampler
        self._preparation: Preparation | None = None
        self._epoch = 0

    def prepare(self) -> Preparation:
        """Make, or find in the cache folder, the graph and what this loader yields of it.

        The first loop does so by itself. The data is looked at now: attributes that were deleted from `loader.data`
        are in no batch.

        Raises:
            ConfigError, InputError, DiskFullError: see `diskgnn.convert` and `diskgnn.prepare`.
        """
        if self._preparation is None:
            self._preparation = self._request.prepare(self)
            self._disk_sampler.use(self._preparation.plan, self._preparation.rules, self._preparation.frames)
        return self._preparation

    def __iter__(self) -> Iterator[Any]:
        """Yields one epoch. Epochs follow each other; after those that were prepared, the first one comes again.

        Then negative pairs have the same ends, joined anew.
        """
        preparation = self.prepare()
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._epoch_batches(preparation, epoch)

    def _epoch_batches(self, preparation: Preparation, epoch: int) -> Iterator[Any]:
        plan, seeds, rules = preparation.plan, preparation.seeds, preparation.rules
        prepared = epoch % self._request.epochs if self._request.epochs else epoch
        order, size = plan.order("train", prepared), plan.spec.batch_size
        for number, batch in enumerate(preparation.batches.epoch(epoch)):
            positions = order[number * size : (number + 1) * size]
            if self.drop_last and len(positions) < size:
                continue
            drawn = Drawn.of_minibatch(plan.graph, batch, preparation.frames)

            def recall(found: Mapping[str, Tensor], _: Any, batch: Any = batch, drawn: Drawn = drawn) -> Any:
                asked = torch.cat([found[name] for name in drawn.nodes if name in found])
                if not torch.equal(asked.to(batch.seeds.device), batch.seeds):
                    raise ArtifactError(
                        f"{preparation.batches} holds other seeds than this loader's: it was made by another version; "
                        "remove it, and it is made again"
                    )
                return drawn.output(is_typed=rules.is_typed)

            with seeds.randomness(prepared, positions):
                out = rules.sampled(seeds.inputs(positions), recall)
            if rules.pairs_anew and epoch > prepared:
                key = batch_key(plan.spec.seed, f"pyg/paired/{positions[0]}", epoch) >> 1
                out = rules.paired_anew(out, len(positions), key)
            yield self.filter_fn(out)

    def __call__(self, index: Tensor | Sequence[int]) -> Any:
        """Returns the batch of these inputs, sampled now."""
        self.prepare()
        return self.filter_fn(self._disk_sampler.sample(self.input_data[torch.as_tensor(index)]))

    collate_fn = __call__

    def filter_fn(self, out: Any) -> Any:
        """Returns the batch of what was sampled: PyG slices what is in memory, the rows on disk were read before."""
        preparation, rows = self.prepare(), out.rows
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        fields = {**vars(self), "data": preparation.bare, "transform": None, "transform_sampler_output": None}
        data = self._pyg_loader().filter_fn(SimpleNamespace(**fields), out)
        if preparation.rules.is_typed:
            for name, known in rows.x.items():
                _complete(data[name], "x", known, out.node[name], keeps_number=name in preparation.counted)
            for name in rows.frames:
                self._complete_frame(data[name], name, rows, out.node[name])
            for edge_type, known in rows.edge_attr.items():
                _complete(data[edge_type], "edge_attr", known, out.edge[edge_type])
        else:
            for known in rows.x.values():
                _complete(data, "x", known, out.node, keeps_number=bool(preparation.counted))
            for name in rows.frames:
                self._complete_frame(data, name, rows, out.node)
            for known in rows.edge_attr.values():
                _complete(data, "edge_attr", known, out.edge)
        return data if self.transform is None else self.transform(data)

    def _complete_frame(self, store: Any, name: str, rows: Rows, ids: Tensor) -> None:
        """Give a batch its rows of a table from the disk."""
        preparation, (known, decoded) = self.prepare(), rows.frames[name]
        frame = frame_of(preparation.frames[name], decoded, len(known), known.device)
        places = places_of(known, ids)
        store.tf = frame if places is None else frame[places]
        if name not in preparation.counted and "num_nodes" in store:
            del store["num_nodes"]

    def _seeds(self, graph: Graph, spec: SamplingSpec, rules: Rules) -> InputSeeds:
        """Returns what minibatches start from."""
        return InputSeeds(graph, spec, rules, self.input_data, len(self.dataset))

    @staticmethod
    def _pyg_loader() -> Any:
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: threads and open files stay where they are.

        Raises:
            TypeError: always, with what to send instead.
        """
        raise TypeError(
            f"a {type(self).__name__} of diskgnn.pyg cannot be pickled or copied: send its arguments, and make it "
            "with the same ones in the other process; what was prepared is found again in the cache folder. data may "
            "be the path of a graph directory (diskgnn convert)"
        )

    def close(self) -> None:
        """Stop reading ahead and free the tiers; the next loop opens them again."""
        if self._preparation is not None:
            self._preparation.batches.close()


def _complete(
    store: Any, name: str, rows: tuple[Tensor, Tensor], ids: Tensor | None, *, keeps_number: bool = True
) -> None:
    """Give a batch its rows from the disk, and take away the number of nodes if the data did not state it."""
    # PyG forgets which edge is which where it adds reverse ones to a typed batch: then they have no attributes.
    store[name] = None if ids is None else placed(rows, ids)
    if not keeps_number and "num_nodes" in store:
        del store["num_nodes"]
