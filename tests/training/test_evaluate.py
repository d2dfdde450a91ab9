"""Evaluation against NumPy."""

import numpy as np
import pytest
import torch
from training_runs import CLASSES, WIDTH, Net, make_net

import diskgnn
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.nn.block_models import make_model
from diskgnn.training.evaluate import evaluate


def test_evaluation_is_what_numpy_computes(sources, graph):
    net = make_net()
    net.train()
    outputs = []
    with torch.no_grad():
        net.eval()
        for batch in sources["test"].epoch(0):
            outputs.append(net(batch.blocks, batch.x).double().numpy())
        net.train()
    logits, labels = np.concatenate(outputs), graph.labels[graph.splits["test"]]
    result = evaluate(net, sources["test"])
    assert net.training
    assert result.num_seeds == len(labels) == 90
    assert result.accuracy == np.mean(logits.argmax(1) == labels)
    log_sums = np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(result.loss, np.mean(log_sums - logits[np.arange(90), labels]), rtol=1e-6)
    assert evaluate(net, sources["test"]).loss == result.loss


@pytest.mark.parametrize("layers", [1, 3])
def test_evaluation_refuses_a_model_of_another_depth(sources, layers):
    for model in (Net(layers=layers), make_model("sage", WIDTH, 8, CLASSES, layers)):
        with pytest.raises(ConfigError, match="2 layers deep"):
            evaluate(model, sources["test"])


def test_arguments_in_another_order(graph, tmp_path):
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[2, 2], batch_size=32, cpu_cache=0)
    diskgnn.train(tmp_path / "packed", hidden=4, epochs=1, checkpoint=tmp_path / "run")
    with pytest.raises(
        ArtifactError, match=r"as `checkpoint`, found .*packed, .* diskgnn.packed: are the arguments in"
    ):
        evaluate(tmp_path / "packed", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"source: expected a directory that .* or minibatches .*, found Graph\("):
        evaluate(tmp_path / "run", graph)
