"""Layers and models on blocks, and what they are called with."""
