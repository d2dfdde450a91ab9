"""What tests ask of RelBench 3, for `relbench3.called`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import relbench
from relbench import load_dataset

import diskgnn

SPLITS = ("train", "val", "test")


def tables_of(folder: Path, task: str) -> tuple[dict[str, Any], list[Any]]:
    """Returns (data frame, foreign keys) of each table, and the data frame of each split of a task."""
    data_set = load_dataset(folder)
    tables = {name: (table.df, table.fkey_col_to_pkey_table) for name, table in data_set.get_db().table_dict.items()}
    loaded = data_set.load_task(task)
    return tables, [loaded.get_table(split, mask_input_cols=False).df for split in SPLITS]


def convert_database(folder: Path, out: Path, options: dict[str, Any]) -> None:
    """Converts the Database of a folder."""
    diskgnn.convert(out, source=load_dataset(folder).get_db(), options=options)


def run_loops(folder: Path, cache: Path) -> dict[str, Any]:
    """Returns what loops of both tasks of a shop see: by diskgnn, of its folder; and frames in memory by RelBench."""
    from relbench.modeling import graph as in_relbench
    from shop_columns import KINDS, Hashed, entity_batches, recommendation_batches
    from torch_frame.config import TextEmbedderConfig

    from diskgnn.relbench import make_pkey_fkey_graph

    def kinds() -> dict[str, dict[str, Any]]:
        return {name: dict(columns) for name, columns in KINDS.items()}  # RelBench changes them

    data_set, embedder = load_dataset(folder), TextEmbedderConfig(Hashed(), batch_size=64)
    database = data_set.get_db()
    found: dict[str, Any] = {"version": relbench.__version__}
    for name in ("churn", "reviewed"):
        task = data_set.load_task(name)
        hidden = task.hidden_columns()
        data, statistics = make_pkey_fkey_graph(
            data_set.dataset_dir, kinds(), embedder, cache / "graphs", hidden, progress=False
        )
        in_memory, of_memory = in_relbench.make_pkey_fkey_graph(database, kinds(), embedder, remove_columns=hidden)
        if name == "churn":
            given = [in_relbench.get_node_train_table_input(task.get_table(split), task) for split in SPLITS]
            batches = entity_batches(data, given, cache / "packed")
        else:
            num_nodes = in_relbench.num_dst_nodes(database, task)
            assert num_nodes == data["product"].num_nodes
            masked = in_relbench.get_link_train_table_input(task.get_table("test"), task, num_nodes)
            assert masked.dst_nodes is None
            given = in_relbench.get_link_train_table_input(task.get_table("train"), task, num_nodes)
            batches = recommendation_batches(data, given, cache / "packed")
        frames = {each: (data[each].tf.load(), in_memory[each].tf) for each in in_memory.node_types}
        found[name] = {"frames": frames, "statistics": (statistics, of_memory), "batches": batches}
    return found


if __name__ == "__main__":
    found = globals()[sys.argv[1]](*pickle.load(sys.stdin.buffer))
    Path(sys.argv[2]).write_bytes(pickle.dumps(found))
