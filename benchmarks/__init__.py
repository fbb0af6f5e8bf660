"""What namedmesh costs and gains, measured: each module is a command that writes JSON."""
