"""Scripts of RelBench's and PyG's examples, run as they are but for what docs/from-relbench.md says to change, at its
levels: `edited` changes these lines, `run` runs one, in a process of its own: see tools/bench_relbench.py.

In memory, scripts run on PyG's and RelBench's loaders, which need pyg-lib: what that draws is drawn here by NumPy, so
seconds mean nothing. Text is embedded by a hash of its words, where the scripts fetch GloVe's vectors.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import relbench.datasets
import relbench.tasks
import torch
from relbench.base import TaskType
from relbench.modeling.utils import get_stype_proposal
from relbench.tasks import f1
from torch import Tensor
from torch_frame import stype
from torch_geometric.sampler import NeighborSampler

import diskgnn.relbench.encoded_graph  # noqa: F401  (so that the memory of imports is that of each level)
import relbench_databases as databases
from draws_in_time import drawn_in_time

LEVELS = {
    "memory": "in memory",
    "loader": "1: loader",
    "graph": "2: graph",
    "folder": "3: folder",
    "directory": "3: graph directory",
}
DATABASES = {"f1": databases.Formula1, "flights": databases.Flights}
TASKS = {  # (database, task, script)
    "f1-top3": ("f1", f1.DriverTop3Task, "gnn_entity.py"),
    "f1-rdl": ("f1", f1.DriverTop3Task, "rdl.py"),
    "f1-circuits": ("f1", f1.DriverCircuitCompeteTask, "gnn_recommendation.py"),
    "flights-delay": ("flights", databases.PlaneDelay, "gnn_entity.py"),
    "flights-idgnn": ("flights", databases.PlaneDestinations, "idgnn_recommendation.py"),
    "flights-destinations": ("flights", databases.PlaneDestinations, "gnn_recommendation.py"),
}
TEXT_WIDTH = 32

# What docs/from-relbench.md says to change, as (old, new); each level has those before it.
_LOADER = (
    ("from torch_geometric.loader import NeighborLoader", "from diskgnn.relbench import NeighborLoader"),
    ("from relbench.modeling.loader import LinkNeighborLoader", "from diskgnn.relbench import LinkNeighborLoader"),
)
_GRAPH = (
    (", make_pkey_fkey_graph\n", "\nfrom diskgnn.relbench import make_pkey_fkey_graph\n"),
    ("from relbench.modeling.graph import make_pkey_fkey_graph", "from diskgnn.relbench import make_pkey_fkey_graph"),
)
_TABLES = (
    ("    dataset.get_db(),\n", "    {tables!r},\n"),
    ("db = dataset.get_db()\n", "db = {tables!r}\n"),
    ("get_stype_proposal(db)", "{kinds!r}"),
    ("\nnum_neighbors = [", "\ntype(task).num_dst_nodes = data[task.dst_entity_table].num_nodes\nnum_neighbors = ["),
)
_FOLDER = (
    ("col_to_stype_dict=col_to_stype_dict,", "col_to_stype_dict=col_to_stype_dict, until=dataset.test_timestamp,"),
)


@dataclass(frozen=True)
class Settings:
    """Options of the scripts, which are passed to those that have them."""

    epochs: int = 2
    max_steps_per_epoch: int = 30
    batch_size: int = 64
    num_neighbors: int = 8  # of the first hop; half of it of the second
    channels: int = 16
    lr: float = 0.005


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


embed = HashedWords()  # as `diskgnn convert --embed-text TABLE.COLUMN=relbench_scripts:embed` finds it


class SentenceTransformer:
    """Has the place of that of `sentence_transformers`, which would fetch GloVe's vectors."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def encode(self, texts: list[str], *, convert_to_tensor: bool = False) -> Any:
        """Returns [n, 32]."""
        return embed(texts) if convert_to_tensor else embed(texts).numpy()


def edited(text: str, level: str, place: Path, seed: int) -> str:
    """Returns a script as it is at a level, with the seed of one that has no option for it.

    Args:
        text: of the script.
        level: of `LEVELS`.
        place: the folder that `set_up` made.
        seed: of draws.

    Raises:
        ValueError: it has no line that the level changes.
    """
    is_graph = level == "directory"
    known: dict[str, Any] = {"tables": str(place / ("graph" if is_graph else "db"))}
    known["kinds"] = None if is_graph else json.loads((place / "stypes.json").read_text())
    steps = {"loader": [_LOADER], "graph": [_LOADER, _GRAPH], "folder": [_LOADER, _GRAPH, _TABLES, _FOLDER],
             "directory": [_LOADER, _GRAPH, _TABLES]}.get(level, [])  # fmt: skip
    text = text.replace("seed_everything(42)", f"seed_everything({seed})")
    for edits in steps:
        before = text
        for old, new in edits:
            text = text.replace(old, new.format(**known))
        if text == before:
            raise ValueError(f"expected a script of RelBench's or PyG's examples, with {edits[0][0]!r}")
    return text


def run(
    folder: Path, task_name: str, level: str, seed: int, settings: Settings, cache: Path, script: Path
) -> dict[str, Any]:
    """Runs a script once, in this process, whose modules it changes.

    Returns:
        Metrics of validation, by epoch; that of the test, of the epoch that is best in validation; and the memory that
        is held in the end.
    """
    database, kind, name = TASKS[task_name]
    place = folder / database
    text = edited(script.read_text(), level, place, seed)
    if level == "memory":
        NeighborSampler._sample = drawn_in_time
        warnings.filterwarnings("ignore", message="Using .* without a 'pyg-lib'")
    metrics = _recorded(kind)
    relbench.datasets.register_dataset(database, DATABASES[database], place, cache_dir=str(place))
    relbench.tasks.register_task(database, task_name, kind, cache_dir=str(place / kind.__name__))
    relbench.datasets.download_dataset = relbench.tasks.download_task = lambda *_: None
    module: Any = ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(script.parent))  # has model.py and text_embedder.py
    (cache / database).mkdir()
    (cache / database / "stypes.json").write_text((place / "stypes.json").read_text())
    given = {"dataset": database, "task": task_name, "cache_dir": cache, "seed": seed, **asdict(settings)}
    known = {word for word in re.findall(r'"--(\w+)"', text) if f'"--{word}", type=list' not in text}
    sys.argv = [name, *(str(part) for key, value in given.items() if key in known for part in (f"--{key}", value))]
    os.environ["XDG_CACHE_HOME"] = str(cache)  # where loaders keep what they prepare
    os.chdir(cache)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    return {**metrics(), "held_bytes": held_bytes()}  # with all that the script has


def _recorded(kind: Any) -> Callable[[], dict[str, Any]]:
    """Records what a task says of predictions: after each epoch, of the best one again, and of the test."""
    evaluate, found = kind.evaluate, list[float]()
    is_class = kind.task_type == TaskType.BINARY_CLASSIFICATION
    metric = "roc_auc" if is_class else "mae" if kind.task_type == TaskType.REGRESSION else "link_prediction_map"

    def recording(*arguments: Any, **keywords: Any) -> Any:
        metrics = evaluate(*arguments, **keywords)
        found.append(float(metrics[metric]))
        return metrics

    kind.evaluate = recording
    return lambda: {"curve": found[:-1], "test": found[-1]}


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
