"""Benches: products, passes over memory, attention, launches and collectives, timed on devices.

Every array has the devices as its first dimension, so that all of them work at once, as in a step.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from namedmesh.artifacts.stablehlo.attention_kernel import AttentionCall, Options
from namedmesh.records.collective import KINDS
from namedmesh.runtime.compiling import OPTIONS

# Rows, contracted, columns: a projection, a feed-forward layer and back, a wide one, a long batch.
PRODUCTS = (
    (8192, 4096, 4096), (8192, 4096, 14_336), (8192, 14_336, 4096), (4096, 8192, 8192),
    (16_384, 2048, 8192),
)  # fmt: skip
ATTENTIONS = ((4, 2048, 16, 128), (8, 1024, 16, 64), (1, 8192, 16, 128))  # batch, rows, heads, key
# Softmax and its derivative, in operations for each pair of a query and a key, as nm.cost counts.
PASSES = {"forward": (4, 5.0), "backward": (10, 5.0)}
LAUNCHES = 256  # products that need nothing but their launch
BATCHES = 5  # of calls, whose median counts
SECONDS = 0.3  # for all of them
ROWS = (2048, 65_536)  # of 4,096 numbers that passes over memory read: on CPUs, and elsewhere
SIZES = (2**10, 2**14, 2**18, 2**22, 2**24, 2**26)  # of buffers, in numbers of float32


@dataclass(frozen=True)
class Timing:
    """The seconds that one call took on every device, and the work that it did there."""

    what: str
    seconds: float
    flops: float = 0.0  # of products, on one device
    other_flops: float = 0.0
    bytes: float = 0.0  # read and written, on one device; of a collective, its buffer
    rows: float = 0.0  # of queries that attention begins and ends, more often in the backward pass

    def __str__(self) -> str:
        rates = (("TFLOP/s", self.flops / 1e12), ("GB/s", self.bytes / 1e9))
        text = ", ".join(f"{size / self.seconds:.4g} {unit}" for unit, size in rates if size)
        return f"{self.what}: {self.seconds * 1e6:.4g} us{', ' * bool(text)}{text}"


def time_attention(
    what: str, name: str, batch: int, rows: int, heads: int, key: int, seconds: float
) -> Timing:
    """Return the timing of a pass of attention."""
    products, others = PASSES[name]
    pairs = batch * heads * rows * rows
    work = products * pairs * key, others * pairs
    return Timing(what, seconds, *work, rows=products / 4 * batch * heads * rows)


class Bench:
    """Devices that things are timed on, and how large these should be."""

    def __init__(self, devices: list[Any]) -> None:
        self.mesh = jax.sharding.Mesh(np.array(devices), ("all",))
        self.count, self.platform = len(devices), devices[0].platform
        self.small = self.platform == "cpu"

    def array(self, shape: tuple[int, ...], dtype: str) -> jax.Array:
        """Return normal numbers, other ones on every device: zeros would take less power."""
        where = NamedSharding(self.mesh, PartitionSpec("all"))
        make = jax.jit(
            lambda: jax.random.normal(jax.random.key(0), (self.count, *shape), jnp.float32).astype(
                dtype
            ),
            out_shardings=where,
        )
        return make()

    def seconds(self, function: Callable[..., Any], *operands: Any) -> float:
        """Return the median seconds of a call, calls following each other without a pause."""
        lowered = jax.jit(function).lower(*operands)
        compiled = lowered.compile(compiler_options=dict(OPTIONS.get(self.platform, {})))
        jax.block_until_ready(compiled(*operands))
        start = time.perf_counter()
        jax.block_until_ready(compiled(*operands))
        once = time.perf_counter() - start
        calls = max(1, min(200, int(SECONDS / BATCHES / max(once, 1e-6))))
        taken = []
        for _ in range(BATCHES):
            start = time.perf_counter()
            for _ in range(calls):
                result = compiled(*operands)
                if self.small:  # XLA:CPU may deadlock with several steps in flight
                    jax.block_until_ready(result)
            jax.block_until_ready(result)
            taken.append((time.perf_counter() - start) / calls)
        return statistics.median(taken)

    def products(self, dtype: str, precision: str) -> Iterator[Timing]:
        """Time products, and those of a weight's gradient, which contract the rows."""
        for rows, inner, columns in PRODUCTS:
            if self.small:
                rows, inner, columns = (size // 16 for size in (rows, inner, columns))
            x = self.array((rows, inner), dtype)
            w, dy = self.array((inner, columns), dtype), self.array((rows, columns), dtype)
            flops = 2.0 * rows * inner * columns
            sizes = f"{rows} x {inner} x {columns}, {dtype} {precision}"
            forms = (("product of", "dij,djk->dik", w), ("its gradient,", "dij,dik->djk", dy))
            for what, form, other in forms:
                multiply = functools.partial(jnp.einsum, form, precision=precision)
                yield Timing(f"{what} {sizes}", self.seconds(multiply, x, other), flops)

    def passes(self) -> Iterator[Timing]:
        """Time passes over memory: a sum, a norm, a cast, a transpose, an optimizer's update."""
        rows = ROWS[not self.small]
        wide, full = self.array((rows, 4096), "bfloat16"), self.array((rows, 1024), "float32")
        other, more = wide[:, ::-1], [full * scale for scale in (0.1, 0.2, 0.3)]

        def norm(x: Any) -> Any:
            y = x.astype(jnp.float32)
            return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)).astype(x.dtype)

        def update(w: Any, g: Any, m: Any, v: Any) -> Any:
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
            return w - 0.01 * m * lax.rsqrt(v + 1e-8), m, v

        cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]] = {
            "sum of two": (lambda a, b: a + b, (wide, other), 3),
            "norm of rows": (norm, (wide,), 2),  # compilers read a row once for both passes
            "cast": (lambda a: a.astype(jnp.bfloat16), (full,), 1.5),
            "transpose": (lambda a: jnp.swapaxes(a, 1, 2), (wide,), 2),
            "optimizer's update": (update, (full, *more), 7),
        }
        for what, (function, operands, times) in cases.items():
            size = operands[0].nbytes / self.count * times
            yield Timing(what, self.seconds(function, *operands), bytes=size)

    def launch(self) -> Timing:
        """Time small products that wait for each other."""
        x = self.array((16, 16), "float32")

        def chain(x: Any) -> Any:
            y = x
            for _ in range(LAUNCHES):
                y = jnp.einsum("dij,djk->dik", y, x)
            return y

        return Timing("launch", self.seconds(chain, x) / LAUNCHES)

    def arithmetic(self) -> Timing:
        """Time multiplications and additions that need no memory."""
        x, count = self.array((2**18 if self.small else 2**24,), "float32"), 256

        def chain(x: Any) -> Any:
            y = x
            for _ in range(count):
                y = y * x + 0.5
            return y

        flops = 2.0 * count * x.size / self.count
        return Timing("arithmetic", self.seconds(chain, x), other_flops=flops)

    def attention(self) -> Iterator[Timing]:
        """Time the kernel of attention, both passes, each query seeing the keys before it."""
        for batch, rows, heads, key in ATTENTIONS:
            call = AttentionCall(
                (batch,), (rows,), (heads,), rows, key, (1, rows, rows), Options(0.1)
            )
            q, k, v, dy = (self.array((batch, rows, heads, key), "bfloat16")[0] for _ in range(4))
            mask = jnp.tril(jnp.ones((1, rows, rows), bool))
            y, lse = jax.jit(call.forward)(q, k, v, mask)
            runs = {
                "forward": (call.forward, (q, k, v, mask)),
                "backward": (call.backward, (q, k, v, mask, y, lse, dy)),
            }
            for name, (function, operands) in runs.items():
                what = f"attention of {batch} x {rows} x {heads} x {key}, {name}"
                seconds = self.seconds(function, *operands)
                yield time_attention(what, name, batch, rows, heads, key, seconds)

    def collectives(self) -> Iterator[tuple[str, Timing]]:
        """Time collectives over all devices, of small and large buffers."""
        run: dict[str, Callable[[Any], Any]] = {
            "AllGather": lambda x: lax.all_gather(x, "all", tiled=True),
            "AllReduce": lambda x: lax.psum(x, "all"),
            "AllToAll": lambda x: lax.all_to_all(x, "all", 0, 0, tiled=True),
            "CollectivePermute": lambda x: lax.ppermute(
                x, "all", [(i, (i + 1) % self.count) for i in range(self.count)]
            ),
            "ReduceScatter": lambda x: lax.psum_scatter(x, "all", tiled=True),
        }
        most = 2**22 if self.small else 2**26
        place = PartitionSpec("all")
        for size in SIZES:
            for kind in KINDS if size <= most else ():
                own = size // self.count if kind == "AllGather" else size  # what a device has
                own = math.ceil(own / self.count / 4) * self.count
                x = self.array((own,), "float32").reshape(-1)
                function = jax.shard_map(
                    run[kind], mesh=self.mesh, in_specs=place, out_specs=place, check_vma=False
                )
                buffer = own * 4 * (self.count if kind == "AllGather" else 1)
                what = f"{kind} of {buffer} bytes over {self.count} devices"
                yield kind, Timing(what, self.seconds(function, x), bytes=buffer)
