"""Finds what the machine offers, and how much of it may be spent."""
