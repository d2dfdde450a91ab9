"""Minibatches, which every loader yields, and `BatchSource`, which the trainer asks for them."""
