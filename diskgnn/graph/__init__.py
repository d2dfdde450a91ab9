"""The graph directory: topology, features, labels and splits. It is made from edges, or generated."""
