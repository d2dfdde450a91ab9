"""What `tools/bench` measures: each stage as a ratio to a limit or a peer, in the same run."""
