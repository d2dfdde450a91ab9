"""The formats of all artifacts: what their files and manifests are called and hold, opened with checks."""
