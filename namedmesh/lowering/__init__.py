"""Lowering: from a plan to StableHLO, by TensorFlow."""
