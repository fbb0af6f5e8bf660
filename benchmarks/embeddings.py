"""Lookups in tables beside plain jax.jit of the same text: times, and bytes beside the least.

Run as `python -m benchmarks.embeddings --json OUT`; the file is written after every case, and
`--only "1000001 rows.*all=8"` measures the cases whose names match. A step looks up 4,096 rows of
a table (or 512 bags of 8, whose rows are added up), moves them towards a target, and updates the
table: densely, by the gradient of all of it, or only in the rows that were looked up. Tables and
batches are split over the same devices, over two axes of a mesh, or the batch over both and the
table over one. Both count their steps, as
optimizers do: on one CPU device that one number takes 30 to 60 us a step, in plain jax.jit too,
which is a tenth of the step of a small table. Where rows do not divide by the devices, jax gets a
table that is padded by hand, since it takes no other.
"""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import NamedSharding, PartitionSpec

import namedmesh as nm
from benchmarks.result import publish
from namedmesh.layers import Adagrad, Sgd
from namedmesh.runtime import use_cpu_devices

_ONLY = flags.DEFINE_string("only", "", "A pattern that the names of the cases to measure match.")

LOOKUPS, BAG, WIDTH, RATE = 4096, 8, 16, 0.1
SECONDS, FEWEST, MOST = 2.5, 15, 200  # for each case, and how many steps are measured in them
SIZES = (100, 1_001, 50_257, 1_000_000, 1_000_001, 10_000_000)
# By the sizes of the mesh's axes: the layout, and the axes of the batch and of the table's rows.
MESHES: dict[tuple[tuple[str, int], ...], tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    (("all", 1),): ("", (), ()),
    (("all", 2),): ("batch:all, user:all", ("all",), ("all",)),
    (("all", 8),): ("batch:all, user:all", ("all",), ("all",)),
    (("data", 2), ("model", 4)): ("batch:data, user:model", ("data",), ("model",)),
    (("x", 2), ("y", 4)): ("batch:x+y, user:y", ("x", "y"), ("y",)),
}


