"""Rows of all nodes: layer by layer over the whole graph, and predictions for some of them."""
