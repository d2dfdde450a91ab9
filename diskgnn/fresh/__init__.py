"""Windows of minibatches that are prepared while one of them trains."""
