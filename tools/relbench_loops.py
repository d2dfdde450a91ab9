"""RelBench's training loops with tables in memory and on disk: gnn_entity.py, idgnn_recommendation.py and
gnn_recommendation.py of its examples, at the levels of docs/from-relbench.md. Runs in a process of its own, see
tools/bench_relbench.py.

Model and loops are of the form of RelBench's, with encoders and layers from `relbench.modeling.nn`. In memory, they run
on PyG's and RelBench's loaders, which need pyg-lib: what that draws is drawn here by NumPy, so seconds mean nothing.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
import torch_geometric.loader
from relbench.base import TaskType
from relbench.modeling import graph as in_relbench
from relbench.modeling import loader as relbench_loader
from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
from relbench.modeling.utils import get_stype_proposal
from relbench.tasks import f1
from torch import Tensor, nn
from torch_frame import stype
from torch_frame.config import TextEmbedderConfig
from torch_geometric.nn import MLP
from torch_geometric.sampler import HeteroSamplerOutput, NeighborSampler
from torch_geometric.seed import seed_everything

import diskgnn
import diskgnn.relbench
import relbench_databases as databases

LEVELS = {
    "memory": "in memory",
    "loader": "1: loader",
    "graph": "2: graph",
    "folder": "3: folder",
    "directory": "3: graph directory",
}
DATABASES = {"f1": databases.Formula1, "flights": databases.Flights}
TASKS = {  # (database, task, loop)
    "f1-position": ("f1", f1.DriverPositionTask, "entity"),
    "f1-dnf": ("f1", f1.DriverDNFTask, "entity"),
    "f1-top3": ("f1", f1.DriverTop3Task, "entity"),
    "flights-delay": ("flights", databases.PlaneDelay, "entity"),
    "flights-idgnn": ("flights", databases.PlaneDestinations, "idgnn"),
    "flights-destinations": ("flights", databases.PlaneDestinations, "recommendation"),
}
TEXT_WIDTH = 32


@dataclass(frozen=True)
class Settings:
    """Says how large models, minibatches and epochs are."""

    epochs: int = 3
    steps: int = 30  # of an epoch, at most
    batch_size: int = 64
    fanout: int = 16  # of the first hop; half of it of the second
    channels: int = 16
    lr: float = 0.005

    @property
    def fanouts(self) -> list[int]:
        """Returns those of both hops."""
        return [self.fanout, self.fanout // 2]


class HashedWords:
    """Embeds text as the mean of vectors that are random for each word, in place of GloVe's, which are a download."""

    version = "1"

    def __call__(self, texts: list[str]) -> Tensor:
        """Returns [n, 32]."""
        return torch.from_numpy(np.stack([self._of(text) for text in texts]))

    @staticmethod
    def _of(text: str) -> npt.NDArray[np.float32]:
        words = [hashlib.blake2b(word.encode(), digest_size=TEXT_WIDTH).digest() for word in str(text).lower().split()]
        if not words:
            return np.zeros(TEXT_WIDTH, np.float32)
        found: npt.NDArray[np.float32] = np.stack([np.frombuffer(word, np.int8) for word in words]).mean(0) / 128
        return found.astype(np.float32)


embed = HashedWords()  # as `diskgnn convert --embed-text TABLE.COLUMN=relbench_loops:embed` finds it


