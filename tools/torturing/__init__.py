"""What `tools/torture` does to every stage: kills, flipped bits, failing disks, and fuzzing by `tools/fuzz.py`."""
