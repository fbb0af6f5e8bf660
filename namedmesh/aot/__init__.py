"""Answers for absent machines: Artifacts compiled for devices that are not here.

Names are served from their files when they are first asked for, so that jax is imported when
something is compiled.
"""

from namedmesh.lazy import serve_names

__getattr__, __dir__ = serve_names(__name__, __file__)
