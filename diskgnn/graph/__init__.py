"""The graph directory: topology, features, labels, splits; made from edges, or made up."""