class Model(nn.Module):
    """Puts encoders of columns and of times, two layers and a head together as RelBench's examples do."""

    def __init__(
        self, data: Any, statistics: Any, channels: int, outputs: int, norm: str, *, knows_root: bool = False,
        learned: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = HeteroEncoder(
            channels, {name: data[name].tf.col_names_dict for name in data.node_types}, statistics,
            torch_frame_model_kwargs={"channels": channels, "num_layers": 2},
        )  # fmt: skip
        self.times = HeteroTemporalEncoder([name for name in data.node_types if "time" in data[name]], channels)
        self.gnn = HeteroGraphSAGE(data.node_types, data.edge_types, channels, aggr="sum", num_layers=2)
        self.head = MLP(channels, out_channels=outputs, norm=norm, num_layers=1)
        self.root = nn.Embedding(1, channels) if knows_root else None
        self.learned_of = learned
        self.learned = None if learned is None else nn.Embedding(data.num_nodes_dict[learned], channels)
        for part in (self.encoder, self.times, self.gnn, self.head):
            part.reset_parameters()
        if self.learned is not None:
            nn.init.normal_(self.learned.weight, std=0.1)

    def forward(self, batch: Any, entity: str, read: str | None = None) -> Tensor:
        """Returns a row for each seed, which are nodes of type `entity`; or for each node of type `read`."""
        seed_time = batch[entity].seed_time
        x = self.encoder(batch.tf_dict)
        if read is not None:
            assert self.root is not None
            x[entity][: len(seed_time)] += self.root.weight
        for name, time in self.times(seed_time, batch.time_dict, batch.batch_dict).items():
            x[name] = x[name] + time
        if self.learned is not None:
            x[self.learned_of] = x[self.learned_of] + self.learned(batch[self.learned_of].n_id)
        if read is not None:
            return self._read(self.gnn(x, batch.edge_index_dict)[read])
        x = self.gnn(x, batch.edge_index_dict, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
        return self._read(x[entity][: len(seed_time)])

    def _read(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(x)
        return found


@dataclass
class Level:
    """Has a graph, and the loaders of its level."""

    data: Any
    statistics: Any
    neighbors: Any
    links: Any


def level_of(name: str, dataset: Any, folder: Path, cache: Path, seed: int) -> Level:
    """Makes the graph as RelBench's scripts do, with what changes in them at a level."""
    kinds = stypes(folder)
    config = TextEmbedderConfig(embed, batch_size=256)
    if name == "memory":
        NeighborSampler._sample = drawn_in_time
        warnings.filterwarnings("ignore", message="Using .* without a 'pyg-lib'")
        neighbors, links = torch_geometric.loader.NeighborLoader, relbench_loader.LinkNeighborLoader
    else:
        given = {"cache": cache / "loaders", "seed": seed, "progress": False}
        neighbors = partial(diskgnn.relbench.NeighborLoader, **given)
        links = partial(diskgnn.relbench.LinkNeighborLoader, **given)
    if name in ("memory", "loader"):
        made = in_relbench.make_pkey_fkey_graph(dataset.get_db(), kinds, config, str(cache / "frames"))
        return Level(*made, neighbors, links)
    graphs = {"cache_dir": cache / "graphs", "progress": False}
    if name == "graph":
        made = diskgnn.relbench.make_pkey_fkey_graph(dataset.get_db(), kinds, config, **graphs)
    elif name == "folder":
        until = dataset.test_timestamp
        made = diskgnn.relbench.make_pkey_fkey_graph(folder / "db", kinds, config, until=until, **graphs)
    else:
        made = diskgnn.relbench.make_pkey_fkey_graph(folder / "graph")
    return Level(*made, neighbors, links)


def run(folder: Path, task_name: str, level_name: str, seed: int, settings: Settings, cache: Path) -> dict[str, Any]:
    """Trains once; returns metrics of the epoch that is best in validation, and the memory that is held in the end."""
    seed_everything(seed)
    database, kind, loop = TASKS[task_name]
    dataset = DATABASES[database](folder, cache_dir=str(folder / database))
    task = kind(dataset, cache_dir=str(folder / database / kind.__name__))
    level = level_of(level_name, dataset, folder / database, cache, seed)
    if loop != "entity" and level_name in ("folder", "directory"):
        kind.num_dst_nodes = level.data[task.dst_entity_table].num_nodes  # RelBench counts them in the Database
    curve, tested, held = {"entity": entity_loop, "idgnn": idgnn_loop, "recommendation": recommendation_loop}[loop](
        task, level, settings
    )
    found = {"curve": curve, "test": tested, "held_bytes": held_bytes()}
    del held  # with all that the loop has
    return found


def entity_loop(task: Any, level: Level, settings: Settings) -> Any:
    """Trains as gnn_entity.py."""
    is_class = task.task_type == TaskType.BINARY_CLASSIFICATION
    metric, loss_of = ("roc_auc", F.binary_cross_entropy_with_logits) if is_class else ("mae", F.l1_loss)
    least, most = (-np.inf, np.inf)
    if not is_class:
        least, most = np.percentile(task.get_table("train").df[task.target_col].to_numpy(), [2, 98])
    loaders = {}
    for split in ("train", "val", "test"):
        given = in_relbench.get_node_train_table_input(task.get_table(split), task)
        loaders[split] = level.neighbors(
            level.data, num_neighbors=settings.fanouts, time_attr="time", input_nodes=given.nodes,
            input_time=given.time, transform=given.transform, batch_size=settings.batch_size,
            temporal_strategy="uniform", shuffle=split == "train",
        )  # fmt: skip
    model = Model(level.data, level.statistics, settings.channels, 1, "batch_norm")

    def loss(batch: Any) -> Tensor:
        found = model(batch, task.entity_table).view(-1)
        return loss_of(found, batch[task.entity_table].y.float())

    def predicted(split: str) -> npt.NDArray[Any]:
        parts = [model(batch, task.entity_table).view(-1) for batch in loaders[split]]
        found = torch.cat(parts)
        return (torch.sigmoid(found) if is_class else found.clamp(least, most)).numpy()

    found = trained(model, loaders["train"], loss, predicted, task, metric, settings)
    return *found, (level, loaders)


def idgnn_loop(task: Any, level: Level, settings: Settings) -> Any:
    """Trains as idgnn_recommendation.py."""
    source, destination = task.src_entity_table, task.dst_entity_table
    loaders, links = {}, {}
    for split in ("train", "val", "test"):
        given = in_relbench.get_link_train_table_input(task.get_table(split, mask_input_cols=False), task)
        links[split] = given.dst_nodes[1]
        loaders[split] = level.neighbors(
            level.data, num_neighbors=settings.fanouts, time_attr="time", input_nodes=given.src_nodes,
            input_time=given.src_time, subgraph_type="bidirectional", batch_size=settings.batch_size,
            temporal_strategy="last", shuffle=split == "train",
        )  # fmt: skip
    model = Model(level.data, level.statistics, settings.channels, 1, "layer_norm", knows_root=True)
    led_to = relbench_loader.SparseTensor(links["train"])

    def loss(batch: Any) -> Tensor:
        found = model(batch, source, destination).flatten()
        size = batch[source].batch_size
        src_batch, dst_index = led_to[batch[source].input_id]
        asked, known = batch[destination].batch + size * batch[destination].n_id, src_batch + size * dst_index
        return F.binary_cross_entropy_with_logits(found, torch.isin(asked, known).float())

    def predicted(split: str) -> npt.NDArray[Any]:
        ranked = []
        for batch in loaders[split]:
            scores = torch.zeros(batch[source].batch_size, task.num_dst_nodes)
            found = torch.sigmoid(model(batch, source, destination).flatten())
            scores[batch[destination].batch, batch[destination].n_id] = found
            ranked.append(torch.topk(scores, k=task.eval_k, dim=1)[1])
        return torch.cat(ranked).numpy()

    found = trained(model, loaders["train"], loss, predicted, task, "link_prediction_map", settings)
    return *found, (level, loaders)


def recommendation_loop(task: Any, level: Level, settings: Settings) -> Any:
    """Trains as gnn_recommendation.py."""
    source, destination = task.src_entity_table, task.dst_entity_table
    given = in_relbench.get_link_train_table_input(task.get_table("train"), task)
    common = {"num_neighbors": settings.fanouts, "time_attr": "time", "batch_size": settings.batch_size}
    train = level.links(
        data=level.data, src_nodes=given.src_nodes, dst_nodes=given.dst_nodes, num_dst_nodes=given.num_dst_nodes,
        src_time=given.src_time, share_same_time=True, temporal_strategy="uniform", **common,
    )  # fmt: skip
    loaders = {}
    for split, moment in (("val", task.dataset.val_timestamp), ("test", task.dataset.test_timestamp)):
        sources = torch.from_numpy(task.get_table(split).df[task.src_entity_col].to_numpy(np.int64))
        for side, nodes, count in ((source, (source, sources), len(sources)),
                                   (destination, destination, task.num_dst_nodes)):  # fmt: skip
            time = torch.full((count,), int(moment.timestamp()))
            loaders[split, side] = level.neighbors(level.data, input_nodes=nodes, input_time=time, **common)
    model = Model(level.data, level.statistics, settings.channels, settings.channels, "layer_norm", learned=destination)

    def loss(batch: Any) -> Tensor:
        sources, positive, negative = batch
        x = model(sources, source)
        positive_score = (x * model(positive, destination)).sum(1, keepdim=True)
        return F.softplus(x @ model(negative, destination).t() - positive_score).mean()

    def predicted(split: str) -> npt.NDArray[Any]:
        x = torch.cat([model(batch, destination) for batch in loaders[split, destination]])
        ranked = [torch.topk(model(batch, source) @ x.t(), k=task.eval_k, dim=1)[1]
                  for batch in loaders[split, source]]  # fmt: skip
        return torch.cat(ranked).numpy()

    return *trained(model, train, loss, predicted, task, "link_prediction_map", settings), (level, train, loaders)


def trained(
    model: Model, loader: Any, loss: Any, predicted: Any, task: Any, metric: str, settings: Settings
) -> tuple[list[float], float]:
    """Returns (the metric in validation after each epoch, that of the test with the weights of the best one)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    curve, best = list[float](), {}
    for _ in range(settings.epochs):
        model.train()
        for step, batch in enumerate(loader):
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
            if step + 1 == settings.steps:
                break
        curve.append(_score(model, predicted, task, "val", metric))
        if curve[-1] == (min if metric == "mae" else max)(curve):
            best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return curve, _score(model, predicted, task, "test", metric)


@torch.no_grad()
def _score(model: Model, predicted: Any, task: Any, split: str, metric: str) -> float:
    model.eval()
    return float(task.evaluate(predicted(split), task.get_table(split, mask_input_cols=False))[metric])


def drawn_in_time(self: NeighborSampler, seed: Any, seed_time: Any = None, **_: Any) -> HeteroSamplerOutput:
    """Draws what pyg-lib draws of typed graphs whose nodes have times, in place of `NeighborSampler._sample`: each seed
    has a tree of its own, each node of it its in-neighbours in the hop after the one that found it, of those up to
    the seed's time the last ones or any, none twice."""
    ((kind, ids),) = seed.items()
    until, random = seed_time[kind].numpy(), np.random.default_rng(int(torch.randint(2**62, ())))
    fanouts = self.num_neighbors.get_mapped_values(self.edge_types)
    if isinstance(fanouts, list):
        fanouts = dict.fromkeys(self.to_rel_type.values(), fanouts)
    found = {name: np.empty(0, np.int64) for name in self.node_types}  # tree * nodes of the type + node
    found[kind] = np.arange(len(ids)) * self.num_nodes[kind] + ids.numpy()
    edges: dict[Any, list[tuple[Any, Any, Any]]] = {key: [] for key in self.edge_types}
    num_nodes = {name: [len(keys)] for name, keys in found.items()}
    start = dict.fromkeys(found, 0)
    for hop in range(self.num_neighbors.num_hops):
        for key in self.edge_types:
            source, _, destination = key
            relation = self.to_rel_type[key]
            rows, starts = self.row_dict[relation].numpy(), self.colptr_dict[relation].numpy()
            trees, nodes = np.divmod(found[destination][start[destination] :], self.num_nodes[destination])
            first, stop = starts[nodes], starts[nodes + 1]
            if (times := self.node_time.get(source)) is not None:
                stop = _seen_until(first, stop, rows, times.numpy(), until[trees])
            is_last = times is not None and self.temporal_strategy == "last"
            owners, places = _chosen(first, stop, fanouts[relation][hop], None if is_last else random)
            keys = trees[owners] * self.num_nodes[source] + rows[places]
            edges[key].append((keys, start[destination] + owners, places))
        start = {name: len(keys) for name, keys in found.items()}
        for name in found:
            new = [keys[-1][0] for (source, _, _), keys in edges.items() if source == name]
            added = np.setdiff1d(np.concatenate(new), found[name]) if new else found[name][:0]
            found[name] = np.concatenate([found[name], added])
            num_nodes[name].append(len(added))
    order = {name: np.argsort(keys) for name, keys in found.items()}
    row, col, edge, num_edges = {}, {}, {}, {}
    for key, hops in edges.items():
        keys, columns, places = (np.concatenate(parts) for parts in zip(*hops, strict=True))
        by_key = order[key[0]]
        rows = by_key[np.searchsorted(found[key[0]], keys, sorter=by_key)] if len(keys) else keys
        row[key], col[key], edge[key] = (torch.from_numpy(each) for each in (rows, columns, places))
        num_edges[key] = [len(each) for each, _, _ in hops]
    both = {name: np.divmod(keys, self.num_nodes[name]) for name, keys in found.items()}
    return HeteroSamplerOutput(
        {name: torch.from_numpy(nodes) for name, (_, nodes) in both.items()}, row, col, edge,
        {name: torch.from_numpy(trees) for name, (trees, _) in both.items()}, num_nodes, num_edges,
    )  # fmt: skip


def _seen_until(first: Any, stop: Any, rows: Any, times: Any, until: Any) -> Any:
    """Returns the ends of lists of neighbours, which are in the order of time, before the first that is too late."""
    low, high = first.copy(), stop.copy()
    while (low < high).any():
        middle = (low + high) // 2
        is_seen = (low < high) & (times[rows[np.minimum(middle, len(rows) - 1)]] <= until)
        high = np.where(is_seen | (low >= high), high, middle)
        low = np.where(is_seen, middle + 1, low)
    return low


def _chosen(first: Any, stop: Any, fanout: int, random: np.random.Generator | None) -> tuple[Any, Any]:
    """Returns (list, place) of the neighbours that are drawn of each list: the last ones, or at `random`."""
    sizes = stop - first
    counts = sizes if fanout < 0 else np.minimum(sizes, fanout)
    owners, ends = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts)
    places = np.arange(len(owners)) - (ends - counts)[owners] + (stop - counts if random is None else first)[owners]
    if random is not None:
        for each in np.flatnonzero(sizes > counts):
            drawn = random.choice(sizes[each], counts[each], replace=False, shuffle=False)
            places[ends[each] - counts[each] : ends[each]] = first[each] + drawn
    return owners, places


def stypes(folder: Path) -> dict[str, dict[str, stype]]:
    """Reads the stypes that `set_up` wrote."""
    found = json.loads((folder / "stypes.json").read_text())
    return {table: {column: stype(kind) for column, kind in of.items()} for table, of in found.items()}


def set_up(folder: Path, name: str, source: Path) -> dict[str, Any]:
    """Writes FOLDER/NAME: db/ as RelBench saves a Database, tables of the tasks, stypes.json, and relational.yaml, of
    which `diskgnn convert` makes a graph directory."""
    place = folder / name
    dataset = DATABASES[name](source, cache_dir=str(place))
    database = dataset.get_db()
    np.random.seed(0)  # noqa: NPY002  (draws the rows that the proposal looks at)
    kinds: Mapping[str, Any] = get_stype_proposal(database)
    for table, columns in databases.LEFT_OUT.items():
        for column in columns & {*kinds.get(table, {})}:
            del kinds[table][column]
    (place / "stypes.json").write_text(json.dumps(kinds, default=str))
    rows = {}
    for kind in {kind.__name__: kind for of, kind, _ in TASKS.values() if of == name}.values():
        task = kind(dataset, cache_dir=str(place / kind.__name__))
        rows[kind.__name__] = [len(task.get_table(split)) for split in ("train", "val", "test")]
    tables = {}
    for file in sorted((place / "db").glob("*.parquet")):
        said = {key.decode(): json.loads(value) for key, value in pq.read_schema(file).metadata.items()
                if not key.startswith((b"pandas", b"ARROW"))}  # fmt: skip
        given = {"file": f"db/{file.name}", "pkey": said["pkey_col"], "fkeys": said["fkey_col_to_pkey_table"],
                 "time": said["time_col"]}  # fmt: skip
        tables[file.stem] = {key: value for key, value in given.items() if value}
    (place / "relational.yaml").write_text(json.dumps({"tables": tables}))
    sizes = {table: len(each) for table, each in database.table_dict.items()}
    return {"rows": sizes, "tasks": rows, "until": str(dataset.test_timestamp)}


def held_bytes() -> int:
    """Returns the anonymous memory of this process without what was freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return anonymous_bytes()


def anonymous_bytes() -> int:
    """Returns what this process has in memory that is no file's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10
