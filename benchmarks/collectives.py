"""Collectives against the number of partitions: timed on CPU devices, estimated for TPU v3.

python -m benchmarks.collectives [--json OUT] [--rounds N]   measures, estimates, prints a table
python -m benchmarks.collectives draw                        the plot of the results

Every partition has the same number of bytes, however many there are, as in the paper's section 5.4.
Virtual CPU devices share the host's cores and memory, so that the time there is that of all
partitions' work; what is compared is the time divided by their number. An AllGather, whose result
grows with the partitions, starts there from an eighth of the bytes. For the TPU it is the bytes
over the busiest link of a slice, divided by what a link carries a second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import namedmesh as nm
from benchmarks import scaling
from benchmarks.operator_cases import (
    CASES,
    trace_all_gather,
    trace_all_reduce,
    trace_all_to_all,
    trace_permute,
    trace_reduce_scatter,
)
from benchmarks.scaling import fit_exponent, save_plot
from benchmarks.torus_links import (
    LINK_BYTES_PER_SECOND,
    SQUARES,
    estimate_link_bytes,
    slice_of,
)
from namedmesh.processes.devices import use_cpu_devices

TRACES: dict[str, Callable[[int, int], nm.Program]] = {
    "all_reduce": trace_all_reduce,
    "reduce_scatter": trace_reduce_scatter,
    "all_gather": trace_all_gather,
    "all_to_all": trace_all_to_all,
    "collective_permute": trace_permute,
}
CPU_DEVICES = (4, 8, 16, 32)
CPU_BYTES = (2**20, 2**22)
TPU_CORES = tuple(2**i for i in range(4, 12))
TPU_BYTES = (8 * 2**20, 32 * 2**20)  # those of the paper's figure
ITEM = 4  # bytes of a float32


def expected(name: str, x: np.ndarray) -> np.ndarray:
    """Return the result of a collective, the shards of all partitions joined."""
    if name in ("all_reduce", "reduce_scatter"):
        return x.sum(axis=0, dtype=np.float32)
    return np.roll(x, 1, axis=0) if name == "collective_permute" else x


def prepare(name: str, partitions: int, size: int) -> tuple[nm.Step, jax.Array, np.ndarray]:
    """Compile a collective, and put an input of so many bytes a partition on the devices."""
    program = TRACES[name](partitions, size // ITEM)
    step = nm.compile(program, mesh=nm.Mesh(all=partitions), layout=CASES[name].layout)
    (tensor,) = program.inputs.values()
    # Whole numbers, whose sums are exact in any order.
    x = np.random.default_rng(0).integers(-8, 8, tensor.shape.sizes).astype(np.float32)
    return step, step.put(x=x)["x"], x


def time_collectives(
    devices: Sequence[int] = CPU_DEVICES, sizes: Sequence[int] = CPU_BYTES, rounds: int = 30
) -> list[dict[str, Any]]:
    """Time collectives on CPU devices by turns.

    Args:
        devices: The numbers of partitions, the first of which the others are compared with.
        sizes: The bytes of a partition, but for an AllGather.
        rounds: How often each is timed, after once to warm up.

    Returns:
        A row for each, with the median.
    """
    use_cpu_devices(max(devices))
    steps: dict[tuple[str, int, int], tuple[nm.Step, jax.Array]] = {}
    for key in itertools.product(TRACES, sizes, devices):
        name, size, partitions = key
        own = size // 8 if name == "all_gather" else size
        step, x, values = prepare(name, partitions, own)
        np.testing.assert_array_equal(step(None, x)[1], expected(name, values), name)
        steps[key] = step, x
    seconds: dict[tuple[str, int, int], list[float]] = {key: [] for key in steps}
    for i in range(rounds + 1):
        for key in list(steps) if i % 2 else reversed(steps):
            step, x = steps[key]
            start = time.perf_counter()
            jax.block_until_ready(step(None, x)[1])
            if i:
                seconds[key].append(time.perf_counter() - start)
    medians = {key: statistics.median(times) for key, times in seconds.items()}
    return [
        {
            "collective": CASES[name].operator,
            "source": "CPU devices",
            "bytes": steps[name, size, partitions][1].nbytes // partitions,
            "partitions": partitions,
            "seconds": median,
            "ratio": median / partitions / (medians[name, size, devices[0]] / devices[0]),
            "made": sorted({one.kind for one in steps[name, size, partitions][0].audit.compiled}),
            "paper": CASES[name].communication,
        }
        for (name, size, partitions), median in medians.items()
    ]


def estimate_collectives(
    cores: Sequence[int] = TPU_CORES, sizes: Sequence[int] = TPU_BYTES
) -> list[dict[str, Any]]:
    """Estimate the time of collectives on slices of TPU v3, by their links.

    Args:
        cores: The numbers of partitions, the first of which the others are compared with.
        sizes: The bytes that a partition has before the collective.

    Returns:
        A row for each.
    """
    rows = []
    for name, size in itertools.product(TRACES, sizes):
        kind = CASES[name].operator
        first = None
        for partitions in cores:
            buffer = size * partitions if kind == "AllGather" else size
            sent = estimate_link_bytes(kind, buffer, partitions)
            first = first or sent
            rows.append(
                {
                    "collective": kind,
                    "source": "TPU v3 links",
                    "bytes": size,
                    "partitions": partitions,
                    "slice": str(slice_of(partitions)),
                    "seconds": sent / LINK_BYTES_PER_SECOND,
                    "ratio": sent / first,
                    "made": [kind],
                    "paper": CASES[name].communication,
                }
            )
    return rows


def fit_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the exponents of time, a row for each collective, source and number of bytes."""
    curves: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault((row["collective"], row["source"], row["bytes"]), []).append(row)
    found = []
    for (collective, source, size), curve in curves.items():
        ratios = {row["partitions"]: row["ratio"] for row in curve}
        squares = {count: ratio for count, ratio in ratios.items() if count in SQUARES}
        found.append(
            {
                "collective": collective,
                "source": source,
                "bytes": size,
                "exponent": fit_exponent(ratios, min(ratios)),
                "exponent_of_squares": fit_exponent(squares),
                "most_to_fewest": ratios[max(ratios)] / ratios[min(ratios)],
                "paper": curve[0]["paper"],
            }
        )
    return found


