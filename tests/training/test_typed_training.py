"""Training on typed minibatches: every task learns, is resumed exactly, and comes back from its checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_runs import Interrupting, records
from typed_batches import NODES, TypedSource

from diskgnn.errors import ConfigError
from diskgnn.nn.model_output import model_input
from diskgnn.training.checkpoints import load_checkpoint, load_model, load_task
from diskgnn.training.evaluate import evaluate
from diskgnn.training.link_prediction import PairScores
from diskgnn.training.task import task_of
from diskgnn.training.train import train

KINDS = ["class", "multilabel", "regression", "link"]
METRICS = {"class": "accuracy", "multilabel": "average_precision", "regression": "mae", "link": "mrr"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_learns_and_comes_back(kind, tmp_path):
    valid = TypedSource(kind, first=500)
    result = train(TypedSource(kind), valid_source=valid, hidden=16, dropout=0.0, lr=0.01, epochs=12,
                   checkpoint=tmp_path, metrics=tmp_path / "metrics.jsonl")  # fmt: skip
    assert result.epochs[-1].loss < 0.7 * result.epochs[0].loss
    metric, scores = METRICS[kind], [epoch.score("valid", METRICS[kind]) for epoch in result.epochs]
    best = np.argmin(scores) if kind == "regression" else np.argmax(scores)
    assert result.best_epoch == best
    assert result.scores()[f"valid_{metric}"] == scores[best]
    (end,) = [record for record in records(tmp_path / "metrics.jsonl") if record["event"] == "end"]
    assert end[f"valid_{metric}"] == scores[best]
    again = evaluate(load_model(tmp_path), valid, task=load_task(tmp_path))
    assert again.scores[metric] == scores[best]
    assert again.loss == result.epochs[best].evaluations["valid"].loss


@pytest.mark.parametrize(("kind", "arguments", "trained"), [
    ("class", {"model": "rgat", "heads": 2}, 3), ("regression", {"model": "hgt", "heads": 2, "loss": "l1"}, 6),
    ("link", {"model": "rgcn", "decoder": "distmult", "num_bases": 2}, 3), ("link", {"model": "rgcn"}, 6),
])  # fmt: skip
def test_a_resumed_run_is_the_uninterrupted_run(kind, arguments, trained, tmp_path):
    """Also the embeddings of nodes without features, and the moments of their optimizer."""
    arguments = {"hidden": 8, "epochs": 3, "seed": 5, "lr": 0.02, "record_every_batches": 3, **arguments}
    whole = train(TypedSource(kind), valid_source=TypedSource(kind, first=9), metrics=tmp_path / "whole.jsonl",
                  **arguments)  # fmt: skip
    arguments |= {"valid_source": TypedSource(kind, first=9), "metrics": tmp_path / "parts.jsonl",
                  "checkpoint": tmp_path / "checkpoint"}  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(TypedSource(kind), trained), **arguments)
    assert set(load_checkpoint(tmp_path / "checkpoint")["optimizer"]) == {"dense", "sparse"}
    torch.manual_seed(999)
    result = train(TypedSource(kind), resume=True, **arguments)
    assert result.resumed_from == divmod(trained, 4)
    assert records(tmp_path / "parts.jsonl") == records(tmp_path / "whole.jsonl")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name]), name
    assert any(isinstance(module, nn.Embedding) for module in result.model.modules())


def test_losses_are_those_of_a_plain_loop():
    """Link prediction written out: the decoder is the model's, embeddings have an optimizer of their own."""
    seen = []
    arguments = {"hidden": 8, "dropout": 0.0, "decoder": "mlp", "lr": 0.02, "epochs": 2, "record_every_batches": 1}
    train(TypedSource("link"), callback=seen.append, seed=3, **arguments)
    source, losses = TypedSource("link"), []
    torch.manual_seed(3)
    net = new_model(source, decoder="mlp")
    tables = [module.weight for module in net.modules() if isinstance(module, nn.Embedding)]
    others = [parameter for parameter in net.parameters() if parameter is not tables[0]]
    optimizers = [torch.optim.Adam(others, lr=0.02), torch.optim.SparseAdam(tables, lr=0.02)]
    for epoch in range(2):
        for batch in source.epoch(epoch):
            vectors = net(batch.blocks, model_input(batch))
            scores = net.decoder(vectors["author"][batch.pairs.src], vectors["paper"][batch.pairs.dst])
            loss = F.binary_cross_entropy_with_logits(scores, batch.pairs.label)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
    steps = [record["loss"] for record in seen if record["event"] == "step"]
    np.testing.assert_allclose(steps, losses, rtol=1e-5)


