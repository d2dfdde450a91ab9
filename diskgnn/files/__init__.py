"""Bytes of files: read with checks, locked, claimed of the disk; who may do what in a folder; named faults."""
