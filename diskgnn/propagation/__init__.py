"""Whole neighbourhoods, computed once: hops of features for models that average first and learn afterwards."""
