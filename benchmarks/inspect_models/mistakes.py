"""Twenty mistakes in models of other libraries: each is to be found at its line, and no other.

$ python -m benchmarks.inspect_models.mistakes --json benchmarks/results/inspect/mistakes.json

A function here returns a step and its arguments, with the mistake or without. Lines that a finding
is expected at end in `# mistake`.
"""

# pyright: reportMissingImports=false
# ruff: noqa: D103 (a case says what it is by its name)

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint as constrain
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import namedmesh as nm

ROWS, WIDTH, HIDDEN = 256, 512, 1024
Case = Callable[[bool], tuple[Any, tuple[Any, ...]]]
CASES: dict[str, tuple[str, str | None, Case]] = {}  # by name: the kind, the target, the case


def case(
    kind: str, target: str | None = None, *, cases: dict[str, Any] = CASES
) -> Callable[[Case], Case]:
    """Enter a case under its name."""
    return lambda make: cases.setdefault(make.__name__, (kind, target, make))[2]


@functools.cache
def mesh(**axes: int) -> jax.sharding.Mesh:
    """A mesh of virtual devices."""
    types = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)


def grid() -> jax.sharding.Mesh:
    """Two groups of four devices."""
    return mesh(data=2, model=4)


def on(*axes: Any, over: jax.sharding.Mesh | None = None) -> NamedSharding:
    """A sharding over axes."""
    return NamedSharding(over or grid(), P(*axes))


def array(*sizes: int, axes: tuple[Any, ...] = (), dtype: str = "float32", over: Any = None) -> Any:
    """An array that is not there."""
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=on(*axes, over=over))


def place(tree: Any, split: Callable[[str, Any], tuple[Any, ...]], over: Any = None) -> Any:
    """Describe the arrays of a tree, split by a rule of their path and sizes."""

    def place_one(path: Any, one: Any) -> Any:
        axes = split(jax.tree_util.keystr(path), one.shape)
        return array(*one.shape, axes=axes, dtype=str(one.dtype), over=over)

    return jax.tree_util.tree_map_with_path(place_one, tree)


def megatron(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Split the hidden units of weights."""
    return tuple("model" if size == HIDDEN else None for size in sizes)


def fsdp(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Split the rows of weights."""
    return ("data",) if len(sizes) > 1 else ()


def batch(*, dtype: str = "float32", axes: tuple[Any, ...] = ("data",), over: Any = None) -> Any:
    """A batch."""
    return array(ROWS, WIDTH, axes=axes, dtype=dtype, over=over)


def nnx_mlp(between: Callable[[Any], Any] = lambda h: h, **options: Any) -> tuple[Any, Any]:
    """An MLP of Flax NNX: its function, and its state."""
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up = nnx.Linear(WIDTH, HIDDEN, rngs=rngs, **options)
            self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs, **options)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.down(between(nnx.gelu(self.up(x))))

    graph, state = nnx.split(Model(nnx.Rngs(0)))
    return lambda state, x: nnx.merge(graph, state)(x), state


@case("gathered, then sliced")
def nnx_gathers_hidden_units(mistake: bool) -> Any:
    def between(h: Any) -> Any:
        if mistake:
            h = constrain(h, on())  # mistake
        return constrain(h, on("data", "model"))

    apply, state = nnx_mlp(between)
    return apply, (place(state, megatron), batch())


