"""The products of one layer of experts on a GPU: places of equal number, or groups as they come.

Run as `python -m benchmarks.gpu.grouped --json OUT` where there is an NVIDIA GPU; TensorFlow and
namedmesh are not needed. Forward and backward pass are six products. In the form of capacity each
expert has as many places as every other, and cuBLAS multiplies a batch of matrices. In the grouped
form every token is served, sorted by expert, and groups differ in size: by `jax.lax.ragged_dot`, or
by the Mosaic kernels that come with JAX, each at the best of the tiles tried here. `share` is the
part of the rows that is in groups: 1.0 serves two experts of every token; less, what is left where
second experts are left out at random.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu, transposed_ragged_dot_mgpu

from benchmarks.gpu.models import BASE, WIDE, Model

TILES = [
    {"block_m": m, "block_n": n, "block_k": 64, "max_concurrent_steps": steps, "grid_block_n": grid}
    for m, n, steps, grid in itertools.product((64, 128), (128, 192, 256), (4, 5), (1, 4))
]
UNEVEN = 0.3  # by how much the logarithms of the groups' sizes vary


def group_sizes(groups: int, rows: int, share: float) -> np.ndarray:
    """Return sizes that vary from group to group and sum to a share of the rows."""
    weights = np.exp(np.random.default_rng(0).normal(size=groups) * UNEVEN)
    sizes = np.floor(weights / weights.sum() * rows * share).astype(np.int32)
    sizes[0] += int(rows * share) - sizes.sum()
    return sizes


def multiply_places(x: jax.Array, wi: jax.Array, wo: jax.Array, dy: jax.Array) -> list[jax.Array]:
    """Return the six products of experts that have equally many places."""
    h = jnp.einsum("ecm,emh->ech", x, wi)
    y = jnp.einsum("ech,ehm->ecm", h, wo)
    dh = jnp.einsum("ecm,ehm->ech", dy, wo)
    dx = jnp.einsum("ech,emh->ecm", dh, wi)
    return [y, dx, jnp.einsum("ecm,ech->emh", x, dh), jnp.einsum("ech,ecm->ehm", h, dy)]


Product = Callable[..., jax.Array]


def multiply_groups(
    forward: Product,
    transposed: Product,
    weights: Product,
    x: jax.Array,
    wi: jax.Array,
    wo: jax.Array,
    dy: jax.Array,
    sizes: jax.Array,
) -> list[jax.Array]:
    """Return the six products of rows sorted by expert."""
    h = forward(x, wi, group_sizes=sizes)
    y = forward(h, wo, group_sizes=sizes)
    dh = transposed(dy, wo, group_sizes=sizes)
    dx = transposed(dh, wi, group_sizes=sizes)
    dwi, dwo = weights(x, dh, group_sizes=sizes), weights(h, dy, group_sizes=sizes)
    return [y, dx, dwi, dwo]


def transpose_and_multiply(x: jax.Array, w: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Multiply by transposed weights as XLA does."""
    return lax.ragged_dot(x, w.swapaxes(1, 2), group_sizes)


def measure(function: Callable[..., Any], *operands: jax.Array, rounds: int = 20) -> float:
    """Return the median milliseconds of a call, its results waited for."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*operands))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*operands))
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def choose_tiles(kernel: Product, *operands: jax.Array, **options: Any) -> dict[str, int]:
    """Return the fastest tiles of a kernel; those it refuses are passed over."""
    found = []
    for tiles in TILES:
        call = functools.partial(kernel, **options, **tiles)
        try:
            found.append((measure(call, *operands, rounds=5), tiles))
        except Exception as problem:
            print(f"{tiles}: {str(problem).splitlines()[0][:100]}", flush=True)
    return min(found, key=lambda pair: pair[0])[1]


def choose_kernels(model: Model) -> tuple[Product, Product, Product]:
    """Return Mosaic's product, that by transposed weights and that of weights, with their tiles."""
    x, wi, wo, dy = make_operands(model)
    sizes = jnp.asarray(group_sizes(model.experts, len(x), 1.0))
    product, of_weights = (
        ragged_dot_mgpu.ragged_dot,
        transposed_ragged_dot_mgpu.transposed_ragged_dot,
    )
    h = jax.jit(lax.ragged_dot)(x, wi, sizes)
    turned = functools.partial(product, transpose_rhs=True)
    choose = lambda kernel, *operands: functools.partial(
        kernel, **choose_tiles(kernel, *operands, group_sizes=sizes)
    )
    return choose(product, x, wi), choose(turned, dy, wo), choose(of_weights, x, h)


def make_operands(model: Model) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Make rows, both weights, and the cotangent of the rows that they make."""
    rows = model.experts * model.rows * model.capacity(model.source)
    shapes = (
        (rows, model.model),
        (model.experts, model.model, model.hidden),
        (model.experts, model.hidden, model.model),
        (rows, model.model),
    )
    x, wi, wo, dy = (
        jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) * 0.02
        for i, shape in enumerate(shapes)
    )
    return x, wi, wo, dy


def compare(
    name: str, model: Model, share: float, kernels: tuple[Product, Product, Product]
) -> dict[str, Any]:
    """Measure the forms on the experts of a model's encoder layer."""
    x, wi, wo, dy = make_operands(model)
    sizes = jnp.asarray(group_sizes(model.experts, len(x), share))
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    general = lambda x, dy, group_sizes: lax.ragged_dot_general(x, dy, group_sizes, numbers)
    mosaic = functools.partial(multiply_groups, *kernels)
    plain = functools.partial(multiply_groups, lax.ragged_dot, transpose_and_multiply, general)
    check_equal(jax.jit(mosaic)(x, wi, wo, dy, sizes), jax.jit(plain)(x, wi, wo, dy, sizes), sizes)
    blocks = [value.reshape(model.experts, -1, model.model) for value in (x, dy)]
    flops = 6 * 2 * x.size * model.hidden
    row: dict[str, Any] = {"model": name, "share": share, "rows": len(x), "experts": model.experts}
    row["tiles"] = [one.keywords for one in kernels]
    row["capacity_ms"] = measure(multiply_places, blocks[0], wi, wo, blocks[1])
    row["mosaic_ms"] = measure(mosaic, x, wi, wo, dy, sizes)
    row["ragged_dot_ms"] = measure(plain, x, wi, wo, dy, sizes)
    row["capacity_tflops"] = flops / row["capacity_ms"] / 1e9
    row["mosaic_tflops"] = share * flops / row["mosaic_ms"] / 1e9
    row["mosaic_to_capacity"] = row["mosaic_ms"] / row["capacity_ms"]
    return row


def check_equal(some: list[jax.Array], others: list[jax.Array], sizes: jax.Array) -> None:
    """Raise where kernels and XLA differ by more than bfloat16 explains, in rows of groups."""
    served = int(sizes.sum())
    for pair in zip(some, others, strict=True):
        one, other = (
            np.asarray(value[:served] if value.ndim == 2 else value, np.float32) for value in pair
        )
        difference = np.abs(one - other).max() / np.abs(other).max()
        if difference > 0.02:
            raise AssertionError(f"a kernel is off by {difference}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, help="where to write the rows")
    arguments = parser.parse_args()
    rows = []
    for name, model in (("wide", WIDE), ("base", BASE)):
        kernels = choose_kernels(model)
        for share in (1.0, 0.7):
            rows.append(compare(name, model, share, kernels))
            print({key: value for key, value in rows[-1].items() if key != "tiles"}, flush=True)
    if arguments.json:
        text = json.dumps({"device": jax.devices()[0].device_kind, "rows": rows}, indent=1)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
