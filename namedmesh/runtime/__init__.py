"""How a program runs: artifacts, devices, executables, and the audit.

Needs numpy and jax, not TensorFlow. Names are served from their files when they are first asked
for, so that jax is imported when something is compiled.
"""

from namedmesh.lazy import serve_names

__getattr__, __dir__ = serve_names(__name__, __file__)
