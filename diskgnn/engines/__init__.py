"""Engines do the work of stages: in this process, or by workers of a cluster."""
