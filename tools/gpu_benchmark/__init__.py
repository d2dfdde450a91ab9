"""Loading and training on a GPU, against the disk's rate and computing alone; `tools/gpu_bench` runs it."""
