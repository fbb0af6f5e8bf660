"""Layouts that a search finds, beside those that people write and the best of fifty random ones.

python -m benchmarks.search --json OUT          twelve models on 8 to 2,048 devices
python -m benchmarks.search --json OUT PART...  merges results of other runs, and prints a table

Runs of one model and number of devices each (--models graph --devices 64 --json PART) can go side
by side on as many cores, each with --processes 1.

Random layouts map one to four dimensions to axes of a random mesh; they are the same at every run.
Times are estimates for TPU v3. On 8 devices the best is compiled, by the TPU compiler where it is
and for CPU devices elsewhere, and audited. The order of twelve layouts by the estimates that a
search goes by, beside that of measured steps, is in benchmarks.estimates layouts. With --nocompile
nothing is compiled, and TensorFlow is not needed.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import resource
import sys
import warnings
from dataclasses import replace
from typing import Any

from absl import app, flags

import namedmesh as nm
from benchmarks.result import publish
from benchmarks.search_cases import DEVICES, MODELS, Case, Hand, draw_layout
from namedmesh.hardware.hardware import Hardware
from namedmesh.runtime import use_cpu_devices
from namedmesh.search.candidates import Candidate
from namedmesh.search.measure import measure_candidate, measuring

TARGET = "tpu-v3"
COMPILED = 8  # devices, for which the best is compiled
RANDOM, SEED = 50, 32  # how many random layouts there are, and what they are drawn from

_MODELS = flags.DEFINE_list("models", list(MODELS), "which models")
_DEVICES = flags.DEFINE_list("devices", [str(one) for one in DEVICES], "how many devices")
_PROCESSES = flags.DEFINE_integer("processes", 2, "processes that plan", lower_bound=1)
_COMPILE = flags.DEFINE_bool("compile", True, f"whether the best on {COMPILED} is compiled")
_PLANS = flags.DEFINE_integer("plans", None, "candidates to plan at most", lower_bound=1)


def price_hand(case: Case, hand: Hand, hardware: Hardware) -> dict[str, Any]:
    """Return the best layout by hand: the fastest that fits, or the smallest."""
    rows = []
    for values in itertools.product(*case.choices.values()):
        choices = dict(zip(case.choices, values, strict=True))
        params = None if hand.params is None else nm.Layout(hand.params)
        candidate = Candidate(0, nm.Mesh.parse(hand.mesh), nm.Layout(hand.layout), params)
        takes = measure_candidate(case.make(**choices), candidate, hardware)
        if takes.refused:
            return {"mesh": hand.mesh, "layout": hand.layout, "refused": takes.refused}
        rows.append((takes, choices))
    fitting = [one for one in rows if one[0].memory_bytes <= hardware.memory_bytes]
    takes, choices = min(
        fitting or rows, key=lambda one: one[0].seconds if fitting else one[0].memory_bytes
    )
    return {
        "mesh": hand.mesh,
        "layout": hand.layout,
        "params": hand.params,
        "choices": choices,
        "seconds": takes.seconds,
        "memory_bytes": takes.memory_bytes,
        "fits": bool(fitting),
    }


def price_random(case: Case, devices: int, hardware: Hardware) -> dict[str, Any]:
    """Return how many of fifty random layouts can be planned, and the fastest that fits."""
    rng = random.Random(f"{SEED} {devices}")
    options = itertools.product(*case.choices.values())
    choices = [dict(zip(case.choices, values, strict=True)) for values in options]
    programs = [case.make(**one) for one in choices]
    drawn = []
    for _ in range(RANDOM):
        number = rng.randrange(len(programs))
        drawn.append(replace(draw_layout(programs[number], devices, rng), variant=number))
    with measuring(programs, hardware, _PROCESSES.value) as measure:
        rows = [*zip(drawn, measure(drawn), strict=True)]
    planned = [(one, takes) for one, takes in rows if not takes.refused]
    fitting = [row for row in planned if row[1].memory_bytes <= hardware.memory_bytes]
    row: dict[str, Any] = {
        "drawn": RANDOM,
        "planned": len(planned),
        "without_conflicts": sum(takes.conflicts == "error" for _, takes in planned),
        "fit": len(fitting),
    }
    if fitting:
        best, takes = min(fitting, key=lambda row: row[1].seconds)
        row |= {
            "mesh": best.mesh.to_json(),
            "layout": best.layout.text,
            "params": None if best.params is None else best.params.text,
            "choices": choices[best.variant],
            "conflicts": takes.conflicts,
            "seconds": takes.seconds,
            "memory_bytes": takes.memory_bytes,
        }
    return row


def count_cpu_seconds() -> float:
    """Return the seconds that this process and those it waited for have computed."""
    usage = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in usage)


def compare(name: str, devices: int) -> dict[str, Any]:
    """Search one model on so many devices, and prices the layouts by hand."""
    case, hardware = MODELS[name](devices), Hardware.parse(TARGET)
    before = count_cpu_seconds()
    found = nm.search(
        case.make,
        devices,
        hardware,
        plans=_PLANS.value,
        processes=_PROCESSES.value,
        verify=1 if devices == COMPILED and _COMPILE.value else 0,
        **case.choices,
    )
    spent = count_cpu_seconds() - before
    print(found, file=sys.stderr, flush=True)
    hands = {label: price_hand(case, hand, hardware) for label, hand in case.hands.items()}
    for row in hands.values():
        if row.get("fits") and found.front:
            row["found_to_hand"] = found.best.seconds / row["seconds"]
    ratios = [row["found_to_hand"] for row in hands.values() if "found_to_hand" in row]
    by_chance = price_random(case, devices, hardware)
    if "seconds" in by_chance and found.front:
        by_chance["found_to_random"] = found.best.seconds / by_chance["seconds"]
    document = found.to_json()
    return {
        "model": name,
        "devices": devices,
        "target": TARGET,
        "best": next(iter(document["front"]), None),
        "front": len(found.front),
        "hands": hands,
        "worst_ratio": max(ratios, default=None),
        "random": by_chance,
        "search_seconds": found.elapsed,
        "search_cpu_seconds": spent,
        "enumerated": found.enumerated,
        "planned": found.planned,
        "reasons": document["reasons"],
    }


def merge(paths: list[str]) -> list[dict[str, Any]]:
    """Return the rows of several results in order; the last one of each model and mesh counts."""
    parts = [json.loads(pathlib.Path(path).read_text()) for path in paths]
    rows = {(row["model"], row["devices"]): row for part in parts for row in part}
    order = list(MODELS)
    return [rows[key] for key in sorted(rows, key=lambda key: (order.index(key[0]), key[1]))]


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format rows as the README of the results shows them."""
    head = (
        "model | devices | found | at rest | to the best by hand | to the best of fifty random | "
    )
    head += "random layouts that plan, and fit | CPU seconds | enumerated | planned | "
    head += "compiled as planned, GiB | estimated memory to that"
    lines = [head, "|".join("---" for _ in head.split("|"))]
    for row in rows:
        best, by_chance = row["best"] or {}, row["random"]
        mesh = " ".join(f"{name}={size}" for name, size in best.get("mesh", {}).items())
        hand, chance = row["worst_ratio"], by_chance.get("found_to_random")
        cells = [row["model"], f"{row['devices']:,}", f"`{mesh}` `{best.get('layout')}`"]
        cells += [f"`{best['params']}`" if best.get("params") else ""]
        cells += ["none fits" if one is None else f"{one:.4f}" for one in (hand, chance)]
        cells += [f"{by_chance['planned']}, {by_chance['fit']}"]
        cells += [f"{row['search_cpu_seconds']:.0f}"]
        cells += [f"{row[name]:,}" for name in ("enumerated", "planned")]
        made = row.get("compiled", {})
        size, exact = made.get("memory_bytes") or 0, "yes" if made.get("exact") else "no"
        cells += [f"{exact}, {size / 2**30:.2f}" if made else ""]
        cells += [f"{made['estimated_to_compiler']:.2f}" if size else ""]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def main(arguments: list[str]) -> None:
    """Compare searches with layouts by hand."""
    if arguments[1:]:
        rows = merge(arguments[1:])
        print(format_table(rows))
        publish(rows, show=False)
        return
    warnings.simplefilter("ignore", UserWarning)  # layouts by hand may leave devices idle
    if _COMPILE.value:
        use_cpu_devices(COMPILED)
    rows = []
    for name in _MODELS.value:
        for devices in map(int, _DEVICES.value):
            rows.append(compare(name, devices))
            publish(rows, show=False)
    publish(rows)


if __name__ == "__main__":
    app.run(main)
