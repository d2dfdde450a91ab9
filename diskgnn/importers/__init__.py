"""Other formats to a graph directory, within a memory budget."""
