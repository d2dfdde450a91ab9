"""What lies on disk: the formats of all artifacts, written whole or not at all, read with checks."""
