"""What is known of systems: how their kernels, recomputation and schedules differ from ours.

A system's constant is the time that its ops take as a multiple of what `nm.cost` expects of the
chip: the efficiency of other people's kernels, the power limits of their boards, stragglers. It is
fitted on every third row of each system on each chip, in the order of the tables, and on no other;
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
from namedmesh.hardware.links import Nodes, TorusSlice

# Of the paper's steps nothing is fitted: its kernels are what `nm.cost` describes of a TPU, whose
# share of the peak, 85%, is the paper's.
UNFITTED = ("GShard",)
CONSTANTS = pathlib.Path(__file__).parent / "constants.json"
# The share of peak FLOP/s that attention kernels reach, forward and backward together, counting a
# causal half: FlashAttention-2 and -3 on A100 and H100 (arXiv 2307.08691, 2407.08608), from memory;
# others by analogy. FlashAttention-2, which PyTorch's systems call, reaches 335 TFLOP/s on an H100
# (arXiv 2307.08691).
FLASH = {"a100": 0.55, "h100": 0.45, "h200": 0.45, "b200": 0.4}
FLASH_2 = {"h100": 0.34, "h200": 0.34}
WITH_FLASH_2 = ("torchtitan", "llm-foundry", "fms-fsdp", "InternLM", "nanotron", "OLMo")
# Of 8-bit products' peak systems reach less than of bfloat16's: operands are quantised beside them.
# Not so much less on v7x, whose recipes fix scales beforehand: fitted on its 405B row.
NARROW = {"tpu-v7x": 0.9}
OTHER_NARROW = 0.75
# The power of boards; products of one with a limit run at the root of its share, since power grows
# with the square of a clock and more.
WATTS = {"a100": 400, "h100": 700, "h200": 700, "b200": 1000}
# Bytes a second that a chip sends to other slices: jax over TCP, and not what its ports could. Of
# v6e fitted on the two first rows, of which one is on two slices; of others on what the model of
# 32B takes longer on eight slices of v5e than on one.
DCN = {"tpu-v6e": 0.41e9}
OTHER_DCN = 1.3e9
# Products of experts that drop no token take longer than dense ones of their size: fitted on
# tpu7x-dsv3-128 and v5p-dsv3-512.
GROUPED = 1.5
# The share of AllToAlls that are sent while another microbatch is computed: fitted on
# mb-h100-dsv3-1024 and mb-b200-dsv3-256.
HIDDEN_EXCHANGES = {"NeMo": 0.7}
# The rows that these figures were fitted on; those of constants are in constants.json.
RULES_FROM = (
    "maxtext-v5e-32b-1x256", "maxtext-v5e-32b-8x256", "v6e-llama31-405b-2x256",
    "v6e-llama31-70b-32", "tpu7x-dsv3-128", "v5p-dsv3-512", "mb-h100-dsv3-1024", "mb-b200-dsv3-256",
    "tpu7x-llama31-405b-256-fp8",
)  # fmt: skip
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
    if step.dtype in ("fp8", "fp4", "int8") and chip.narrow_tera:
        reached = NARROW.get(step.chip, OTHER_NARROW) * (2.0 if step.dtype == "fp4" else 1.0)
        flops["bfloat16"] = plain * chip.narrow_tera / chip.tera["bfloat16"] * reached
    if step.dtype == "fp32":
        plain = flops["bfloat16"] = flops.get("float32", plain)
    network = hardware.network
    if isinstance(network, TorusSlice):
        network = dataclasses.replace(network, across=DCN.get(step.chip, OTHER_DCN))
    elif step.across and isinstance(network, Nodes):
        network = dataclasses.replace(network, across=step.across)
    flash = FLASH.get(step.chip, 0.5)
    if step.system in WITH_FLASH_2:
        flash = FLASH_2.get(step.chip, flash)
    if chip.family == "tpu":  # whose arrays sum over at least 128 rows
        flash *= min(1.0, step.head / 128)
    return dataclasses.replace(
        hardware,
        flops=flops,
        memory_bandwidth=step.bandwidth or hardware.memory_bandwidth,
        network=network,
        kernels=step.flash,
        kernel_tile=1,
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
    """Return a system's constant on a chip, or what is next to it.

    Of a system that has none on that chip: those on other chips of its kind (GPUs or TPUs), times
    what other systems take on the one chip for each second on the other. Of another system: the
    mean of the chip, of its kind, or one.
    """
    if step.system in UNFITTED:
        return 1.0
    known = {
        tuple(key.rsplit(" ", 1)): one["constant"] for key, one in read_constants().items()
    }  # by system and chip
    if (step.system, step.chip) in known:
        return known[step.system, step.chip]

    def is_alike(chip: str) -> bool:
        return CHIPS[chip].family == CHIPS[step.chip].family

    def compare(chip: str) -> float:
        """Return the seconds on the chip for each second on another, by systems that have both."""
        both = [
            known[system, step.chip] / known[system, chip]
            for system, other in known
            if other == chip and (system, step.chip) in known
        ]
        return statistics.median(both) if both else 1.0

    own = [
        constant * compare(chip)
        for (system, chip), constant in known.items()
        if system == step.system and is_alike(chip)
    ]
    of_chip = [constant for (_, chip), constant in known.items() if chip == step.chip]
    of_kind = [constant for (_, chip), constant in known.items() if is_alike(chip)]
    return statistics.geometric_mean(own or of_chip or of_kind or [1.0])


def calibration_rows() -> set[str]:
    """Return the ids of the rows that anything was fitted on."""
    return {*RULES_FROM, *(row for one in read_constants().values() for row in one["rows"])}