def new_model(source: TypedSource, **arguments) -> nn.Module:
    from diskgnn.nn.model_spec import ModelSpec
    from diskgnn.training.named_models import model_for

    spec = ModelSpec("rgcn", 8, 2, dropout=0.0, **arguments)
    return model_for(spec, source.schema, task_of(source.schema))


class Own(nn.Module):
    """A module of the user's own, of which nobody knows the decoder: papers' and authors' features, mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.paper, self.author = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, blocks, x):
        assert x["place"].dtype == torch.int64  # ids, of the type without features
        counts = {"paper": blocks[-1]["author", "writes", "paper"].num_dst,
                  "author": blocks[-1]["paper", "rev_writes", "author"].num_dst}  # fmt: skip
        return {name: getattr(self, name)(x[name][:number]) for name, number in counts.items()}


@pytest.mark.parametrize("kind", ["class", "link"])
def test_a_module_of_ones_own(kind, tmp_path):
    torch.manual_seed(0)
    result = train(TypedSource(kind), valid_source=TypedSource(kind, first=9), model=Own(), lr=0.02, epochs=6,
                   checkpoint=tmp_path)  # fmt: skip
    assert result.epochs[-1].loss < result.epochs[0].loss
    with pytest.raises(ConfigError, match="your own module Own"):
        load_model(tmp_path)


def test_in_batch_negatives():
    """Edges alone: trained with softmax among each other, evaluated among sampled negatives."""
    result = train(TypedSource("link", negatives=0), valid_source=TypedSource("link", first=9, negatives=10),
                   hidden=16, dropout=0.0, lr=0.01, epochs=10)  # fmt: skip
    scores = [epoch.score("valid", "mrr") for epoch in result.epochs]
    assert result.epochs[-1].loss < result.epochs[0].loss
    assert max(scores) > 0.4  # guessing has 0.27
    with pytest.raises(ConfigError, match="at least 1 negative per edge"):
        train(TypedSource("link", negatives=0), hidden=8, decoder="mlp", epochs=1)


class OddTask:
    """A task of the user's own: papers' first feature should be the mean of the outputs."""

    name, loss_name, metrics, out_channels = "odd", "odd", {"error": False}, 2

    def output(self):
        return "two columns"

    def outputs(self, net, batch):
        return net(batch.blocks, model_input(batch))["paper"].mean(1)

    def accepts(self, outputs, num_seeds):
        return tuple(outputs.shape) == (num_seeds,)

    def loss(self, outputs, batch):
        return (outputs - batch.x["paper"][: len(outputs), 0]).square().mean()

    def tally(self, device):
        raise AssertionError("nobody evaluates")


def test_a_task_of_ones_own(tmp_path):
    result = train(TypedSource(), task=OddTask(), hidden=8, dropout=0.0, lr=0.02, epochs=5, checkpoint=tmp_path)
    assert result.epochs[-1].loss < result.epochs[0].loss
    with pytest.raises(ConfigError, match="a task of your own, 'odd'"):
        load_task(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "link"}, "expected classification, which the minibatches were sampled for, found link"),
        ({"model": "gat"}, "expected one of rgcn, rgat, hgt"),
        ({"embedding_memory": "100"}, "6 nodes without features"),
        ({"loss": "softmax"}, "expected cross-entropy"),
        ({"num_layers": 3}, "3 layers, .* 2 fanouts"),
        ({"valid_source": TypedSource("regression")}, "valid_source: expected target kind=class"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(arguments, message):
    with pytest.raises(ConfigError, match=message):
        train(TypedSource(), epochs=1, **arguments)


def test_embeddings_that_no_minibatch_had_stay_as_they_were():
    source = TypedSource()
    torch.manual_seed(2)
    net = new_model(source)
    (table,) = [module for module in net.modules() if isinstance(module, nn.Embedding)]
    before, first = table.weight.detach().clone(), next(source.epoch(0))
    seen = first.input_nodes["place"]
    assert 0 < len(seen) < NODES["place"]

    def stop(record):
        if record["event"] == "step":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(TypedSource(), model=net, epochs=1, record_every_batches=1, callback=stop)
    moved = (table.weight.detach() != before).any(1)
    assert set(moved.nonzero().flatten().tolist()) <= set(seen.tolist())
    assert moved.any()


def test_pair_scores_are_the_outputs_of_links():
    source = TypedSource("link")
    outputs = task_of(source.schema).outputs(new_model(source), next(source.epoch(0)))
    assert isinstance(outputs, PairScores)
    assert (tuple(outputs.edges.shape), tuple(outputs.negatives.shape)) == ((8,), (8, 2))
