"""Kernels of backends, put in place of what named ops compute when an Artifact is loaded."""
