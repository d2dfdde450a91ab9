"""One self-contained HTML page from a `Comparison`."""
