"""Answers for absent machines: Artifacts compiled for devices that are not here."""

from namedmesh.lazy import serve_names

__getattr__, __dir__ = serve_names(__name__, __file__)
