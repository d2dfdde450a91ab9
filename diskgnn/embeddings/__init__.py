"""Vectors of nodes that are trained where they lie: in files on disk."""
