"""Calibration: the figures of a Hardware, from what devices were measured to do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from namedmesh.calibration.benches import Bench, Timing
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.links import Network
from namedmesh.records.collective import Collective

_STAND_INS = {"gpu": "h100", "cuda": "h100", "rocm": "mi300x", "tpu": "tpu-v5e", "cpu": "cpu"}
_RATES = ("inside", "bandwidth")  # of the links inside a node, a slice or a host


def calibrate(
    devices: Sequence[Any], tell: Callable[[str], object] = print
) -> tuple[Hardware, list[Timing]]:
    """Measure devices of one kind; return their figures and what was timed.

    What cannot be measured here, such as links between nodes and what the compiler fuses, is taken
    from the published figures of the device's kind, or else of a similar one.
    """
    bench, kind = Bench(list(devices)), str(devices[0].device_kind)
    timings: list[Timing] = []

    def keep(one: Timing) -> Timing:
        timings.append(one)
        tell(f"  {one}")
        return one

    base, known = _find_base(kind, bench.platform)
    unlike = "" if known or bench.small else f", taken to be like {base} in what is not measured"
    tell(f"{bench.count} x {kind}{unlike}")
    whole = bench.count if base.shared else 1  # figures that all devices share
    rates = {}
    # Not measured, so that published peaks stay.
    float8 = {name: rate for name, rate in base.flops.items() if name.startswith("float8")}
    for name in base.flops:
        if name in float8:
            continue
        dtype, _, precision = name.partition(" ")
        products = [keep(one) for one in bench.products(dtype, precision or "default")]
        rates[name] = _rate(products, "flops") * whole
    memory = _rate([keep(one) for one in bench.passes()], "bytes") * whole
    arithmetic = keep(bench.arithmetic())
    vector = base.vector_flops if known else arithmetic.other_flops / arithmetic.seconds * whole
    start = keep(bench.launch()).seconds / whole
    # Published peaks stay, and what is reached of them is a share, so that MFU keeps its meaning.
    main = next(iter(rates))
    share = min(1.0, rates[main] / base.flops[main]) if known else 1.0
    memory_share = min(1.0, memory / base.memory_bandwidth) if known else 1.0
    figures: dict[str, Any] = {
        "name": f"{kind.lower().replace(' ', '-')}-calibrated",
        "flops": (float8 if known else {}) | {name: rate / share for name, rate in rates.items()},
        "product_share": share,
        "vector_flops": vector,
        "memory_bandwidth": memory / memory_share,
        "memory_share": memory_share,
        "memory_bytes": _memory_bytes(devices[0], base),
        "start": start,
    }
    measured = dataclasses.replace(base, **figures)
    if base.kernels and bench.platform in ("gpu", "cuda"):
        measured = fit_kernel(measured, [keep(one) for one in bench.attention()])
    if bench.count > 1:
        pairs = [(one, keep(timing)) for one, timing in bench.collectives()]
        network = _fit_network(measured.network, bench.count, pairs)
        measured = dataclasses.replace(measured, network=network)
    return measured, timings


def _find_base(kind: str, platform: str) -> tuple[Hardware, bool]:
    """Return the published figures of a kind of device, or those of a similar one."""
    try:
        return Hardware.parse(kind.upper()), platform != "cpu"
    except NamedMeshError:
        return Hardware.parse(_STAND_INS.get(platform, "cpu")), False


def _rate(timings: Sequence[Timing], what: str) -> float:
    """Return all that was computed or moved by all the time it took."""
    return sum(getattr(one, what) for one in timings) / sum(one.seconds for one in timings)


def _memory_bytes(device: Any, base: Hardware) -> int:
    """Return what the device says that a program may use."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    return int((stats or {}).get("bytes_limit", 0)) or base.memory_bytes


def _solve(rows: Sequence[tuple[float, ...]]) -> list[float]:
    """Fit a x + b y + ... = seconds, by the least relative errors; no factor is negative."""
    table = np.array(rows)
    return nnls(table[:, :-1] / table[:, -1:], np.ones(len(table)))[0].tolist()


def fit_kernel(base: Hardware, timings: Sequence[Timing]) -> Hardware:
    """Fit the shares of the peaks that attention reaches, and what a row of queries takes."""
    rows = [
        (
            one.flops / base.product_flops("bfloat16"),
            one.other_flops / base.vector_flops,
            one.rows,
            one.seconds - base.start,
        )
        for one in timings
    ]
    products, others, row = _solve(rows)
    return dataclasses.replace(
        base,
        kernel_product_share=min(1.0, 1 / products) if products else 1.0,
        kernel_share=min(1.0, 1 / others) if others else 1.0,
        kernel_row=row,
    )


def _fit_network(network: Network, devices: int, timings: Sequence[tuple[str, Timing]]) -> Network:
    """Fit what a collective takes to start, and the rate of the links, by their own formula."""
    mesh = Mesh(all=devices)
    rate = next(name for name in _RATES if hasattr(network, name))

    def seconds(kind: str, size: int, start: float, bandwidth: float) -> float:
        one = Collective(
            kind, ("all",), size // 4, "float32", size, 1, "", "", "forward", Source("", 0), devices
        )
        changed: Any = dataclasses.replace(network, **{"start": start, rate: bandwidth})  # type: ignore[type-var]
        return changed.seconds(one, mesh, {})

    rows = []
    for kind, one in timings:
        size = int(one.bytes)
        latency = seconds(kind, size, 0.0, math.inf)  # as published or assumed
        rows.append(
            (
                seconds(kind, size, 1.0, math.inf) - latency,
                seconds(kind, size, 0.0, 1.0) - latency,
                max(one.seconds - latency, 1e-9),
            )
        )
    start, per_byte = _solve(rows)
    changes = {"start": start, **({rate: 1 / per_byte} if per_byte else {})}
    return dataclasses.replace(network, **changes)  # type: ignore[type-var]
