"""Artifacts: the file, and the StableHLO in it."""
