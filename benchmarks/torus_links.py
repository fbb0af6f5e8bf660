"""The bytes of a collective over the busiest link of a TPU v3 torus: a model of its time.

Counted are bytes, not messages: the time is that of a collective large enough for latency not to
matter.
"""

from __future__ import annotations

import math

import namedmesh as nm
from namedmesh.hardware.chips import TPUS
from namedmesh.hardware.links import TorusSlice
from namedmesh.hardware.topology import Target

GENERATION = "v3"
SQUARES = (32, 128, 512)  # cores of slices as wide as long whose links do not close to rings
LINK_BYTES_PER_SECOND = 656e9 / 8  # assumed of a link; scales every estimate alike


def slice_of(partitions: int) -> Target:
    """Return the TPU v3 slice of so many cores (a power of two) nearest to a square."""
    chips = partitions // TPUS[GENERATION].devices
    width = 2 ** (int(math.log2(chips)) // 2)
    return Target("tpu", GENERATION, (width, chips // width))


def estimate_link_bytes(kind: str, size: int, partitions: int) -> float:
    """Return the bytes over one direction of the busiest link while a collective runs.

    Args:
        kind: Such as `AllReduce`, over all partitions; a CollectivePermute goes from each to the
            next, in the order in which devices are listed.
        size: The bytes of a device's buffer, on its larger side.
        partitions: How many cores the slice has.

    Returns:
        The bytes; 0 where everything stays on a chip.
    """
    if partitions <= TPUS[GENERATION].devices:
        return 0.0
    network = TorusSlice(
        GENERATION, slice_of(partitions).shape, LINK_BYTES_PER_SECOND, latency=0.0, start=0.0
    )
    return network.link_bytes(kind, size, ["all"], nm.Mesh(all=partitions))
