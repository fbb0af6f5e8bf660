"""Hardware of round numbers."""

import dataclasses

import namedmesh as nm
from namedmesh.hardware.links import Nodes

ROUND = nm.Hardware(
    "round",
    {"float32": 1e9, "bfloat16": 2e9},
    vector_flops=1e8,
    memory_bytes=2**30,
    memory_bandwidth=1e6,
    network=Nodes(8, inside=1e6, across=1e5, inside_latency=0.0, across_latency=0.0, start=0.0),
)
FUSING = dataclasses.replace(ROUND, fuses_products=True)
