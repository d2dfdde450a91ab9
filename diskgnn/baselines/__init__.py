"""Other ways to feed a GNN, each a `BatchSource`: model, optimizer and metrics are the same code for all."""
