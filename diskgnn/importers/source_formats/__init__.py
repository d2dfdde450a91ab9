"""The formats of others: a module for each, and the registry that knows them by name."""
