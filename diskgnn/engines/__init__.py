"""Where the work of stages is done: in this process, or by workers of a cluster."""
