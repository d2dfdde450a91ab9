"""Losses and scores of every task against scikit-learn, torch's own losses and brute force."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn import metrics
from torch import nn
from torch.nn import functional as F

from diskgnn.batches.blocks import Block, Pairs
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.nn.decoders import DistMult, DotProduct, MLPDecoder, make_decoder
from diskgnn.specs.schema import ONE_EDGE_TYPE, SourceSchema, one_type_schema
from diskgnn.training import node_scores
from diskgnn.training.link_prediction import LinkPrediction, PairScores, edge_ranks, pair_scores
from diskgnn.training.node_tasks import MultiLabel, NodeClassification, Regression
from diskgnn.training.task import saved_task, task_of

CPU = torch.device("cpu")


class Rows(nn.Module):
    """A model that returns its input."""

    def forward(self, blocks, x):
        return x


def minibatch(x: torch.Tensor, y: torch.Tensor, pairs: Pairs | None = None) -> MiniBatch:
    block = Block(torch.zeros(len(x) + 1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), len(x))
    return MiniBatch(x, y, (block,), torch.arange(len(x)), 0, 0, pairs=pairs)


def tallied(task, x, y, parts=3):
    """Loss and scores of rows that come in several minibatches."""
    tally = task.tally(CPU)
    for rows, labels in zip(torch.tensor_split(x, parts), torch.tensor_split(y, parts), strict=True):
        batch = minibatch(rows, labels)
        tally.add(task.outputs(Rows(), batch), batch)
    return tally.loss(), tally.scores()


@pytest.mark.parametrize("ties", [False, True])
def test_multi_label_is_what_scikit_learn_computes(ties):
    rng = np.random.default_rng(0)
    y = (rng.random((200, 5)) < [0.5, 0.1, 0.9, 0.02, 0.0]).astype(np.uint8)  # nobody has the last label
    logits = rng.normal(size=y.shape) + y
    logits = (np.round(logits) if ties else logits).astype(np.float32)
    x, labels = torch.from_numpy(logits), torch.from_numpy(y)
    task = MultiLabel(5)
    loss, scores = tallied(task, x, labels)
    assert loss == pytest.approx(F.binary_cross_entropy_with_logits(x.double(), labels.double()).item())
    assert task.loss(x, minibatch(x, labels)).item() == pytest.approx(loss, rel=1e-5)
    known = slice(0, 4)
    assert scores["micro_f1"] == pytest.approx(metrics.f1_score(y, logits > 0, average="micro"))
    expected = metrics.average_precision_score(y[:, known], logits[:, known])
    assert scores["average_precision"] == pytest.approx(expected)
    assert scores["roc_auc"] == pytest.approx(metrics.roc_auc_score(y[:, known], logits[:, known]))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("columns", [2, 3])  # a model may have more than there are classes
def test_two_classes_have_the_curves_that_scikit_learn_computes(ties, columns):
    rng = np.random.default_rng(3)
    y = (rng.random(301) < 0.2).astype(np.int64)
    logits = rng.normal(size=(301, columns)) + np.eye(columns)[y]
    logits = (np.round(logits) if ties else logits).astype(np.float32)
    _, scores = tallied(NodeClassification(2), torch.from_numpy(logits), torch.from_numpy(y), parts=4)
    odds = logits[:, 1].astype(np.float64) - logits[:, 0]
    assert scores["accuracy"] == metrics.accuracy_score(y, logits.argmax(1))
    assert scores["average_precision"] == pytest.approx(metrics.average_precision_score(y, odds), rel=1e-12)
    assert scores["roc_auc"] == pytest.approx(metrics.roc_auc_score(y, odds), rel=1e-12)
    positive, negative = rankdata(odds)[y == 1], (y == 0).sum()  # and by Mann and Whitney's U
    u = positive.sum() - len(positive) * (len(positive) + 1) / 2
    assert scores["roc_auc"] == pytest.approx(u / (len(positive) * negative), rel=1e-12)


def test_curves_of_few_seeds_by_hand():
    def scores(odds, y):
        x = torch.tensor([[0.0, each] for each in odds])
        return tallied(NodeClassification(2), x, torch.tensor(y), parts=1)[1]

    found = scores([3.0, 2.0, 2.0, 1.0], [1, 0, 1, 0])  # precision 1 at half of recall, 2/3 at all; 3.5 of 4 pairs
    assert found == {"accuracy": 0.5, "average_precision": pytest.approx(1 / 2 + 1 / 3), "roc_auc": 3.5 / 4}
    assert scores([1.0, -1.0], [1, 1]) == {"accuracy": 0.5}, "there is no curve without both classes"
    diverged = scores([float("nan")] * 4, [0, 1, 0, 1])
    assert (diverged["average_precision"], diverged["roc_auc"]) == (0.5, 0.5), "as if all were alike, in any order"
    assert scores([float("inf"), float("inf"), 0.0], [0, 1, 0])["roc_auc"] == 0.75


@pytest.mark.parametrize(("task", "width"), [(NodeClassification(2), 2), (MultiLabel(3), 3)])
def test_curves_of_several_tallies_are_those_of_one(task, width):
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.normal(size=(40, width)).astype(np.float32).round(1))
    y = torch.from_numpy(rng.integers(0, 2, (40, width) if width == 3 else 40))
    tallies = [task.tally(CPU) for _ in range(3)]
    for tally, rows, labels in zip(tallies, torch.tensor_split(x, 3), torch.tensor_split(y, 3), strict=True):
        tally.add(rows, minibatch(rows, labels))
    first, *others = (pickle.loads(pickle.dumps(each)) for each in tallies)
    for other in others:
        first.merge(other)
    loss, scores = tallied(task, x, y, parts=1)
    assert (first.num_seeds, first.scores()) == (40, scores)
    assert first.loss() == pytest.approx(loss)


@pytest.mark.parametrize(("task", "width", "seed_bytes"), [(NodeClassification(2), 2, 9), (MultiLabel(3), 3, 15)])
@pytest.mark.parametrize("parts", [1, 2], ids=["of one", "of two together"])
def test_too_many_logits_cost_the_curves_alone(monkeypatch, task, width, seed_bytes, parts):
    """10 seeds; two tallies of 5 have room each, and none together."""
    x, y = torch.randn(10, width), torch.tensor([[0] * width, [1] * width] * 5)
    y = y if width == 3 else y[:, 0]
    loss, whole = tallied(task, x, y, parts=1)
    monkeypatch.setattr(node_scores, "MOST_LOGIT_BYTES", 10 * seed_bytes - 1)
    tallies = [task.tally(CPU) for _ in range(parts)]

    def count() -> None:
        for tally, rows, labels in zip(tallies, x.chunk(parts), y.chunk(parts), strict=True):
            tally.add(rows, minibatch(rows, labels))
        for other in tallies[1:]:
            tallies[0].merge(other)
        tallies[0].add(x[:0], minibatch(x[:0], y[:0]))

    with pytest.warns(DataWarning, match="ROC AUC are left out") as warned:
        count()
    assert len(warned) == 1
    assert tallies[0].loss() == pytest.approx(loss)
    assert tallies[0].scores() == {name: whole[name] for name in whole if name in ("accuracy", "micro_f1")}


@pytest.mark.parametrize("loss_name", ["mse", "l1"])
@pytest.mark.parametrize("columns", [1, 3])
def test_regression_is_what_scikit_learn_computes(loss_name, columns):
    rng = np.random.default_rng(1)
    y = (rng.normal(size=(100, columns)) * 3 + 1000).astype(np.float32)  # far from 0, where squares lose digits
    x = (y + rng.normal(size=y.shape)).astype(np.float32)
    labels = torch.from_numpy(y if columns > 1 else y[:, 0])
    task = Regression(columns, loss_name)
    loss, scores = tallied(task, torch.from_numpy(x), labels)
    of_loss = metrics.mean_squared_error if loss_name == "mse" else metrics.mean_absolute_error
    assert loss == pytest.approx(of_loss(y, x), rel=1e-6)
    assert task.loss(torch.from_numpy(x), minibatch(torch.from_numpy(x), labels)).item() == pytest.approx(loss, 1e-4)
    assert scores["mae"] == pytest.approx(metrics.mean_absolute_error(y, x), rel=1e-6)
    assert scores["rmse"] == pytest.approx(np.sqrt(metrics.mean_squared_error(y, x)), rel=1e-6)
    assert scores["r2"] == pytest.approx(metrics.r2_score(y, x), rel=1e-5)


def test_numbers_that_are_not_known_do_not_count():
    y = torch.tensor([[1.0, float("nan")], [3.0, 5.0]])
    x = torch.tensor([[2.0, 100.0], [3.0, 7.0]], requires_grad=True)
    task = Regression(2)
    loss = task.loss(x, minibatch(x, y))
    assert loss.item() == pytest.approx((1 + 0 + 4) / 3)
    loss.backward()
    assert x.grad.tolist() == [[pytest.approx(2 / 3), 0.0], [0.0, pytest.approx(4 / 3)]]
    assert tallied(task, x.detach(), y, parts=1)[1]["mae"] == pytest.approx(1.0)


def test_seeds_without_a_class_are_named_in_training():
    task, batch = NodeClassification(3), minibatch(torch.randn(4, 3), torch.tensor([0, -1, 2, -1]))
    with pytest.raises(InputError, match="found none of 2 of the 4 seeds of epoch 0, minibatch 0"):
        task.loss(task.outputs(Rows(), batch), batch)


def test_classification_is_cross_entropy_and_accuracy():
    x, y = torch.randn(50, 4), torch.randint(0, 4, (50,))
    loss, scores = tallied(NodeClassification(4), x, y)
    assert loss == pytest.approx(F.cross_entropy(x, y).item(), rel=1e-5)
    assert scores == {"accuracy": metrics.accuracy_score(y, x.argmax(1))}


# Links


def pairs_of(edges: list[tuple[int, int]], negatives: list[list[tuple[int, int]]]) -> Pairs:
    """Edges first, then the negatives of each edge in turn."""
    both = edges + [pair for each in negatives for pair in each]
    label = torch.tensor([1.0] * len(edges) + [0.0] * (len(both) - len(edges)))
    return Pairs(torch.tensor([s for s, _ in both]), torch.tensor([d for _, d in both]), label)


def ogb_mrr(edges: np.ndarray, negatives: np.ndarray) -> dict[str, float]:
    """As `ogb.linkproppred.Evaluator._eval_mrr` has it, one edge at a time."""
    ranks = []
    for score, others in zip(edges, negatives, strict=True):
        optimistic, pessimistic = sum(others > score), sum(others >= score)
        ranks.append(0.5 * (optimistic + pessimistic) + 1)
    found = np.array(ranks)
    return {"mrr": np.mean(1 / found), **{f"hits@{k}": np.mean(found <= k) for k in (1, 3, 10)}}


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 20))
def test_ranks_are_ogbs(seed, num_edges, num_negatives):
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, 5, num_edges).astype(np.float32)  # with ties
    negatives = rng.integers(0, 5, (num_edges, num_negatives)).astype(np.float32)
    task = LinkPrediction(ONE_EDGE_TYPE)
    tally = task.tally(CPU)
    for part in np.array_split(np.arange(num_edges), 2):
        if len(part):
            tally.add(PairScores(torch.from_numpy(edges[part]), torch.from_numpy(negatives[part])), None)
    assert tally.scores() == pytest.approx(ogb_mrr(edges, negatives))
    assert tally.num_seeds == num_edges


def test_a_score_that_is_no_number_does_not_rank_first():
    found = PairScores(torch.tensor([float("nan")]), torch.zeros(1, 9))
    assert edge_ranks(found).tolist() == [5.5]


def test_pairs_are_scored_and_lowered_as_torch_does():
    x = torch.randn(6, 4)
    pairs = pairs_of([(0, 1), (2, 3)], [[(0, 4), (0, 5)], [(2, 0), (2, 1)]])
    scores = (x[pairs.src] * x[pairs.dst]).sum(1)
    batch = minibatch(x, pairs.label, pairs)
    task = LinkPrediction(ONE_EDGE_TYPE, "bce")
    outputs = task.outputs(Rows(), batch)
    torch.testing.assert_close(outputs.edges, scores[:2])
    torch.testing.assert_close(outputs.negatives, scores[2:].view(2, 2))
    torch.testing.assert_close(task.loss(outputs, batch), F.binary_cross_entropy_with_logits(scores, pairs.label))
    softmax = LinkPrediction(ONE_EDGE_TYPE, "softmax")
    rows = torch.cat([scores[:2, None], scores[2:].view(2, 2)], 1)
    expected = F.cross_entropy(rows, torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(softmax.loss(outputs, batch), expected)
    auto = LinkPrediction(ONE_EDGE_TYPE)
    assert auto.loss(outputs, batch) == task.loss(outputs, batch)


@pytest.mark.parametrize("decoder", [DotProduct(), DistMult(4)])
def test_edges_alone_are_their_own_negatives(decoder):
    nn.init.normal_(next(decoder.parameters(), torch.empty(0)))
    x = torch.randn(6, 4)
    edges = [(0, 1), (0, 2), (3, 1), (4, 5)]
    found = pair_scores(decoder, x, x, pairs_of(edges, []))
    for i, (source, destination) in enumerate(edges):
        torch.testing.assert_close(found.edges[i], decoder(x[source], x[destination]))
        for j, (_, other) in enumerate(edges):
            assert found.counted[i, j] == ((source, other) not in edges)
            torch.testing.assert_close(found.negatives[i, j], decoder(x[source], x[other]))
    losses = []
    for i in range(4):
        against = [found.negatives[i, j] for j in range(4) if found.counted[i, j]]
        losses.append(F.cross_entropy(torch.stack([found.edges[i], *against])[None], torch.tensor([0])))
    task = LinkPrediction(ONE_EDGE_TYPE)
    torch.testing.assert_close(task.loss(found, None), torch.stack(losses).mean())
    edge, negatives = found.edges, found.negatives[found.counted]
    flat = F.binary_cross_entropy_with_logits(
        torch.cat([edge, negatives]), torch.cat([torch.ones(4), torch.zeros(len(negatives))])
    )
    torch.testing.assert_close(LinkPrediction(ONE_EDGE_TYPE, "bce").loss(found, None), flat)


def test_the_mlp_sees_directions_and_needs_sampled_negatives():
    decoder, x = make_decoder("mlp", 4), torch.randn(3, 4)
    assert isinstance(decoder, MLPDecoder)
    hidden = torch.cat([x[0], x[1]]) @ torch.cat([decoder.source.weight, decoder.destination.weight], 1).T
    expected = decoder.out(torch.relu(hidden + decoder.source.bias))[0]
    torch.testing.assert_close(decoder(x[0], x[1]), expected)
    assert decoder(x[0], x[1]) != decoder(x[1], x[0])
    with pytest.raises(ConfigError, match="at least 1 negative per edge"):
        pair_scores(decoder, x, x, pairs_of([(0, 1), (1, 2)], []))


# Which task


def schema_for(kind: str, outputs: int = 3) -> SourceSchema:
    schema = one_type_schema(10, 4, outputs)
    target = ONE_EDGE_TYPE if kind == "link" else schema.target
    return SourceSchema(schema.node_types, schema.edge_types, target, kind, outputs)


@pytest.mark.parametrize(
    ("kind", "name", "loss", "expected"),
    [("class", "classification", "cross-entropy", NodeClassification), ("multilabel", "multilabel", "bce", MultiLabel),
     ("regression", "regression", "l1", Regression), ("link", "link", "softmax", LinkPrediction)],
)  # fmt: skip
def test_the_task_is_what_the_minibatches_are_for(kind, name, loss, expected):
    schema = schema_for(kind)
    for task in (task_of(schema), task_of(schema, name), task_of(schema, name, loss)):
        assert type(task) is expected
        saved = saved_task({"schema": vars(schema), "task": task.name, "loss": task.loss_name})
        assert (type(saved), saved.loss_name) == (expected, task.loss_name)
    other = "link" if kind != "link" else "regression"
    with pytest.raises(ConfigError, match=f"task: expected {name}, .* found {other}"):
        task_of(schema, other)
    with pytest.raises(ConfigError, match="loss: expected"):
        task_of(schema, loss="nonsense")
    with pytest.raises(ConfigError, match="task: expected one of"):
        task_of(schema, "clustering")