def table(exponents: list[dict[str, Any]]) -> str:
    """Return the exponents as a table for people."""
    lines = [
        "| collective | where | bytes of a partition | exponent | the same of square slices "
        "| most to fewest partitions | paper |",
        "|---" * 7 + "|",
    ]
    for row in exponents:
        squares = row["exponent_of_squares"]
        cells = [
            row["collective"],
            row["source"],
            f"{row['bytes'] / 2**20:g} MiB",
            f"{row['exponent']:.2f}",
            "-" if squares is None else f"{squares:.2f}",
            f"{row['most_to_fewest']:.2f}",
            row["paper"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(result: dict[str, Any]) -> None:
    """Draw the ratios against the number of partitions, on CPU devices and on TPU v3."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    figure, sides = pyplot.subplots(1, 2, figsize=(10, 4.2), sharey=True)
    for side, source, label in (
        (sides[0], "CPU devices", "time for each partition"),
        (sides[1], "TPU v3 links", "estimated time"),
    ):
        rows = [row for row in result["rows"] if row["source"] == source]
        counts = sorted({row["partitions"] for row in rows})
        for collective in dict.fromkeys(row["collective"] for row in rows):
            curves = [row for row in rows if row["collective"] == collective]
            size = max(row["bytes"] for row in curves)
            ratios = [row["ratio"] for row in curves if row["bytes"] == size]
            style = "s--" if collective == "ReduceScatter" else "o-"
            name = f"{collective} of {size / 2**20:g} MiB"
            side.plot(counts, ratios, style, markersize=4, label=name)
        root = [(count / counts[0]) ** 0.5 for count in counts]
        side.plot(counts, root, "k:", label="square root of partitions")
        side.set(xscale="log", yscale="log", xlabel="partitions", ylim=(0.3, 100))
        side.set_ylabel(f"{label}, {counts[0]} partitions = 1")
        side.set_title(source, fontsize=10)
        side.set_xticks(counts, [f"{count:,}" for count in counts])
        side.set_yticks([1, 10, 100], ["1", "10", "100"])
        side.minorticks_off()
        side.legend(fontsize=8, loc="upper left")
    figure.tight_layout()
    save_plot(figure, "collectives.png")


def main(arguments: list[str] | None = None) -> None:
    """Measure and estimate, or draw."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collectives", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "command", nargs="?", choices=("draw",), help="draw the plot of the results"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="the file of the result")
    parser.add_argument("--rounds", type=int, default=30, help="how often each is timed")
    given = parser.parse_args(arguments)
    if given.command == "draw":
        draw(json.loads((scaling.RESULTS / "collectives.json").read_text()))
        return
    rows = [*time_collectives(rounds=given.rounds), *estimate_collectives()]
    exponents = fit_rows(rows)
    print(table(exponents))
    if given.json:
        host = {"machine": platform.machine(), "cores": os.cpu_count(), "jax": jax.__version__}
        result = {"rows": rows, "exponents": exponents, "rounds": given.rounds, "host": host}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
