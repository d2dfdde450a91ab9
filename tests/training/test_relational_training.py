"""The relational model from a database to predictions: it learns what only times, nulls or many categories tell."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from rank_processes import in_ranks, trained
from training_runs import Interrupting, records
from users_and_events import DAY, START, USERS, convert, lately_joined, of_user, prepare, seeds, users_and_events

import diskgnn
from diskgnn.errors import ConfigError, DataWarning
from diskgnn.models import named_model
from diskgnn.specs.targets import NodeTarget
from diskgnn.training.checkpoint_description import describe_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return users_and_events()


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, pa.Table]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("relational")
    found = {name: folder / name for name in ("records", "vectors")}
    for name, path in found.items():
        convert(path, tables, keep_columns=name == "records")
    return found


MODEL = {"model": "relational", "hidden": 32, "lr": 0.01, "dropout": 0.0, "progress": False}


@pytest.mark.parametrize("kind", ["vectors", "records"])
def test_only_the_model_that_sees_times_learns_recency(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path, kind: str
) -> None:
    """All users have as many events, whose columns are noise. The checkpoint gives the scores again, and predictions
    are what the model says of the minibatches of evaluation.
    """
    graph, run = graphs[kind], tmp_path / "run"
    packed = prepare(graph, tmp_path / "packed", tables)
    result = diskgnn.train(packed, epochs=25, checkpoint=run, best_by="roc_auc", **MODEL)
    assert result.scores()["test_roc_auc"] > 0.9
    blind = diskgnn.train(packed, epochs=25, best_by="roc_auc", **{**MODEL, "model": "rgcn"})
    assert blind.scores()["test_roc_auc"] < 0.65
    assert diskgnn.evaluate(run, packed, progress=False).scores["roc_auc"] == result.scores()["test_roc_auc"]
    assert {*describe_checkpoint(run).used_by} == {"evaluate", "predict", "train"}
    users, times = seeds()
    diskgnn.predict(graph, tmp_path / "all.npy", run, nodes=users["test"], times=times["test"], fanouts=[3, 2],
                    progress=False)  # fmt: skip
    diskgnn.predict(packed, tmp_path / "packed.npy", run, progress=False)
    net = diskgnn.load_model(run).eval()
    with diskgnn.Loader(packed, "test") as loader, torch.no_grad():
        batches = list(loader.epoch(0))
        rows = torch.cat([net(batch)["users"] for batch in batches]).numpy()
    asked = {(user, time): row for user, time, row in zip(
        users["test"], times["test"], np.load(tmp_path / "all.npy"), strict=True
    )}  # fmt: skip
    drawn = [pair for batch in batches for pair in zip(batch.seeds.tolist(), batch.seed_times.tolist(), strict=True)]
    np.testing.assert_allclose(rows, [asked[pair] for pair in drawn], rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match=r"relational takes rows with their columns .* use `predict`"):
        diskgnn.infer(graph, tmp_path / "infer.npy", run, ignore_times=True, progress=False)
    what = {"vectors": "a row of events was", "records": "timestamps of users were"}[kind]
    with pytest.raises(ConfigError, match=rf"how long before its seed {what}.*keep_times=True"):
        diskgnn.predict(graph, tmp_path / "no.npy", run, ignore_times=True, progress=False)


def test_timestamps_count_against_the_time_of_the_seed(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Not by their date, which has no part."""
    packed = prepare(graphs["records"], tmp_path / "packed", tables, lately_joined)
    result = diskgnn.train(packed, epochs=15, best_by="roc_auc", **MODEL)
    assert result.scores()["test_roc_auc"] > 0.95
    users = result.model.encoders["users"]
    assert users.dates.tolist() == [1]  # behind score
    with diskgnn.Loader(packed, "test") as loader, torch.no_grad():
        batch = next(loader.epoch(0))
        moved = {**batch.x, "users": batch.x["users"].index_fill(1, torch.tensor([1]), 5.0)}
        assert torch.equal(result.model(replace(batch, x=moved))["users"], result.model(batch)["users"])


