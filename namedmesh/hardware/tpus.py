"""TPUs by generation, as Google publishes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from namedmesh.errors.errors import NamedMeshError, did_you_mean
from namedmesh.hardware.slice_links import TorusSlice
from namedmesh.hardware.target import GENERATIONS, Target


@dataclass(frozen=True)
class Chip:
    """What is published of one chip.

    Attributes:
        tera: TFLOP/s of products in bfloat16.
        memory: GiB of HBM.
        bandwidth: GB/s of HBM.
        link: GB/s of one link, in one direction.
        across: GB/s of a chip's share of its host's links to other slices.
    """

    tera: float
    memory: float
    bandwidth: float
    link: float
    across: float


# FLOP/s and HBM: https://cloud.google.com/tpu/docs/v3 and the pages of v4, v5e, v5p and v6e.
# Links: of v5e, v5p and v6e those pages have the bandwidth of a chip in both directions; of v3 and
# v4 that of all-reduces in a Pod, which divided by its chips and their links gives 83 and 45 GB/s
# (and the other page's figure for v5e and v6e). The scaling book (https://jax-ml.github.io/
# scaling-book/tpus) has 100 and 45. Of v2 there is no such page any more: 180 TFLOP/s of four chips
# (Google, 2017), 700 GB/s and half of v3's HBM (Hot Chips 2020); its links, 496 Gbit/s in Jouppi et
# al., "A Domain-Specific Supercomputer for Training Deep Neural Networks", are from memory.
# Between slices: of v5e and v6e those pages have 6.4 and 25.6 Tbit/s for the 256 chips of a Pod; of
# the others a host's ports are from memory, 100 Gbit/s for four chips of v2 and v3, and 200 for
# four of v4 and v5p.
_CHIPS = {
    "v2": Chip(45, 16, 700, 62, 3.125),
    "v3": Chip(123, 32, 900, 83, 3.125),
    "v4": Chip(275, 32, 1200, 45, 6.25),
    "v5e": Chip(197, 16, 819, 50, 3.125),
    "v5p": Chip(459, 95, 2765, 100, 6.25),
    "v6e": Chip(918, 32, 1638, 100, 12.5),
}
_PASSES = {"default": 1, "high": 3, "highest": 6}  # of bfloat16 products, for one of float32


def find_tpu(text: str) -> dict[str, Any]:
    """Find a generation of TPUs, or a slice of one."""
    name, colon, _ = text.partition(":")
    generation = name.removeprefix("tpu-")
    if generation not in _CHIPS:
        known = [f"tpu-{one}" for one in _CHIPS]
        raise NamedMeshError(f"there is no TPU {name!r}", fix=did_you_mean(name, known))
    target = Target.parse(text) if colon else None
    if target and target.slices > 1:
        raise NamedMeshError(
            f"{text!r} is hardware of {target.slices} slices, which the mesh says",
            fix=f"write '{target.one_slice}', and slices={target.slices} in the mesh",
        )
    chip, cores = _CHIPS[generation], GENERATIONS[generation].cores
    tera = chip.tera * 1e12 / cores
    return dict(
        name=text,
        flops={
            "bfloat16": tera,
            "float32": tera,
            **{f"float32 {precision}": tera / passes for precision, passes in _PASSES.items()},
        },
        # Eight by 128 lanes in each of a few units, against two to eight 128 by 128 arrays.
        vector_flops=tera / 32,
        memory_bytes=int(chip.memory * 2**30 / cores),
        memory_bandwidth=chip.bandwidth * 1e9 / cores,
        # What is not published is assumed: latencies, and the shares that programs reach.
        network=TorusSlice(
            generation,
            target.shape if target else None,
            chip.link * 1e9,
            latency=1e-6,
            start=2e-6,
            across=chip.across * 1e9,
            across_latency=2e-5,
        ),
        product_share=0.85,
        memory_share=0.85,
        start=1e-6,
        fuses_products=True,
        rounds_products=True,
        repeats="cheap",
    )
