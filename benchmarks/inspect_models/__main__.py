"""Inspect each model under each sharding, and count its bytes once more, by regular expressions.

$ python -m benchmarks.inspect_models --json benchmarks/results/inspect/inspect.json
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import namedmesh as nm
from benchmarks.inspect_models import models

SHARDINGS = {"data": {"data": 8}, "fsdp": {"data": 8}, "tensor": {"data": 2, "model": 4}}
_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "s32": 4, "u32": 4, "pred": 1, "s64": 8}
_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf" = (\(.*?\)|\S+) ({_KINDS})\(.*?replica_groups=\S+|"
                         r" = (\S+) collective-permute\(")  # fmt: skip
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_LOOP = re.compile(r' while\(.*body=%?([\w.-]+).*"known_trip_count":\{"n":"(\d+)"')


def count_bytes(text: str) -> int:
    """Count the bytes that the collectives of HLO make, each as often as its loop runs."""
    loops = {name: int(times) for name, times in _LOOP.findall(text)}
    total, times = 0, 1
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            times = loops.get(name, 1)
        match = _COLLECTIVE.search(line)
        for dtype, sizes in _ARRAY.findall(match[1] or match[3]) if match else ():
            size = _BYTES[dtype]
            for one in filter(None, sizes.split(",")):
                size *= int(one)
            total += size * times
    return total


def place(tree: Any, sharding: str, mesh: jax.sharding.Mesh) -> Any:
    """Describe the arrays of a tree, split as a sharding has it."""

    def place_one(one: jax.Array) -> jax.ShapeDtypeStruct:
        spec: list[str | None] = [None] * one.ndim
        sizes = [*one.shape]
        if sharding == "tensor" and models.HIDDEN in sizes:
            spec[sizes.index(models.HIDDEN)] = "model"
        if sharding == "fsdp" and one.ndim > 1:
            spec[sizes.index(max(sizes))] = "data"
        return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=NamedSharding(mesh, P(*spec)))

    return jax.tree.map(place_one, tree)


def describe_batch(axes: dict[str, int]) -> tuple[jax.sharding.Mesh, jax.ShapeDtypeStruct]:
    """Return a mesh of axes, and the batch that is split over data."""
    types = (AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)
    rows = NamedSharding(mesh, P("data"))
    return mesh, jax.ShapeDtypeStruct((models.BATCH, models.WIDTH), "float32", sharding=rows)


def inspect_all(libraries: list[str], show: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each library, sharding, step and partitioner."""
    for library in libraries:
        model, apply, params = models.MODELS[library]()
        for sharding, axes in SHARDINGS.items():
            mesh, x = describe_batch(axes)
            for partitioner in ("shardy", "gspmd"):
                jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
                for name, (step, state) in models.make_steps(apply, params).items():
                    jitted, arguments = jax.jit(step), (place(state, sharding, mesh), x)
                    seen = nm.inspect(jitted, *arguments)
                    text = jitted.lower(*arguments).compile().as_text()
                    counted = count_bytes(text or "")
                    ones = seen.collectives
                    total = sum(one.total_bytes for one in ones)
                    case = f"{library} {sharding} {partitioner} {name}"
                    assert total == counted, f"{case}: {total} bytes, {counted} in the text"
                    if show:
                        print(case, seen, sep="\n")
                    lined = [one for one in ones if one.source.file == models.__file__]
                    yield {
                        "library": library,
                        "version": version(library),
                        "model": model,
                        "step": name,
                        "sharding": sharding,
                        "partitioner": partitioner,
                        "collectives": len(ones),
                        "with_line": len(lined),
                        "bytes": total,
                        "findings": [str(one) for one in seen.findings],
                    }


def main() -> None:
    """Inspect the models that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", default=[*models.MODELS])
    parser.add_argument("--json", type=pathlib.Path, help="the file that is written")
    parser.add_argument("--show", action="store_true", help="print every collective too")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    rows = []
    for row in inspect_all(arguments.libraries, arguments.show):
        print(json.dumps(row), flush=True)
        rows.append(row)
    if arguments.json:
        text = ",\n".join(json.dumps(row) for row in rows)
        arguments.json.write_text(f'{{"jax": "{jax.__version__}", "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