def test_nulls_and_categories_of_many_values_are_learnt(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """x has neither: vectors say nothing of a city, and null is their mean."""
    scores = {}
    for kind, graph in graphs.items():
        packed = prepare(graph, tmp_path / kind, tables, of_user)
        result = diskgnn.train(packed, epochs=20, best_by="roc_auc", checkpoint=tmp_path / f"run-{kind}", **MODEL)
        scores[kind] = result.scores()["test_roc_auc"]
    assert scores["records"] > 0.9
    assert scores["vectors"] < 0.8  # exactly 0 is a feature, too
    with pytest.raises(ConfigError, match=r"users.joined is timestamp, or null in training, .* has no such column"):
        diskgnn.evaluate(tmp_path / "run-records", tmp_path / "vectors", progress=False)
    with pytest.raises(ConfigError, match=r"users.joined is timestamp, or null in training, .* has no such column"):
        diskgnn.predict(graphs["vectors"], tmp_path / "no.npy", tmp_path / "run-records", at=START, progress=False)


def test_other_values_of_categories_are_refused(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Codes are as many, and mean something else."""
    packed, run = prepare(graphs["records"], tmp_path / "packed", tables), tmp_path / "run"
    diskgnn.train(packed, epochs=1, checkpoint=run, **MODEL)
    renamed = tables["users"].set_column(1, "city", [[f"new {city}" for city in tables["users"]["city"].to_pylist()]])
    convert(tmp_path / "graph", {**tables, "users": renamed}, keep_columns=True)
    with pytest.raises(ConfigError, match=r"graph has other values of users.city than the model was trained on"):
        diskgnn.predict(tmp_path / "graph", tmp_path / "no.npy", run, at=START, progress=False)
    other = prepare(tmp_path / "graph", tmp_path / "other", tables)
    for apply in (diskgnn.evaluate, lambda *given, **options: diskgnn.predict(other, tmp_path / "no.npy", run)):
        with pytest.raises(ConfigError, match=r"other values of users.city than the model was trained on"):
            apply(run, other, progress=False)


def test_times_in_another_unit_are_refused(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Ages would be counted in days, by a model that learnt them in seconds."""
    packed, run = prepare(graphs["records"], tmp_path / "packed", tables), tmp_path / "run"
    diskgnn.train(packed, epochs=1, checkpoint=run, **MODEL)
    place = tables["events"].schema.get_field_index("at")
    days = pa.array(tables["events"]["at"].cast(pa.int64()).to_numpy() // DAY)
    counted = {**tables, "events": tables["events"].set_column(place, "at", days)}
    convert(tmp_path / "graph", counted, keep_columns=True, encoding_of=graphs["records"])
    with pytest.raises(ConfigError, match="times in no unit, and the model was trained on times in s"):
        diskgnn.predict(tmp_path / "graph", tmp_path / "no.npy", run, at=START // DAY + 90, progress=False)


def test_a_graph_of_later_rows_is_asked_about(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """With one user more, and an event of theirs: the answers of the others are the same bits. Encoded by itself, it is
    refused, with the way out."""
    packed, run = prepare(graphs["records"], tmp_path / "packed", tables, of_user), tmp_path / "run"
    diskgnn.train(packed, epochs=2, checkpoint=run, **MODEL)
    later = START + 100 * DAY
    new = {
        "users": pa.table([[USERS], ["a new city"], [1e3], [["tag 1", "new"]], [later * 10**6]],
                          schema=tables["users"].schema),
        "events": pa.table([[USERS], [later], [50.0]], schema=tables["events"].schema),
    }  # fmt: skip
    more = {name: pa.concat_tables([table, new[name]]) for name, table in tables.items()}
    convert(tmp_path / "alone", more, keep_columns=True)
    with pytest.raises(ConfigError, match="convert --encoding-of GRAPH"):
        diskgnn.predict(tmp_path / "alone", tmp_path / "no.npy", run, at=later, progress=False)
    with pytest.warns(DataWarning, match=r"values of city .*has no code for them: 1 of 301 values, first 'a new city'"):
        convert(tmp_path / "later", more, keep_columns=True, encoding_of=graphs["records"])
    answers = {}
    for name, graph in {"first": graphs["records"], "later": tmp_path / "later"}.items():
        out = tmp_path / f"{name}.npy"
        diskgnn.predict(graph, out, run, nodes=np.arange(USERS), at=later, progress=False)
        answers[name] = np.load(out)
    np.testing.assert_array_equal(answers["first"], answers["later"])
    diskgnn.predict(tmp_path / "later", tmp_path / "new.npy", run, nodes=[USERS], at=later, progress=False)
    assert np.isfinite(np.load(tmp_path / "new.npy")).all()


def test_runs_that_go_on_are_those_that_never_stopped(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """To the bit, with dropout and all kinds of columns, in fresh minibatches as in prepared ones."""
    packed = prepare(graphs["records"], tmp_path / "packed", tables, of_user)
    train = partial(diskgnn.train, epochs=2, seed=4, record_every_batches=3, **{**MODEL, "dropout": 0.3})

    def opened(split: str = "train") -> diskgnn.Loader:
        return diskgnn.Loader(packed, split)

    with opened() as loader, opened("valid") as valid:
        whole = train(loader, valid_source=valid, metrics=tmp_path / "whole.jsonl")
    parts = {"checkpoint": tmp_path / "run", "metrics": tmp_path / "parts.jsonl"}
    with opened() as loader, opened("valid") as valid, pytest.raises(KeyboardInterrupt):
        train(Interrupting(loader, 13), valid_source=valid, **parts)
    with opened() as loader, opened("valid") as valid:
        result = train(loader, valid_source=valid, resume=True, **parts)
    assert result.resumed_from == (1, 3)
    told = [
        [
            [each.get(what) for what in ("loss", "valid_loss", "valid_roc_auc")]
            for each in records(tmp_path / f"{name}.jsonl")
        ]
        for name in ("whole", "parts")
    ]
    assert told[0] == told[1]
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name]), name


def test_fresh_minibatches_have_the_columns_and_times(graphs: dict[str, Path], tmp_path: Path) -> None:
    users, times = seeds()
    target = NodeTarget("users", {"train": users["train"]}, {"train": times["train"]},
                        {"train": np.arange(600) % 2})  # fmt: skip
    drawing = {"fanouts": [3, 2], "batch_size": 64, "target": target, "temporal": "last"}
    with diskgnn.FreshEpochs(graphs["records"], tmp_path / "fresh", cpu_cache="20%", **drawing) as fresh:
        net = named_model(fresh, "relational", hidden=8)
        assert net.takes_times
        assert [each.name for each in net.encoders["users"].columns] == ["joined", "score", "city", "tags"]
        assert diskgnn.train(fresh, epochs=1, **MODEL).epochs[0].loss < 2


def test_times_have_to_be_kept(graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path) -> None:
    """Where minibatches of vectors are drawn by them; those of tables have them. Otherwise there is nothing to
    encode."""
    packed = prepare(graphs["vectors"], tmp_path / "packed", tables, keep_times=False)
    with pytest.raises(ConfigError, match=r"relational takes how long .* prepare again with keep_times=True"):
        diskgnn.train(packed, **MODEL)
    prepare(graphs["vectors"], tmp_path / "kept", tables)
    run = tmp_path / "run"
    diskgnn.train(tmp_path / "kept", epochs=1, checkpoint=run, **MODEL)
    with pytest.raises(ConfigError, match=r"how long before its seed a row of events was.*keep_times=True"):
        diskgnn.evaluate(run, packed, progress=False)
    users = {"train": np.arange(200), "valid": np.arange(200, USERS)}
    labels = {split: of_user(tables, each, each) for split, each in users.items()}
    diskgnn.prepare(graphs["records"], tmp_path / "ignored", temporal="ignore", fanouts=[3, 2], cpu_cache=0,
                    target=NodeTarget("users", users, labels=labels))  # fmt: skip
    unasked = prepare(graphs["records"], tmp_path / "unasked", tables, keep_times=False)
    assert diskgnn.train(unasked, epochs=1, **MODEL).model.takes_times
    result = diskgnn.train(tmp_path / "ignored", epochs=1, checkpoint=tmp_path / "timeless", **MODEL)
    assert not result.model.takes_times
    diskgnn.predict(graphs["records"], tmp_path / "all.npy", tmp_path / "timeless", progress=False)
    assert np.isfinite(np.load(tmp_path / "all.npy")).all()


def test_several_ranks_come_to_the_same_model(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    prepare(graphs["records"], tmp_path / "packed", tables, ranks=2)
    runs = {"run": {"train_source": str(tmp_path / "packed"), "epochs": 2, **MODEL}}
    first, second = in_ranks(2, trained, runs)
    assert first["run"][1:] == second["run"][1:]
    for name, tensor in first["run"][0].items():
        assert torch.equal(tensor, second["run"][0][name]), name
