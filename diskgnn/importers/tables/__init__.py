"""Tables of nodes and edges: Parquet, CSV, in memory, one file or a folder of parts."""
