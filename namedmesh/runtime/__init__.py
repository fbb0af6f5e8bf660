"""Running programs: needs numpy and jax, not TensorFlow; jax is imported on first use."""

from namedmesh.lazy import serve_names

__getattr__, __dir__ = serve_names(__name__, __file__)
