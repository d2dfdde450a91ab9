"""Vectors of nodes that are trained on disk: as torch's own embeddings and SparseAdam, whatever interrupts them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from typed_batches import TypedGraph
from typed_directories import write_typed_graph

import diskgnn
from diskgnn.batches.batch_source import schema_of
from diskgnn.cli import main
from diskgnn.embeddings.disk_embeddings import FOLDER, DiskEmbedding
from diskgnn.embeddings.embedding_table import EmbeddingTable
from diskgnn.errors import ArtifactError, ConfigError, ReadError
from diskgnn.files import faults
from diskgnn.loading.loader import Loader
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.nn.typed_models import TypedModel, make_typed_model
from diskgnn.specs.targets import NodeTarget
from diskgnn.training.checkpoints import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {"hidden": 8, "lr": 0.05, "dropout": 0.2, "epochs": 4, "embeddings": "disk"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Places have no features."""
    folder = tmp_path_factory.mktemp("embeddings")
    graph = write_typed_graph(folder / "graph", TypedGraph(dtype=torch.float32))
    diskgnn.prepare(graph, folder / "packed", fanouts=[3, 3], batch_size=4, epochs=2, target=NodeTarget("paper"),
                    cpu_cache="50%", static_cache=0)  # fmt: skip
    return folder / "packed"


def test_steps_are_those_of_torch(tmp_path):
    """Bit for bit, against nn.Embedding and SparseAdam; rows that no minibatch has stay as they are."""
    rng = np.random.default_rng(1)
    embedding = nn.Embedding(300, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.03)
    start = embedding.weight.detach().numpy().copy()
    table = EmbeddingTable.create(tmp_path / "table", 300, 16, lambda first, count: start[first : first + count])
    for step in range(1, 30):
        ids = np.sort(rng.permutation(200)[: rng.integers(1, 150)])
        gradient = rng.normal(size=(len(ids), 16)).astype(np.float32)
        optimizer.zero_grad()
        (embedding(torch.from_numpy(ids)) * torch.from_numpy(gradient)).sum().backward()
        optimizer.step()
        table.step(table.fetch(ids), gradient, 0.03, step)
        np.testing.assert_array_equal(table.read(np.arange(300)), embedding.weight.detach().numpy())
    table.close()


@pytest.mark.parametrize("ahead", [1, 3])
def test_rows_fetched_ahead_are_those_of_the_latest_step(tmp_path, ahead):
    """Minibatches share most rows; some are fetched and never used, some have none; checkpoints lie in between."""
    rng = np.random.default_rng(ahead)
    embedding = nn.Embedding(60, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.03)
    start = embedding.weight.detach().numpy().copy()
    table = EmbeddingTable.create(tmp_path / "table", 60, 4, lambda first, count: start[first : first + count])
    wanted = [np.sort(rng.permutation(60)[: rng.integers(0, 50)]) for _ in range(40)]
    fetched = [table.fetch(ids) for ids in wanted[:ahead]]
    for step, ids in enumerate(wanted, 1):
        fetched += [table.fetch(each) for each in wanted[step + ahead - 1 : step + ahead]]
        rows = fetched.pop(0)
        np.testing.assert_array_equal(rows.rows()[:, 0], embedding.weight.detach().numpy()[ids])
        gradient = rng.normal(size=(len(ids), 4)).astype(np.float32)
        table.step(rows, gradient, 0.03, step)
        table.drop(table.fetch(ids))
        if step % 7 == 0:
            table.make_durable()
            table.begin(step)
        optimizer.zero_grad()
        (embedding(torch.from_numpy(ids)) * torch.from_numpy(gradient)).sum().backward()
        optimizer.step()
    np.testing.assert_array_equal(table.read(np.arange(60)), embedding.weight.detach().numpy())
    table.close()