@case("whole parameter")
def nnx_rule_misses_a_renamed_layer(mistake: bool) -> Any:
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.wi = nnx.Linear(WIDTH, HIDDEN, rngs=rngs)
            self.proj = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            h = nnx.gelu(self.wi(x))
            return self.proj(h)  # mistake

    graph, state = nnx.split(Model(nnx.Rngs(0)))
    rules = ("wi", "wo") if mistake else ("wi", "proj")

    def split(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        return megatron(path, sizes) if any(f"'{one}'" in path for one in rules) else ()

    return lambda state, x: nnx.merge(graph, state)(x), (place(state, split), batch())


@case("sent as float32", "h100:1x8")
def nnx_layer_without_a_dtype(mistake: bool) -> Any:
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up = nnx.Linear(WIDTH, HIDDEN, dtype=jnp.bfloat16, rngs=rngs)
            dtype = None if mistake else jnp.bfloat16
            self.down = nnx.Linear(HIDDEN, WIDTH, dtype=dtype, use_bias=False, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            y = self.down(nnx.gelu(self.up(x)))  # mistake
            return constrain(y.astype(jnp.bfloat16), on("data"))

    graph, state = nnx.split(Model(nnx.Rngs(0)))
    arguments = place(state, megatron), batch(dtype="bfloat16")
    return lambda state, x: nnx.merge(graph, state)(x), arguments


@case("involuntary rematerialization")
def nnx_heads_change_places(mistake: bool) -> Any:
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.qkv = nnx.Linear(WIDTH, HIDDEN, use_bias=False, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            heads = self.qkv(x).reshape(ROWS // 32, 32, 8, HIDDEN // 8)
            if not mistake:
                return heads.transpose(0, 2, 1, 3) + 1
            heads = constrain(heads, on(None, "data", "model"))  # mistake
            return constrain(heads.transpose(0, 2, 1, 3), on(("data", "model"))) + 1

    graph, state = nnx.split(Model(nnx.Rngs(0)))
    return lambda state, x: nnx.merge(graph, state)(x), (place(state, megatron), batch())


def equinox_linear(rows: int, columns: int, seed: int = 0) -> Any:
    """A linear layer of Equinox without a bias."""
    import equinox as eqx

    return eqx.nn.Linear(rows, columns, use_bias=False, key=jax.random.key(seed))


def equinox_step(model: Any, apply: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """A function of a model's arrays, and these."""
    import equinox as eqx

    arrays, static = eqx.partition(model, eqx.is_array)
    return lambda arrays, x: apply(eqx.combine(arrays, static), x), arrays


@case("summed, then sliced")
def equinox_sums_before_it_slices(mistake: bool) -> Any:
    def body(model: Any, x: Any) -> Any:
        y = jax.vmap(model)(x)
        if not mistake:
            return jax.lax.psum_scatter(y, "model", tiled=True)
        y = jax.lax.psum(y, "model")  # mistake
        rows = y.shape[0] // 4
        return jax.lax.dynamic_slice_in_dim(y, jax.lax.axis_index("model") * rows, rows)

    step, arrays = equinox_step(equinox_linear(HIDDEN, WIDTH), body)
    specs = (P(None, "model"), P("data", "model"))
    result = P(("data", "model"))
    step = jax.shard_map(step, mesh=grid(), in_specs=specs, out_specs=result, check_vma=False)
    return step, (place(arrays, megatron), array(ROWS, HIDDEN, axes=("data", "model")))


@case("whole activation")
def equinox_gathers_the_batch(mistake: bool) -> Any:
    over = mesh(data=8)

    def apply(layers: Any, x: Any) -> Any:
        h = jax.nn.relu(jax.vmap(layers[0])(x))
        if mistake:
            h = constrain(h, on(over=over))  # mistake
        return jnp.mean(jax.vmap(layers[1])(h) ** 2)

    layers = [equinox_linear(WIDTH, HIDDEN), equinox_linear(HIDDEN, WIDTH)]
    step, arrays = equinox_step(layers, apply)
    return step, (place(arrays, lambda *_: (), over), batch(over=over))


@case("repeated in a loop", "h100:1x8")
def equinox_gathers_in_a_loop(mistake: bool) -> Any:
    over = mesh(data=8)

    def apply(model: Any, x: Any) -> Any:
        if not mistake:
            model = jax.tree.map(lambda w: constrain(w, on(over=over)), model)

        def recur(h: Any, _: None) -> Any:
            return jnp.tanh(jax.vmap(model)(h)), None  # mistake

        return jax.lax.scan(recur, x, None, length=6)[0]

    step, arrays = equinox_step(equinox_linear(WIDTH, WIDTH), apply)
    return step, (place(arrays, fsdp, over), batch(over=over))


@case("uneven padding")
def equinox_splits_ten_classes(mistake: bool) -> Any:
    classes = 10 if mistake else 12

    def apply(layers: Any, x: Any) -> Any:
        y = jax.vmap(layers[1])(jax.nn.relu(jax.vmap(layers[0])(x)))
        return jax.nn.softmax(constrain(y, on("data", "model")))  # mistake

    layers = [equinox_linear(WIDTH, HIDDEN), equinox_linear(HIDDEN, classes)]
    step, arrays = equinox_step(layers, apply)
    return step, (place(arrays, megatron), batch())


def haliax_mlp(between: Callable[[Any], Any] = lambda h: h) -> tuple[Any, Any]:
    """An MLP of Haliax: its function, and its arrays."""
    import haliax as hax
    import haliax.nn as hnn

    rows, width, hidden = (hax.Axis(*one) for one in (("r", ROWS), ("w", WIDTH), ("h", HIDDEN)))
    one, two = jax.random.split(jax.random.key(0))
    layers = hnn.Linear.init(width, hidden, key=one), hnn.Linear.init(hidden, width, key=two)

    def apply(layers: Any, x: Any) -> Any:
        up, down = layers
        return down(between(hnn.relu(up(hax.named(x, (rows, width)))))).array

    return equinox_step(layers, apply)


@case("unused axis")
def haliax_batch_on_no_axis(mistake: bool) -> Any:
    step, arrays = haliax_mlp()
    return step, (place(arrays, megatron), batch(axes=() if mistake else ("data",)))


@case("gathered, then sliced")
def haliax_constrains_to_nothing(mistake: bool) -> Any:
    import haliax as hax

    def between(h: Any) -> Any:
        if mistake:
            h = hax.named(constrain(h.array, on()), h.axes)  # mistake
        return hax.named(constrain(h.array, on("data", "model")), h.axes)

    step, arrays = haliax_mlp(between)
    return step, (place(arrays, megatron), batch())


@case("whole parameter")
def haliax_axis_mapping_misses_a_layer(mistake: bool) -> Any:
    def split(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        return () if mistake and path.startswith("[1]") else megatron(path, sizes)

    step, arrays = haliax_mlp()
    return step, (place(arrays, split), batch())


@case("permutation across hosts", "h100:2x8")
def haliax_ring_across_hosts(mistake: bool) -> Any:
    sizes = {"ring": 8, "data": 2} if mistake else {"data": 2, "ring": 8}
    over = mesh(**sizes)
    pairs = [(i, (i + 1) % 8) for i in range(8)]

    def body(x: Any) -> Any:
        import haliax as hax

        rows, width = hax.Axis("r", ROWS // 16), hax.Axis("w", WIDTH)
        shifted = jax.lax.ppermute(x, "ring", pairs)  # mistake
        return (hax.named(x, (rows, width)) * hax.named(shifted, (rows, width))).array

    spec = P(("data", "ring"))
    step = jax.shard_map(body, mesh=over, in_specs=spec, out_specs=spec)
    return step, (batch(axes=(("data", "ring"),), over=over),)


def penzai_step(between: Callable[[Any], Any], dtype: str = "float32") -> tuple[Any, Any]:
    """Two linear layers of Penzai with a function between them: the step, and its parameters."""
    from penzai import pz

    one, two = (
        pz.nn.Linear.from_config(name, jax.random.key(0), {"w": a}, {"w": b}, dtype=dtype)
        for name, a, b in (("up", WIDTH, HIDDEN), ("down", HIDDEN, WIDTH))
    )
    (one, two), params = pz.unbind_params((one, two), freeze=True)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        up, down = pz.bind_variables((one, two), params)
        h = up(pz.nx.wrap(x).tag("r", "w")).unwrap("r", "w")
        return down(pz.nx.wrap(between(jax.nn.relu(h))).tag("r", "w")).unwrap("r", "w")

    return apply, params


@case("whole activation")
def penzai_gathers_the_batch(mistake: bool) -> Any:
    over = mesh(data=8)

    def between(h: Any) -> Any:
        return constrain(h, on(over=over)) if mistake else h  # mistake

    step, params = penzai_step(between)
    return step, (place(params, lambda *_: (), over), batch(over=over))


@case("uneven padding")
def penzai_splits_uneven_units(mistake: bool) -> Any:
    def between(h: Any) -> Any:
        h = h[:, : HIDDEN - 6] if mistake else h[:, : HIDDEN - 8]
        h = constrain(h, on("data", "model"))  # mistake
        return jnp.pad(h, ((0, 0), (0, HIDDEN - h.shape[1])))

    step, params = penzai_step(between)
    return step, (place(params, lambda *_: ()), batch())


@case("sent as float32")
def penzai_sums_in_float32(mistake: bool) -> Any:
    def body(x: Any, w: Any) -> Any:
        from penzai import pz

        rows = pz.nx.wrap(x).tag("r", "h").unwrap("r", "h")
        wanted = jnp.float32 if mistake else None
        y = jnp.dot(rows, w, preferred_element_type=wanted)  # mistake
        return y.astype(jnp.bfloat16)

    x = array(ROWS, HIDDEN, axes=("data", "model"), dtype="bfloat16")
    return body, (x, array(HIDDEN, WIDTH, axes=("model",), dtype="bfloat16"))


def keras_mlp(between: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
    """An MLP of Keras 3, and its variables."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    inputs = keras.Input((WIDTH,))
    h = keras.layers.Dense(HIDDEN, activation="relu", use_bias=False)(inputs)
    h = keras.layers.Lambda(between)(h) if between is not None else h
    model = keras.Model(inputs, keras.layers.Dense(WIDTH, use_bias=False)(h))
    return model, [one.value for one in model.trainable_variables]


@case("whole parameter")
def keras_second_kernel_is_whole(mistake: bool) -> Any:
    def split(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        return () if mistake and path == "[1]" else megatron(path, sizes)

    model, params = keras_mlp()

    def step(params: Any, x: Any) -> Any:
        return model.stateless_call(params, [], x)[0]  # mistake

    return step, (place(params, split), batch())


@case("unused axis")
def keras_batch_on_no_axis(mistake: bool) -> Any:
    model, params = keras_mlp()

    def step(params: Any, x: Any) -> Any:
        return model.stateless_call(params, [], x)[0]  # mistake

    return step, (place(params, megatron), batch(axes=() if mistake else ("data",)))


@case("gathered, then sliced")
def keras_layer_gathers(mistake: bool) -> Any:
    def between(h: Any) -> Any:
        if mistake:
            h = constrain(h, on())  # mistake
        return constrain(h, on("data", "model"))

    model, params = keras_mlp(between)

    def step(params: Any, x: Any) -> Any:
        return model.stateless_call(params, [], x)[0]

    return step, (place(params, megatron), batch())


@case("gathered twice")
def optax_decay_gathers_again(mistake: bool) -> Any:
    import optax

    over = mesh(data=8)

    @functools.partial(
        jax.shard_map, mesh=over, in_specs=(P("data"),) * 2, out_specs=P(), check_vma=False
    )
    def step(w: Any, x: Any) -> Any:
        whole = jax.lax.all_gather(w, "data", tiled=True)
        again = functools.partial(jax.lax.all_gather, axis=1, tiled=True)
        decayed = again(w.T, "data") if mistake else w  # mistake
        size = optax.global_norm(decayed)
        return jax.lax.pmean(jnp.mean((x @ whole) ** 2) + size, "data")

    return step, (array(WIDTH, WIDTH, axes=("data",), over=over), batch(over=over))


@case("summed, then sliced")
def optax_updates_its_rows_of_a_whole_sum(mistake: bool) -> Any:
    import optax

    over, optimizer = mesh(data=8), optax.sgd(0.1)

    def sum_up(g: Any) -> Any:
        if not mistake:
            return jax.lax.psum_scatter(g, "data", tiled=True)
        g = jax.lax.psum(g, "data")  # mistake
        rows = WIDTH // 8
        return jax.lax.dynamic_slice_in_dim(g, jax.lax.axis_index("data") * rows, rows)

    specs = {"in_specs": (P("data"),) * 2, "out_specs": P("data"), "check_vma": False}

    @functools.partial(jax.shard_map, mesh=over, **specs)
    def step(w: Any, x: Any) -> Any:
        whole = jax.lax.all_gather(w, "data", tiled=True)
        gradient = sum_up(jax.grad(lambda whole: jnp.mean((x @ whole) ** 2))(whole))
        return optax.apply_updates(w, optimizer.update(gradient, optimizer.init(w))[0])

    return step, (array(WIDTH, WIDTH, axes=("data",), over=over), batch(over=over))


def check(
    name: str, partitioner: str = "shardy", cases: Mapping[str, Any] = CASES
) -> dict[str, Any]:
    """Inspect a case with its mistake and without, and return the row of the table."""
    kind, target, make = cases[name]
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    lines, first = inspect.getsourcelines(make)
    marked = {first + i for i, line in enumerate(lines) if line.rstrip().endswith("# mistake")}
    found, clean = (nm.inspect(*_flat(*make(one)), target=target).findings for one in (True, False))
    own = [one for one in found if one.kind == kind]
    return {
        "mistake": name,
        "kind": kind,
        "target": target or "8 CPU devices",
        "partitioner": partitioner,
        "found": bool(own) if kind else not found,
        "at_its_line": bool(own) and (not marked or own[0].source.line in marked),
        "others": sorted({one.kind for one in found} - {kind}),
        "clean": [str(one) for one in clean],
        "finding": str(own[0]) if own else "",
    }


def _flat(step: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return step, *arguments


def main(cases: Mapping[str, Any] = CASES) -> None:
    """Check the mistakes that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*cases])
    parser.add_argument("--json", type=pathlib.Path, help="the file that is written")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 16)
    rows = []
    for name in arguments.names:
        for partitioner in ("shardy", "gspmd"):
            rows.append(check(name, partitioner, cases))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        names = ("jax", "flax", "equinox", "haliax", "penzai", "keras", "optax")
        versions = {name: version(name) for name in names}
        text = ",\n".join(json.dumps(row) for row in rows)
        head = json.dumps(versions)
        arguments.json.write_text(f'{{"versions": {head}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
