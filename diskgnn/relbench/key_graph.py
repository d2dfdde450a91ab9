"""RelBench's graph of a database, with the rows of its tables on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch_geometric.data import HeteroData

from diskgnn.errors import UnavailableError
from diskgnn.paths import PathLike
from diskgnn.pyg.prepared_cache import Cache

if TYPE_CHECKING:
    from torch_frame.data.stats import StatType


def make_pkey_fkey_graph(
    db: Any,
    col_to_stype_dict: Mapping[str, Mapping[str, Any]],
    text_embedder_cfg: Any = None,
    cache_dir: PathLike | None = None,
    *,
    until: Any = None,
    memory: int | str = "auto",
    progress: bool = True,
) -> tuple[HeteroData, dict[str, dict[str, dict[StatType, Any]]]]:
    """Returns what RelBench's function of this name returns, with TensorFrames whose rows are on the disk.

    Each row is encoded once, some rows at a time, and written to a graph directory in the cache folder; the same tables
    are known again in the next run. Values and statistics are torch_frame's own. `data[table].tf` is a `DiskFrame`:
    batches of `diskgnn.relbench`'s and `diskgnn.pyg`'s loaders have their rows. The edges are in the graph directory,
    so `data` has none in memory.

    Args:
        db: a RelBench Database; or a folder of Parquet tables, which RelBench's `Database.save` or RelBench 3 wrote:
            then no more is in memory than some columns, one at a time.
        col_to_stype_dict: by table and column, an stype or its name. Keys are left out.
        text_embedder_cfg: a torch_frame TextEmbedderConfig, for columns of text. The embedder is known again by its
            class, its attribute `version` if there is one, and what it makes of a text.
        cache_dir: the cache folder; that of `diskgnn.pyg` by default.
        until: a timestamp; rows of a folder that come later are left out, as `Dataset.get_db` leaves out those after
            `test_timestamp`. Of a folder of RelBench 3, that is the default.
        memory: that converting may use.
        progress: say on stderr what is converted.

    Returns:
        (data, statistics of each column by table).

    Raises:
        ConfigError: what is asked for is not there; or columns of an stype that RelBench's models have no encoder for.
        InputError: tables that are none.
        UnavailableError: torch_frame or pandas cannot be imported.

    Example:
        >>> from diskgnn.relbench import NeighborLoader, make_pkey_fkey_graph
        >>> data, col_stats_dict = make_pkey_fkey_graph(db, col_to_stype_dict, text_embedder_cfg, cache_dir="cache")
    """
    try:
        from diskgnn.relbench.encoded_graph import encoded_graph
    except ImportError as error:
        raise UnavailableError(
            f"make_pkey_fkey_graph needs torch_frame and pandas, found {error}; pip install pytorch-frame 'pandas<3'"
        ) from error
    cache = Cache.of(cache_dir, None, memory, None, progress)
    return encoded_graph(db, col_to_stype_dict, text_embedder_cfg, until, cache)
