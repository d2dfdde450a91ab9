"""RelBench's graph of a database, with the rows of its tables on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch_geometric.data import HeteroData

from diskgnn.errors import ConfigError, UnavailableError
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.pyg.prepared_cache import Cache
from diskgnn.stores.locations import local

if TYPE_CHECKING:
    from torch_frame.data.stats import StatType


def make_pkey_fkey_graph(
    db: Any,
    col_to_stype_dict: Mapping[str, Mapping[str, Any]] | None = None,
    text_embedder_cfg: Any = None,
    cache_dir: PathLike | None = None,
    remove_columns: Iterable[tuple[str, str]] | None = None,
    *,
    until: Any = None,
    statistics: str = "all",
    memory: int | str = "auto",
    progress: bool = True,
) -> tuple[HeteroData, dict[str, dict[str, dict[StatType, Any]]]]:
    """Returns what RelBench's function of this name returns, with TensorFrames whose rows are on the disk.

    Each row is encoded once, some rows at a time, and written to a graph directory in the cache folder; the same tables
    are known again in the next run. Values and statistics are torch_frame's own. `data[table].tf` is a `DiskFrame`:
    batches of `diskgnn.relbench`'s and `diskgnn.pyg`'s loaders have their rows. The edges are in the graph directory,
    so `data` has none in memory.

    Args:
        db: a RelBench Database; a folder of Parquet tables, which RelBench's `Database.save` or RelBench 3 wrote: then
            no more is in memory than some columns, one at a time; or a graph directory, or an opened one, that keeps
            the columns of its tables (`diskgnn convert --from relational`, with `kinds=stypes.json` and
            `statistics=all`).
        col_to_stype_dict: by table and column, an stype or its name. Keys are left out. A graph directory says it
            itself, so None will do; otherwise its columns have these stypes.
        text_embedder_cfg: a torch_frame TextEmbedderConfig, for columns of text, which a graph directory has embedded
            already. The embedder is known again by its class, its attribute `version` if there is one, and what it
            makes of the first texts of each column.
        cache_dir: the cache folder; that of `diskgnn.pyg` by default.
        remove_columns: (table, column) pairs that no frame has, such as `task.hidden_columns()` of RelBench 3. What is
            in the cache folder has them, for all tasks. A table without other columns has a constant.
        until: a timestamp; rows of a folder that come later are left out, as `Dataset.get_db` leaves out those after
            `test_timestamp`. Of a folder of RelBench 3, that is the default.
        statistics: the rows that they are of: "all", as in RelBench, or "validation", those up to `val_timestamp`,
            which only a graph directory has that was converted without `statistics=all`.
        memory: that converting may use.
        progress: say on stderr what is converted.

    Returns:
        (data, statistics of each column by table).

    Raises:
        ConfigError: what is asked for is not there, or columns are of an stype that RelBench's models have no encoder
            for; or a graph directory has other statistics, or does not say which.
        InputError: tables that are none.
        UnavailableError: torch_frame or pandas cannot be imported.

    Example:
        >>> from diskgnn.relbench import NeighborLoader, make_pkey_fkey_graph
        >>> data, col_stats_dict = make_pkey_fkey_graph(db, col_to_stype_dict, text_embedder_cfg, cache_dir="cache")
    """
    try:
        from diskgnn.relbench.encoded_graph import encoded_graph, given_columns, given_kinds, graph_of_tables
    except ImportError as error:
        raise UnavailableError(
            f"make_pkey_fkey_graph needs torch_frame and pandas, found {error}; pip install pytorch-frame 'pandas<3'"
        ) from error
    kinds = None if col_to_stype_dict is None else given_kinds(col_to_stype_dict)
    removed = given_columns(remove_columns)
    if statistics not in ("all", "validation"):
        raise ConfigError(f"statistics: expected all or validation, found {statistics!r}")
    if isinstance(db, Graph) or (isinstance(db, str | os.PathLike) and (local(db, "db") / MANIFEST).is_file()):
        if until is not None:
            raise ConfigError("until: expected a folder of tables, found a graph directory, which has the rows it has")
        return graph_of_tables(db if isinstance(db, Graph) else Graph.open(db), kinds, removed, statistics)
    if kinds is None:
        raise ConfigError("col_to_stype_dict: expected the stype of each column of each table, found None")
    if statistics != "all":
        raise ConfigError(
            f"statistics: those of a Database or a folder are of all rows, as in RelBench, found {statistics!r}; "
            "convert it (`diskgnn convert --from relational`), and pass the graph directory"
        )
    cache = Cache.of(cache_dir, None, memory, None, progress)
    return encoded_graph(db, kinds, text_embedder_cfg, until, removed, cache)
