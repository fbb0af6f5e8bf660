"""Measurements of namedmesh: each module is a command that writes JSON."""

import os

# Before jax, which some benchmarks import first.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
