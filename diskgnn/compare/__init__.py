"""Every loader on the same graph, disk and memory: `diskgnn compare`."""
