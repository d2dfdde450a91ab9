"""Which directory of a folder of ranks a Loader opens: that of torchrun's environment, or of its arguments."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from graphs import bits_of, make_graph
from rank_processes import in_ranks
from torch.distributed import barrier

import diskgnn
from diskgnn import ArtifactError, ConfigError, Loader, prepare
from diskgnn.formats.verification import verify_artifact

SETTINGS = {"fanouts": [2], "batch_size": 8, "cpu_cache": "10%", "static_cache": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    graph = make_graph(folder / "graph")
    prepare(graph, folder / "one", **SETTINGS)
    prepare(graph, folder / "two", **SETTINGS, ranks=2)
    return folder


def seeds_of(loader):
    with loader:
        return [batch.seeds.tolist() for batch in loader.epoch(0)]


def test_the_environment_or_arguments_name_the_rank(folder, monkeypatch):
    dealt = seeds_of(Loader(folder / "one"))
    for rank in range(2):
        assert seeds_of(Loader(folder / "two", rank=rank, world_size=2)) == dealt[rank::2]
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert seeds_of(Loader(folder / "two")) == dealt[rank::2]
        assert seeds_of(Loader(folder / "two", rank=1, world_size=2)) == dealt[1::2]
        assert seeds_of(Loader(folder / "one", rank=0, world_size=1)) == dealt


@pytest.mark.parametrize("device_cache", ["0%", "2%"])
def test_ranks_have_static_rows_in_memory_once(folder, tmp_path, device_cache):
    """Each in a process of its own reads the rows of one rank, and finds the static ones in the same memory."""
    settings = SETTINGS | {"static_cache": "5%"}
    prepare(folder / "graph", tmp_path / "one", **settings)
    prepare(folder / "graph", tmp_path / "three", **settings, ranks=3)
    with Loader(tmp_path / "one") as loader:
        dealt = [bits_of(batch) for batch in loader.epoch(0)]
    found = in_ranks(3, rows_and_memory, str(tmp_path / "three"), device_cache)
    for rank, (rows, pinned_rows, maps) in enumerate(found):
        assert rows == dealt[rank::3]
        assert pinned_rows > 0
        assert len(maps) == 1
    assert len({maps[0] for _, _, maps in found}) == 1


def rows_and_memory(rank: int, folder: str, device_cache: str):
    """x of an epoch, how many rows came from the pinned tier, and the files in memory that are mapped."""
    with Loader(folder, rank=rank, world_size=3, device_cache=device_cache) as loader:
        rows = [bits_of(batch) for batch in loader.epoch(0)]
        barrier()  # all have loaded, and still have it
        maps = Path("/proc/self/maps").read_text().splitlines()
        shared = sorted({line.split()[4] for line in maps if "memfd:diskgnn" in line})
        barrier()
        return rows, loader.stats().pinned_rows, shared


def test_what_does_not_fit_is_refused_with_what_makes_it_right(folder, monkeypatch):
    with pytest.raises(ConfigError, match=r"prepared for 2 ranks.*torchrun --nproc-per-node 2"):
        Loader(folder / "two")
    with pytest.raises(ConfigError, match="prepared for 2 ranks, this is rank 0 of 3: start 2 processes, or prepare"):
        Loader(folder / "two", rank=0, world_size=3)
    with pytest.raises(ConfigError, match="rank and world_size: expected both"):
        Loader(folder / "two", rank=0)
    with pytest.raises(ArtifactError, match=r"name one, such as .*rank-0-of-2"):
        verify_artifact(folder / "two")
    with pytest.raises(ConfigError, match="each rank, which has its part of the nodes only: give the graph"):
        diskgnn.predict(folder / "two", folder / "predicted.npy", folder / "run")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match="prepared for one process, this is rank 1 of 2: prepare it with `diskgnn prepare --ranks 2`"
    ):
        Loader(folder / "one")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE: expected whole numbers"):
        Loader(folder / "two")


def test_lightning_gets_the_minibatches_of_its_process(folder):
    pytest.importorskip("pytorch_lightning")
    from diskgnn.training.lightning_data import PackedDataModule

    with Loader(folder / "one", "valid") as loader:
        dealt = [batch.seeds.tolist() for batch in loader]
    for rank in range(2):
        module = PackedDataModule(folder / "two")
        module.trainer = SimpleNamespace(
            global_rank=rank, world_size=2, strategy=SimpleNamespace(root_device="cpu"), limit_train_batches=1.0
        )
        assert seeds_of(module.val_dataloader()) == dealt[rank::2]
    module = PackedDataModule(folder / "one")
    module.trainer = SimpleNamespace(global_rank=0, world_size=2, strategy=SimpleNamespace(root_device="cpu"))
    with pytest.raises(ConfigError, match="prepare it with `diskgnn prepare --ranks 2`"):
        module.train_dataloader()


def test_ranks_of_one_machine_share_its_cores(folder, monkeypatch):
    monkeypatch.setattr("diskgnn.loading.loader_options.available_cores", lambda: 8)
    with Loader(folder / "one") as loader:
        assert loader.options.gather_threads == 4
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        assert loader.options.gather_threads == 2
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        assert loader.options.gather_threads == 1
    with Loader(folder / "one", threads=3) as loader:
        assert loader.options.gather_threads == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE: expected a whole number"):
        list(Loader(folder / "one"))
