"""What is known of systems: how their kernels, recomputation and schedules differ from ours.

A system's constant is the time that its ops take as a multiple of what `nm.cost` expects of the
chip: the efficiency of other people's kernels, the power limits of their boards, stragglers. It is
fitted on the first third of the table's rows of each system on each chip, and on no other;
constants.json has them with the rows they come from.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import statistics
from functools import cache
from typing import Any

from benchmarks.times.table import Step
from namedmesh.hardware.chips import CHIPS
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.links import TorusSlice

# Of the paper's steps nothing is fitted: its kernels are what `nm.cost` describes of a TPU, whose
# share of the peak, 85%, is the paper's.
UNFITTED = ("GShard",)
CONSTANTS = pathlib.Path(__file__).parent / "constants.json"
# The share of peak FLOP/s that attention kernels reach, forward and backward together, counting a
# causal half: FlashAttention-2 and -3 on A100 and H100 (arXiv 2307.08691, 2407.08608), from memory;
# others by analogy.
FLASH = {"a100": 0.55, "h100": 0.45, "h200": 0.45, "b200": 0.4}
# Of 8-bit products' peak systems reach less than of bfloat16's: operands are quantised beside them.
NARROW = 0.75
# The power of boards; products of one with a limit run at the root of its share, since power grows
# with the square of a clock and more.
WATTS = {"a100": 400, "h100": 700, "h200": 700, "b200": 1000}
# Bytes a second that a chip sends to other slices: jax over TCP, and not what its ports could.
# Fitted on the two first rows of v6e, of which one is on two slices.
DCN = 0.41e9
# torchtitan's selective recomputation keeps the results of every second product.
HALF_OF_PRODUCTS = ("torchtitan",)


def describe_hardware(step: Step) -> Hardware:
    """Return the chip as a system uses it, its products and attention kernels."""
    chip, hardware = CHIPS[step.chip], Hardware.parse(step.chip)
    flops = dict(hardware.flops)
    if step.watts and step.chip in WATTS:
        slower = min(1.0, math.sqrt(step.watts / WATTS[step.chip]))
        flops = {dtype: rate * slower for dtype, rate in flops.items()}
    plain = flops["bfloat16"]
    if step.dtype in ("fp8", "int8") and chip.narrow_tera:
        flops["bfloat16"] = plain * chip.narrow_tera / chip.tera["bfloat16"] * NARROW
    network = hardware.network
    if isinstance(network, TorusSlice):
        network = dataclasses.replace(network, across=DCN)
    flash = FLASH.get(step.chip, 0.5)
    return dataclasses.replace(
        hardware,
        flops=flops,
        memory_bandwidth=step.bandwidth or hardware.memory_bandwidth,
        network=network,
        kernels=step.flash,
        # A kernel's FLOPs count all pairs, of which causal attention computes half.
        kernel_product_share=2 * flash * plain / flops["bfloat16"],
        kernel_share=1e3,
        overlap=0.9 if step.async_tensor else hardware.overlap,
        product_overlap=max(hardware.product_overlap, 0.5 if step.async_tensor else 0.0),
    )


@cache
def read_constants() -> dict[str, Any]:
    """Return the fitted constants by system and chip."""
    return json.loads(CONSTANTS.read_text()) if CONSTANTS.exists() else {}


def constant_of(step: Step) -> float:
    """Return a system's constant: on that chip, else its mean, else the chip's, else one."""
    known = read_constants()
    if step.system in UNFITTED:
        return 1.0
    exact = known.get(f"{step.system} {step.chip}")
    if exact:
        return exact["constant"]
    for position, word in ((0, step.system), (1, step.chip)):
        like = [one["constant"] for key, one in known.items() if key.split(" ")[position] == word]
        if like:
            return statistics.geometric_mean(like)
    return statistics.geometric_mean([one["constant"] for one in known.values()]) if known else 1.0


def calibration_rows() -> set[str]:
    """Return the ids of the rows that constants were fitted on."""
    return {row for one in read_constants().values() for row in one["rows"]}
