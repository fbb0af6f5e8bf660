"""TPUs by generation, as Google publishes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from namedmesh.aot.target import GENERATIONS, Target
from namedmesh.dims.errors import NamedMeshError, did_you_mean
from namedmesh.estimates.slice_links import TorusSlice


@dataclass(frozen=True)
class Chip:
    """What is published of one chip.

    Attributes:
        tera: TFLOP/s of products in bfloat16.
        memory: GiB of HBM.
        bandwidth: GB/s of HBM.
        link: GB/s of one link, in one direction.
    """

    tera: float
    memory: float
    bandwidth: float
    link: float


# https://cloud.google.com/tpu/docs/v3 and the pages beside it; those give the links of a chip
# together. Links of v2 and v3: Jouppi et al., "A Domain-Specific Supercomputer for Training Deep
# Neural Networks" (496 and 656 Gbit/s).
_CHIPS = {
    "v2": Chip(46, 16, 700, 62),
    "v3": Chip(123, 32, 900, 82),
    "v4": Chip(275, 32, 1200, 50),
    "v5e": Chip(197, 16, 819, 50),
    "v5p": Chip(459, 95, 2765, 100),
    "v6e": Chip(918, 32, 1638, 100),
}
_PASSES = {"default": 1, "high": 3, "highest": 6}  # of bfloat16 products, for one of float32


def find_tpu(text: str) -> dict[str, Any]:
    """Finds a generation of TPUs, or a slice of one.

    Args:
        text: Such as `tpu-v3` or `tpu-v3:4x4`.

    Returns:
        The fields of a Hardware, of which a device is a core.

    Raises:
        NamedMeshError: There is no such generation, or it has no such slice.

    Example:
        >>> find_tpu("tpu-v3")["flops"]["bfloat16"]
        61500000000000.0
    """
    name, colon, _ = text.partition(":")
    generation = name.removeprefix("tpu-")
    if generation not in _CHIPS:
        known = [f"tpu-{one}" for one in _CHIPS]
        raise NamedMeshError(f"there is no TPU {name!r}", fix=did_you_mean(name, known))
    shape = Target.parse(text).shape if colon else None
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
        network=TorusSlice(generation, shape, chip.link * 1e9, latency=1e-6, start=2e-6),
        product_share=0.85,
        memory_share=0.85,
        start=1e-6,
        fuses_products=True,
    )
