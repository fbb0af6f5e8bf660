"""Train steps on one GPU, by namedmesh and by hand in JAX: time, memory, and where time goes."""
