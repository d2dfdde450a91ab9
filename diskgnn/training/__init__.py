"""Models, the training loop, evaluation, checkpoints and metrics, over any source of minibatches."""
