"""All stages that write something, on small inputs, and what names their results."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import diskgnn
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.formats.verification import verify_artifact
from diskgnn.nn.block_models import make_model
from diskgnn.nn.hop_models import SIGN
from diskgnn.preparing.repair import repair as make_again
from diskgnn.system.resources import Resources

for _name in diskgnn.__all__:  # here, and not in each child: that takes more than most stages
    getattr(diskgnn, _name)
for _name in ("diskgnn.progress.bars", "numpy.ma", "torch._dynamo"):  # of the first bar, unique rows and optimizer
    import_module(_name)
with suppress(ImportError):
    import_module("pandas")  # which pyarrow.array imports where it is installed

Size = int | str  # of memory
SAMPLING = {"fanouts": [3, 2], "batch_size": 16, "epochs": 2, "seed": 3, "threads": 1}
CACHES = {"cpu_cache": "10%", "static_cache": "5%"}
TRAINING = {"hidden": 8, "epochs": 3, "seed": 1, "record_every_batches": 1, "checkpoint_every_batches": 3}
NUM_NODES, WIDTH = 600, 40
NUM_USERS, NUM_BUYS = 1500, 9000
LARGE = {"num_nodes": 5000, "avg_degree": 4, "num_classes": 3, "num_features": 200, "train_fraction": 0.02,
         "valid_fraction": 0, "test_fraction": 0, "homophily": 0.5, "threads": 1}  # fmt: skip


@contextmanager
def in_few_minibatches() -> Iterator[None]:
    """What is sampled meanwhile is cut into few: each costs a millisecond to make and to read, whatever is in it."""
    before = dict(SAMPLING)
    SAMPLING.update(batch_size=60, epochs=1)
    try:
        yield
    finally:
        SAMPLING.update(before)


@dataclass(frozen=True)
class Stage:
    """One way of making something."""

    run: Callable[..., object]  # (folder of inputs, output, memory=)
    reads: str  # which directory of the inputs
    digest: Callable[[Path], str] = lambda out: verify_artifact(out).digest
    suffix: str = ""  # of the output
    also_reads: tuple[str, ...] = ()
    begin: Callable[[Path, Path], object] | None = None  # puts there what `run` works on in place, undisturbed
    read_errors: tuple[str, ...] = ("ReadError",)  # where what it reads fails for ever
    small: tuple[int, ...] = ()  # bytes of `memory` with which it works through scratch files, which change no byte

    units_use_up: bool = False  # what others left: damage may cost these, too

    @property
    def in_place(self) -> bool:
        """What is there before the stage has ended need not be whole."""
        return self.begin is not None

    def make_ready(self, inputs: Path, out: Path) -> None:
        """For `run`, unless it is."""
        if self.begin is not None and not out.exists():
            self.begin(inputs, out)


def make_inputs(folder: Path) -> None:
    """Sources, and a directory of each kind made from them."""
    (folder / "sources").mkdir(parents=True)
    for name, array in _sources(np.random.default_rng(0)).items():
        np.save(folder / "sources" / f"{name}.npy", array)
    _write_tables(folder / "sources", np.random.default_rng(1))
    diskgnn.generate(folder / "large", **LARGE)
    for name, making in {
        "graph": convert, "links": convert_links, "owned": convert_owned, "quantised": convert_quantised,
        "samples": sample, "packed": pack, "packed links": prepare_links, "packed given": prepare_given, "run": train,
    }.items():  # fmt: skip
        making(folder, folder / name)
    train(folder, folder / "begun", epochs=2)
    train_embeddings(folder, folder / "begun embeddings", epochs=2)


def _sources(random: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    labels = random.integers(0, 3, NUM_NODES)
    likes = np.stack([random.permutation(80)[random.integers(0, 80, 900)] * 7 + 1, random.integers(0, 50, 900)])
    return {
        "edges": random.integers(0, NUM_NODES, (2, 4 * NUM_NODES)), "labels": labels,
        "features": (np.eye(3, WIDTH)[labels] + random.normal(size=(NUM_NODES, WIDTH))).astype(np.float32),
        "train": np.arange(120), "valid": np.arange(120, 160), "times": random.integers(0, 9, NUM_NODES),
        "likes": likes, "links": likes[:, :100].T, "likes_features": random.random((900, 5), np.float32),
        "likes_times": random.integers(0, 9, 900), "weights": random.random(900), "users": np.arange(80) * 7 + 1,
        "users_times": random.integers(0, 9, 80), "items_times": random.integers(0, 9, 50),
        "users_features": random.random((80, 7), np.float32),
        "owned": np.stack([random.integers(0, 80, 900), random.integers(0, NUM_NODES, 900)]),
    }  # fmt: skip


def _write_tables(folder: Path, random: np.random.Generator) -> None:
    """Users whose ids are words, in more ranges than one; what they buy, and whom they like."""
    users = pa.array([f"user-{number:x}" for number in random.permutation(1 << 20)[:NUM_USERS]])
    items = pa.array(random.integers(0, 1 << 60, 200))
    some = users.take(pa.array(random.permutation(NUM_USERS)[:400]))
    ends = random.integers(0, NUM_USERS, NUM_BUYS), random.integers(0, 200, NUM_BUYS)
    buys = {"src": users.take(ends[0]), "dst": items.take(ends[1])}
    tables = {
        "named": {"id": users, "x": random.random(NUM_USERS)},
        "named_labels": {"id": some, "label": random.integers(0, 3, 400)},
        "buys": {**buys, "weight": random.random(NUM_BUYS) + 1},
        "bought": {name: column[:50] for name, column in buys.items()},
        "liked": {end: users.take(random.integers(0, 90, 2000)) for end in ("src", "dst")},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=2000)
    np.save(folder / "names.npy", some[:60].to_numpy(zero_copy_only=False).astype(str))


def convert(inputs: Path, out: Path, memory: Size = "auto", **options: Any) -> None:
    """A graph of one type."""
    named = {name: inputs / "sources" / f"{name}.npy" for name in ("edges", "features", "labels", "train", "valid")}
    diskgnn.convert(out, **named, memory=memory, **options)


def convert_distinct(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Of equal edges one, in both directions, and self-loops; features of 4 bits."""
    convert(inputs, out, memory, drop_duplicates=True, reverse=True, self_loops=True, quantise="int4")


