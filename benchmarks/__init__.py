"""What namedmesh costs and gains, measured: each module is a command that writes JSON."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before jax, which some benchmarks import first
