"""Sampling and packing in one call, and what that would cost."""