def convert_ids(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Users are words that a table lists, items numbers that only edges mention; what edges carry follows them."""
    tables = inputs / "sources"
    user = {"table": tables / "named.parquet", "labels": tables / "named_labels.parquet", "train": tables / "names.npy"}
    diskgnn.convert(out, memory=memory, schema={
        "nodes": {"user": {**user, "columns": {"features": "x"}}, "item": {}},
        "edges": {
            "user:buys:item": {
                "edges": tables / "buys.parquet", "columns": {"weight": "weight"}, "reverse": True, "keep_ids": True,
                "train": tables / "bought.parquet",
            },
            "user:likes:user": {"edges": tables / "liked.parquet", "symmetric": True},
        },
    })  # fmt: skip


def convert_links(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """A graph of two types, with all that edges may have, and ids of the user's."""

    def of(name: str) -> Path:
        return inputs / "sources" / f"{name}.npy"

    diskgnn.convert(out, memory=memory, schema={
        "nodes": {"user": {"ids": of("users"), "times": of("users_times"), "features": of("users_features")},
                  "item": {"num_nodes": 50, "times": of("items_times")}},
        "edges": {"user:likes:item": {
            "edges": of("likes"), "features": of("likes_features"), "times": of("likes_times"), "train": of("links"),
            "weights": of("weights"), "keep_ids": True, "reverse": True,
        }},
    })  # fmt: skip


def convert_owned(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """A graph of two types with features, of which one has labels."""

    def of(name: str) -> Path:
        return inputs / "sources" / f"{name}.npy"

    node = {name: of(name) for name in ("features", "labels", "train", "valid")}
    diskgnn.convert(out, memory=memory, schema={
        "nodes": {"node": node, "user": {"features": of("users_features")}},
        "edges": {"node:to:node": {"edges": of("edges")},
                  "user:owns:node": {"edges": of("owned"), "weights": of("weights"), "reverse": True}},
    })  # fmt: skip


def convert_quantised(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Features as int8, and times of nodes; no labels, no splits."""
    node = {name: inputs / "sources" / f"{name}.npy" for name in ("features", "times")}
    edges = {"edges": inputs / "sources" / "edges.npy"}
    schema = {"nodes": {"node": node | {"quantise": "int8"}}, "edges": {"node:to:node": edges}}
    diskgnn.convert(out, schema=schema, memory=memory)


def generate(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """A synthetic graph."""
    diskgnn.generate(
        out, num_nodes=4000, avg_degree=6, num_classes=4, num_features=16, train_fraction=0.1, valid_fraction=0.1,
        test_fraction=0.1, homophily=0.6, threads=1, memory=memory,
    )  # fmt: skip


def generate_typed(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """A synthetic graph of two types, whose edges carry something."""
    described = {
        "classes": 4, "nodes": {"a": {"num_nodes": 600, "features": 9, "labels": "class", "train": 0.1},
                                "b": {"num_nodes": 200, "features": 5}},
        "edges": {"a:to:a": {"num_edges": 3000, "weights": True, "features": 3}, "b:to:a": {"num_edges": 1000}},
    }  # fmt: skip
    diskgnn.generate_typed(out, described, memory=memory, threads=1)


def sample(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """With the topology in memory, if there is enough."""
    diskgnn.sample(inputs / "graph", out, memory=memory, **SAMPLING)


@contextmanager
def budget_of_data_alone() -> Iterator[None]:
    """A budget is that of arrays and buffers, or the topology of a small graph would fit in any."""
    with ExitStack() as stack:
        for reading in ("memory.held", "memory.overhead", "memory.anonymous"):
            if faults.reading(reading, 1) != 0:  # else pretended already, by the tests
                stack.enter_context(faults.pretending(reading, 0))
        yield


def sweep(inputs: Path, out: Path) -> None:
    """With the topology on disk."""
    with budget_of_data_alone():
        sample(inputs, out, "64KiB")


def sample_links(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Links, times and weights."""
    target = diskgnn.LinkTarget("user:likes:item")
    given = {"target": target, "temporal": "uniform", "weighted": True, **SAMPLING}
    diskgnn.sample(inputs / "links", out, memory=memory, **given)


def pack(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Of samples that are kept."""
    diskgnn.pack(inputs / "graph", inputs / "samples", out, threads=1, memory=memory, **CACHES)


def prepare(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Sampling and packing."""
    diskgnn.prepare(inputs / "graph", out, memory=memory, **SAMPLING, **CACHES)


def prepare_links(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Features of nodes and of edges, edge ids and trees."""
    target = diskgnn.LinkTarget("user:likes:item")
    given = {"target": target, "temporal": "uniform", "edge_ids": True, **SAMPLING, **CACHES}
    diskgnn.prepare(inputs / "links", out, memory=memory, **given)


def prepare_large(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Features of several windows, with a small budget."""
    diskgnn.prepare(inputs / "large", out, memory=memory, **SAMPLING | {"fanouts": [20, 10]}, **CACHES)


def prepare_given(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Of quantised features, seeds with times and labels that are not the graph's."""
    seeds = {split: np.load(inputs / "sources" / f"{split}.npy") for split in ("train", "valid")}
    times, labels = ({split: ids % most for split, ids in seeds.items()} for most in (9, 3))
    target = diskgnn.NodeTarget("node", seeds, times, labels)
    given = {"target": target, "temporal": "uniform", **SAMPLING, **CACHES}
    diskgnn.prepare(inputs / "quantised", out, memory=memory, **given)


def propagate(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Three hops by all operators."""
    given = {"hops": 3, "operators": ("symmetric", "mean", "gcn"), "threads": 1}
    diskgnn.propagate(inputs / "graph", out, memory=memory, **given)


def propagate_typed(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """All paths of two hops, from two types of nodes with features."""
    diskgnn.propagate(inputs / "owned", out, hops=2, threads=1, memory=memory)


def infer(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Logits of all nodes."""
    diskgnn.infer(inputs / "graph", out, inputs / "run", threads=1, memory=memory)


def infer_attention(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Embeddings of two windows of nodes, by attention, whose neighbours are looked at twice."""
    torch.manual_seed(7)
    net = make_model("gat", LARGE["num_features"], 8, 3, 2).eval()
    diskgnn.infer(inputs / "large", out, net, threads=1, memory=memory)


def infer_hops(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Logits of all nodes from their hops, which are propagated beside the output."""
    torch.manual_seed(7)
    width = diskgnn.Graph.open(inputs / "graph").feature_file.rows.num_features
    net = SIGN([(name, width) for name in ("x", "mean/1", "mean/2")], 8, 3).eval()
    diskgnn.infer(inputs / "graph", out, net, threads=1, memory=memory)


def predict(inputs: Path, out: Path, memory: Size = "auto") -> None:
    """Logits of some nodes, from sampled neighbours."""
    given = {"nodes": inputs / "sources" / "train.npy", "fanouts": [3, 2], "batch_size": 8, "threads": 1}
    diskgnn.predict(inputs / "graph", out, inputs / "run", memory=memory, **given)


def repair(inputs: Path, out: Path) -> None:
    """Of a packed directory, from the graph alone."""
    make_again(out, graph=inputs / "graph", resources=Resources.of("auto", 1))


def copy(inputs: Path, name: str, out: Path) -> None:
    """What is begun, to go on with."""
    shutil.copytree(inputs / name, out)


def damage(inputs: Path, out: Path, where: str) -> None:
    """A packed directory in which a byte of the first extent is another one: of its header, or of its rows."""
    shutil.copytree(inputs / "packed", out)
    index = Packed.open(out).index("train")
    position = index.extents["offset"][0] + (16 if where == "header" else index.rows["rows_offset"][0, 0])
    with (out / artifacts.extents_file("train")).open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def gaps_of(out: Path) -> dict[str, list[list[int]]]:
    """Returns by extents file of a packed directory where zeros are: between the parts of extents, and behind them."""
    found = dict[str, list[list[int]]]()
    for path in out.glob("*.bin") if out.is_dir() else ():
        index, between, behind = Packed.open(out).index(path.stem), list[int](), list[int]()
        for parts in index.parts.by_extent():
            ends = [(part.offset + part.num_bytes, part.padding_bytes > 0) for part in parts if part.num_bytes]
            between += (end for end, has_zeros in ends[:-1] if has_zeros)
            behind += (end for end, has_zeros in ends[-1:] if has_zeros)
        found[path.name] = [between, behind]
    return found


def train(inputs: Path, out: Path, **options: Any) -> None:
    """From a packed directory, with a checkpoint every few minibatches."""
    _train(inputs / "packed", out, **options)


def train_embeddings(inputs: Path, out: Path, **options: Any) -> None:
    """Of links; the tables of nodes without features lie beside the checkpoint."""
    _train(inputs / "packed links", out, embeddings="disk", **options)


def _train(packed: Path, out: Path, **options: Any) -> None:
    out.mkdir(exist_ok=True)
    options = TRAINING | options
    diskgnn.train(packed, checkpoint=out, resume=True, metrics=out / "metrics.jsonl", **options)


def fetch(inputs: Path, out: Path) -> None:
    """From a store, which is a folder of this machine."""
    diskgnn.fetch(f"local://{inputs / 'packed'}", out)


def push(inputs: Path, out: Path) -> None:
    """To such a store."""
    diskgnn.push(inputs / "packed", f"local://{out}")


def load(inputs: Path, out: Path) -> str:
    """All minibatches, as a digest; nothing is written."""
    return digest_of_minibatches(inputs / "packed")


def load_given(inputs: Path, out: Path) -> str:
    """The same of quantised features and given seeds."""
    return digest_of_minibatches(inputs / "packed given")


def digest_of_minibatches(packed: Path) -> str:
    """Of all splits, over two epochs, then after a seek."""
    found = hashlib.blake2b()
    for split in ("train", "valid"):
        with diskgnn.Loader(packed, split) as loader:
            for epoch in (0, 1):  # from the start, then on to the next cycle
                for batch in loader.epoch(epoch):
                    found.update(batch.x.numpy().tobytes() + batch.y.numpy().tobytes() + batch.seeds.numpy().tobytes())
    with diskgnn.Loader(packed) as loader:  # a seek
        for batch in loader.epoch(1):
            found.update(batch.x.numpy().tobytes())
    return found.hexdigest()


def digest_of_training(out: Path) -> str:
    """Losses of all steps of the last run, and the weights. One killed before its first checkpoint is a run before."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last_start = max(i for i, record in enumerate(records) if record["event"] == "start")
    losses = [record["loss"] for record in records[last_start:] if record["event"] == "step"]
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    found = hashlib.blake2b(json.dumps(losses).encode())
    for name, value in sorted(state["model"].items()):
        found.update(name.encode() + value.numpy().tobytes())
    for table in sorted((out / "embeddings").glob("*")):
        found.update(table.name.encode() + table.read_bytes())
    return found.hexdigest()


def digest_of_file(out: Path) -> str:
    """Of all its bytes."""
    return hashlib.blake2b(out.read_bytes()).hexdigest()


OF_REPAIRS = ("ReadError", "UnreadableError")  # of the graph; of what is to be repaired
STAGES = {
    "convert": Stage(convert, "sources", small=(20_000, 13_000)),
    "convert links": Stage(convert_links, "sources", small=(60_000, 35_000)),
    "convert, distinct": Stage(convert_distinct, "sources", small=(30_000, 19_000)),
    "convert ids": Stage(convert_ids, "sources", small=(307_200, 220_000)),
    "generate": Stage(generate, "sources", small=(700_000, 500_000)),
    "generate, typed": Stage(generate_typed, "sources", small=(60_000, 35_000)),
    "sample": Stage(sample, "graph", small=(65_536,)),
    "sample, swept": Stage(sweep, "graph"),
    "sample links": Stage(sample_links, "links", small=(65_536,)),
    "pack": Stage(pack, "samples", also_reads=("graph",)),
    "prepare": Stage(prepare, "graph", small=(65_536,)),
    "prepare links": Stage(prepare_links, "links", small=(65_536,)),
    "prepare, large": Stage(prepare_large, "large", small=(65_536,)),
    "repair": Stage(
        repair, "graph", begin=lambda inputs, out: damage(inputs, out, "rows"), read_errors=OF_REPAIRS
    ),
    "repair, packed again": Stage(
        repair, "graph", begin=lambda inputs, out: damage(inputs, out, "header"), read_errors=OF_REPAIRS
    ),
    "infer": Stage(
        infer, "graph", digest_of_file, ".npy", also_reads=("run",), small=(4_300_000, 5_000_000), units_use_up=True
    ),
    "infer, attention": Stage(
        infer_attention, "large", digest_of_file, ".npy", small=(18_500_000, 21_000_000), units_use_up=True
    ),
    "infer, hops": Stage(infer_hops, "graph", digest_of_file, ".npy", small=(130_000, 160_000)),
    "predict": Stage(predict, "graph", digest_of_file, ".npy", also_reads=("run",), small=(65_536,)),
    "train": Stage(train, "packed", digest_of_training, begin=lambda inputs, out: out.mkdir()),
    "train, going on": Stage(
        train, "packed", digest_of_training, begin=lambda inputs, out: copy(inputs, "begun", out)
    ),
    "train embeddings": Stage(
        train_embeddings, "packed links", digest_of_training,
        begin=lambda inputs, out: copy(inputs, "begun embeddings", out),
    ),
    "convert, quantised": Stage(convert_quantised, "sources", small=(20_000, 13_000)),
    "prepare, given": Stage(prepare_given, "quantised", small=(65_536,)),
    "propagate": Stage(propagate, "graph", small=(130_000, 160_000)),
    "propagate, typed": Stage(propagate_typed, "owned", small=(130_000, 160_000)),
    "fetch": Stage(fetch, "packed", read_errors=("StoreError",)),
}  # fmt: skip
# Those that write nothing, or nothing here.
READING = {
    "load": Stage(lambda inputs, out: out.write_text(load(inputs, out)), "packed", Path.read_text),
    "load, given": Stage(lambda inputs, out: out.write_text(load_given(inputs, out)), "packed given", Path.read_text),
    "push": Stage(push, "packed", begin=lambda inputs, out: out.mkdir()),  # whole where it has a manifest
}
# What reads a directory of the inputs when bits of it are flipped: stages that are compared by what they make.
READERS = {"graph": "prepare", "links": "prepare links", "samples": "pack", "packed": "load"}
warnings.simplefilter("ignore")