@dataclass(frozen=True)
class Case:
    """One table, its lookups and its update, on one mesh."""

    rows: int
    bags: bool
    update: str  # dense, rows or adagrad: rows, by sums of squares for each row
    mesh: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The name of the case in results."""
        ids = f"bags of {BAG}" if self.bags else "one id"
        axes = " ".join(f"{axis}={size}" for axis, size in self.mesh)
        return f"{self.rows} rows, {ids}, {self.update}, {axes}"

    @property
    def devices(self) -> int:
        """The number of devices."""
        return int(np.prod([size for _, size in self.mesh]))

    @property
    def batch(self) -> int:
        """The number of examples."""
        return LOOKUPS // BAG if self.bags else LOOKUPS

    @property
    def id_sizes(self) -> tuple[int, ...]:
        """The sizes of the array of ids."""
        return (self.batch, BAG) if self.bags else (self.batch,)

    def make_inputs(self, count: int) -> list[dict[str, np.ndarray]]:
        """Make some batches."""
        random = np.random.default_rng(0)
        return [
            {
                "ids": random.integers(0, self.rows, self.id_sizes, np.int32),
                "target": random.normal(size=(self.batch, WIDTH)).astype(np.float32),
            }
            for _ in range(count)
        ]


def list_cases() -> Iterator[Case]:
    """Yield every case that is measured."""
    for mesh in MESHES:
        for rows in SIZES:
            for update in ("dense", "rows"):
                yield Case(rows, False, update, mesh)
            if rows in (50_257, 1_000_000):
                yield Case(rows, True, "dense", mesh)
                yield Case(rows, True, "rows", mesh)
            if rows in (1_000_000, 1_000_001):
                yield Case(rows, False, "adagrad", mesh)


def plan_step(case: Case) -> nm.Plan:
    """Plan a case with namedmesh."""
    U, B, K, M = nm.dims(f"user={case.rows} batch={case.batch} bag={BAG} model={WIDTH}")
    dims = [B, K] if case.bags else [B]

    def step(ids, target):
        by_rows = None if case.update == "dense" else U
        table = nm.param("table", [U, M], nm.normal_init(1.0), rows=by_rows)
        found = nm.gather(table, ids, U)
        found = nm.sum(found, K) if case.bags else found
        loss = nm.mean(nm.square(found - target))
        optimizer = Adagrad(RATE, row_wise=U) if case.update == "adagrad" else Sgd(RATE)
        optimizer.apply(nm.grad(loss))
        return {"loss": loss}

    specs = {"ids": nm.spec(dims, "int32"), "target": nm.spec([B, M])}
    mesh = nm.Mesh.parse(", ".join(f"{axis}={size}" for axis, size in case.mesh))
    return nm.plan(nm.trace(step, **specs), mesh, MESHES[case.mesh][0])


def make_step(plan: nm.Plan) -> Callable[..., float]:
    """Return a step of namedmesh that keeps its state from call to call."""
    compiled = nm.Step(plan, strict=True)
    held = [compiled.init(0)]

    def run(**inputs: np.ndarray) -> float:
        held[0], results = compiled(held[0], **inputs)
        return float(results["loss"])

    return run


def make_jitted(case: Case) -> Callable[..., float]:
    """Return the same step by jax.jit, the table and the batch placed in the same way."""
    _, batch_axes, row_axes = MESHES[case.mesh]
    names = tuple(axis for axis, _ in case.mesh)
    devices = np.array(jax.devices()[: case.devices]).reshape([size for _, size in case.mesh])
    mesh = jax.sharding.Mesh(devices, names)
    by_batch = NamedSharding(mesh, PartitionSpec(batch_axes or None))
    by_rows = NamedSharding(mesh, PartitionSpec(row_axes or None))
    whole = NamedSharding(mesh, PartitionSpec())
    ways = int(np.prod([size for axis, size in case.mesh if axis in row_axes]))
    rows = -(-case.rows // ways) * ways

    def compare(found, target):
        found = found.sum(1) if case.bags else found
        return jnp.mean(jnp.square(found - target))

    def step(state, ids, target):
        table, steps, *sums = state
        steps += 1
        if case.update == "dense":
            look_up = lambda table: compare(table[ids], target)
            loss, gradient = jax.value_and_grad(look_up)(table)
            return (table - RATE * gradient, steps), loss
        loss, gradient = jax.value_and_grad(compare)(table[ids], target)
        flat, gradient = ids.ravel(), gradient.reshape(-1, WIDTH)
        if case.update == "rows":
            return (table.at[flat].add(-RATE * gradient), steps), loss
        unique, places = jnp.unique(flat, size=flat.size, fill_value=rows, return_inverse=True)
        gradient = jax.ops.segment_sum(gradient, places, flat.size)
        total = sums[0][unique] + jnp.mean(jnp.square(gradient), 1)
        change = gradient / (jnp.sqrt(total) + 1e-10)[:, None]
        table = table.at[unique].add(-RATE * change, mode="drop")
        return (table, steps, sums[0].at[unique].set(total, mode="drop")), loss

    table = np.random.default_rng(0).normal(size=(rows, WIDTH)).astype(np.float32)
    state, places = (table, np.int32(0)), (by_rows, whole)
    if case.update == "adagrad":
        state, places = (*state, np.zeros(rows, np.float32)), (*places, by_rows)
    jitted = jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(places, by_batch, by_batch),
        out_shardings=(places, whole),
    )
    held = [jax.device_put(state, places)]

    def run(ids: np.ndarray, target: np.ndarray) -> float:
        held[0], loss = jitted(held[0], ids, target)
        loss = float(loss)
        jax.block_until_ready(held[0])
        return loss

    return run


def count_least(case: Case) -> float:
    """Count the bytes that a device sends at least, of all forms that a person would write."""
    _, batch_axes, row_axes = MESHES[case.mesh]
    sizes = dict(case.mesh)
    b = int(np.prod([sizes[axis] for axis in batch_axes]))
    n = int(np.prod([sizes[axis] for axis in row_axes]))
    ids, found = 4 * LOOKUPS, 4 * case.batch * WIDTH
    table = 4 * case.rows * WIDTH
    loss = 2 * 4 * (b - 1) / b
    if batch_axes == row_axes:
        share = (n - 1) / n
        # Ids that were gathered for the lookup are there for the update.
        gradients = {
            "rows": lambda ids_there: (found + (0 if ids_there else ids)) * share,
            "table": lambda ids_there: table * share,
        }
        forward = {"rows": (ids + found) * share, "table": table * share}
        return loss + min(
            sent + gradient(way == "rows")
            for way, sent in forward.items()
            for gradient in gradients.values()
        )
    if len(batch_axes) > len(row_axes):
        # Each part of the batch that devices along the table's axis share is looked up there. Its
        # gradients go to all devices, or stay there too, and what is made of them is added up.
        share, parts = (n - 1) / n, b // n
        across = (parts - 1) / parts
        forward = min((ids + found) / parts, table) * share
        some = table <= (ids + found) / parts  # then no ids were gathered
        every = (found + ids) * (b - 1) / b - (0 if some else ids / parts * share)
        near = (found + (ids if some else 0)) / parts * share + 2 * table / n * across
        dense = table * share + 2 * table / n * across
        return loss + forward + min(every, near, dense)
    # Over two axes, devices along that of the table have the same part of the batch.
    forward = min(2 * found / b, table) * (n - 1) / n
    backward = min(ids + found, 2 * table / n) * (b - 1) / b
    return loss + forward + backward


def measure(case: Case) -> dict[str, Any]:
    """Return medians of single steps, interleaved, the loss fetched."""
    plan = plan_step(case)
    runs = {"namedmesh": make_step(plan), "jax": make_jitted(case)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    until = time.perf_counter() + SECONDS
    for i, inputs in enumerate(case.make_inputs(MOST + 3)):
        for name in sorted(runs, reverse=bool(i % 2)):
            start = time.perf_counter()
            runs[name](**inputs)
            if i >= 3:
                times[name].append(time.perf_counter() - start)
        if i >= FEWEST + 3 and time.perf_counter() > until:
            break
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    return {
        "case": case.name,
        "devices": case.devices,
        "ratio_to_jax": medians["namedmesh"] / medians["jax"],
        "wire_bytes": plan.total_wire_bytes(),
        "least_bytes": count_least(case),
        "namedmesh_ms": medians["namedmesh"],
        "jax_ms": medians["jax"],
        "decisions": list(plan.decisions),
    }


def main(_: list[str]) -> None:
    """Measure and publish."""
    use_cpu_devices(8)
    cases = [case for case in list_cases() if re.search(_ONLY.value, case.name)]
    rows: list[dict[str, Any]] = []
    start = time.perf_counter()
    for number, case in enumerate(cases, 1):
        row = measure(case)
        rows.append(row)
        bytes_ratio = row["wire_bytes"] / row["least_bytes"] if row["least_bytes"] else 1.0
        print(
            f"{number}/{len(cases)} {time.perf_counter() - start:4.0f} s  {case.name}: "
            f"{row['ratio_to_jax']:.2f} of jax's time, {bytes_ratio:.3f} of the least bytes",
            flush=True,
        )
        publish({"rows": rows}, show=False)
        gc.collect()


if __name__ == "__main__":
    app.run(main)
