"""The user's own ids of nodes, which become dense ones within a memory budget."""