def test_a_disk_that_fails_behind_the_loop_is_an_error(tmp_path):
    table = EmbeddingTable.create(tmp_path / "table", 20, 4, lambda first, count: np.ones((count, 4), np.float32))
    ids, gradient = np.arange(5), np.ones((5, 4), np.float32)
    with faults.armed("embeddings.write", OSError(errno.EIO, "the disk failed")):
        table.step(table.fetch(ids), gradient, 0.1, 1)
        with pytest.raises(OSError, match="the disk failed"):
            table.make_durable()
    os.truncate(tmp_path / "table", 60)
    with pytest.raises(ReadError, match=r"vectors of nodes in .*table"):
        table.fetch(ids).rows()
    table.close()


def in_memory(net):
    """The same model with torch's embeddings, of the same vectors."""
    for index, module in enumerate(net.inputs):
        if isinstance(module, DiskEmbedding):
            net.inputs[index] = table = nn.Embedding(module.num_embeddings, module.embedding_dim, sparse=True)
            with torch.no_grad():
                kept = module.first_vectors(0, module.num_embeddings) if module.kept is None else module.kept
                table.weight.copy_(torch.from_numpy(np.array(kept)))
    return net


def new_model(packed):
    torch.manual_seed(5)
    with Loader(packed, "train") as loader:
        return make_typed_model(ModelSpec("rgcn", 8, 2, embeddings="disk", dropout=0.2), schema_of(loader), 3)


def test_training_is_training_in_memory(packed, tmp_path):
    options = {"lr": 0.05, "epochs": 4}
    expected = diskgnn.train(packed, model=in_memory(new_model(packed)), **options)
    found = diskgnn.train(packed, model=new_model(packed), checkpoint=tmp_path / "c", **options)
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in expected.epochs]
    assert [epoch.scores() for epoch in found.epochs] == [epoch.scores() for epoch in expected.epochs]
    memory = next(each for each in expected.model.inputs if isinstance(each, nn.Embedding))
    disk = next(each for each in found.model.inputs if isinstance(each, DiskEmbedding))
    ids = torch.arange(disk.num_embeddings)
    torch.testing.assert_close(disk(ids), memory(ids), rtol=0, atol=0)  # both of the best epoch


def train_and_die(packed, checkpoint, point, after):
    """In a child process."""
    child = os.fork()
    if child == 0:
        try:
            with faults.armed(point, lambda: os.kill(os.getpid(), signal.SIGKILL), after=after):
                diskgnn.train(packed, checkpoint=checkpoint, checkpoint_every_batches=2, resume=True, **OPTIONS)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.filterwarnings("ignore:no checkpoint")
def test_killed_anywhere_it_goes_on_to_the_same_losses(packed, tmp_path):
    whole = diskgnn.train(packed, checkpoint=tmp_path / "whole", checkpoint_every_batches=2, **OPTIONS)
    folder = tmp_path / "killed"
    kills = [("embeddings.write", 3), ("embeddings.saved", 1), ("checkpoint.sync", 1), ("embeddings.write", 2),
             ("training.step", 5)]  # fmt: skip
    for point, after in kills:
        train_and_die(packed, folder, point, after)
    found = diskgnn.train(packed, checkpoint=folder, checkpoint_every_batches=2, resume=True, **OPTIONS)
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in whole.epochs]
    assert [epoch.scores() for epoch in found.epochs] == [epoch.scores() for epoch in whole.epochs]
    files, expected = (
        {file.name: file.read_bytes() for file in (run / FOLDER).iterdir()} for run in (folder, tmp_path / "whole")
    )
    assert files == expected


def table_with_a_journal(path):
    table = EmbeddingTable.create(path, 50, 8, lambda first, count: np.ones((count, 8), np.float32))
    table.begin(1)
    before = path.read_bytes()
    for step in (1, 2):
        table.step(table.fetch(np.arange(10 * step)), np.ones((10 * step, 8), np.float32), 0.1, step)
    table.close()
    assert path.read_bytes() != before
    return before


