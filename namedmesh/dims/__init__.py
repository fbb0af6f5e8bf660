"""Dimensions, meshes, layouts, and the algebra of shardings."""