def test_a_journal_that_is_cut_short_undoes_what_was_written(tmp_path):
    """Its last record was being written, so the rows of that were not."""
    before = table_with_a_journal(tmp_path / "table")
    (journal,) = tmp_path.glob("table.undo-*")
    content = journal.read_bytes()
    journal.write_bytes(content + content[:20])
    table = EmbeddingTable(tmp_path / "table", 50, 8, 1)
    table.undo(1)
    table.close()
    assert (tmp_path / "table").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["table"]


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("byte", [*range(16), 30])
def test_a_damaged_journal_is_an_error(tmp_path, byte, bit):
    """Also a count that makes all that follows look like one record that was cut short."""
    table_with_a_journal(tmp_path / "table")
    (journal,) = tmp_path.glob("table.undo-*")
    content = bytearray(journal.read_bytes())
    content[byte] ^= 1 << bit
    journal.write_bytes(content)
    with pytest.raises(ArtifactError, match="undo-1 is damaged"):
        EmbeddingTable(tmp_path / "table", 50, 8, 1).undo(1)


def test_the_command_line_trains_and_evaluates_what_does_not_fit(packed, tmp_path):
    arguments = ["train", packed, "--hidden", 8, "--epochs", 2, "--embedding-memory", 100]
    refused = CliRunner().invoke(main, [str(each) for each in arguments])
    assert refused.exit_code == 2
    assert "keep them on disk with --embeddings disk" in " ".join(refused.stderr.split())
    refused = CliRunner().invoke(main, [str(each) for each in [*arguments, "--embeddings", "disk"]])
    assert "--checkpoint: vectors of nodes on disk lie in its folder" in " ".join(refused.stderr.split())
    arguments += ["--embeddings", "disk", "--checkpoint", tmp_path / "run", "--json"]
    done = CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    arguments = ["evaluate", packed, "--checkpoint", tmp_path / "run", "--split", "test", "--json"]
    evaluated = CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)
    assert json.loads(evaluated.stdout)["accuracy"] == json.loads(done.stdout)["test_accuracy"]
    model = load_model(tmp_path / "run")
    assert isinstance(model, TypedModel)
    graph = packed.parent / "graph"
    diskgnn.infer(graph, tmp_path / "disk.npy", tmp_path / "run")
    diskgnn.infer(graph, tmp_path / "memory.npy", in_memory(model), node_type="paper")
    np.testing.assert_array_equal(np.load(tmp_path / "disk.npy"), np.load(tmp_path / "memory.npy"))
    shutil.rmtree(tmp_path / "run" / FOLDER)
    with pytest.raises(ArtifactError, match="expected a file of 192 bytes, found none"):
        load_model(tmp_path / "run")


def test_a_stopped_run_is_not_read_as_a_checkpoint(packed, tmp_path):
    class StopsError(Exception):
        pass

    def stop(record):
        if record["event"] == "step" and record["epoch"] == 1:
            raise StopsError

    with pytest.raises(StopsError):
        diskgnn.train(packed, checkpoint=tmp_path / "run", callback=stop, record_every_batches=1, **OPTIONS)
    with pytest.raises(ConfigError, match="go on with it first"):
        load_model(tmp_path / "run", last=True)
    assert load_model(tmp_path / "run")  # the best epoch's lie by themselves


def test_a_run_that_fails_leaves_no_table_open(packed, tmp_path):
    """Or a write that is late would change what the next run has undone."""

    def fail(record):
        if record["event"] == "step":
            raise MemoryError

    with pytest.raises(MemoryError):
        diskgnn.train(packed, checkpoint=tmp_path / "run", callback=fail, record_every_batches=1, **OPTIONS)
    opened = [entry.resolve() for entry in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if path.is_relative_to(tmp_path)]


def test_a_new_table_leaves_those_of_other_names(tmp_path):
    tables = [
        EmbeddingTable.create(tmp_path / name, 4, 2, lambda _, count: np.ones((count, 2), np.float32))
        for name in ("user_group", "user")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["user", "user_group"]
    for table in tables:
        table.close()
