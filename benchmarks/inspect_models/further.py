"""Steps that the rules of findings were not written with: each with its mistake, and without.

$ python -m benchmarks.inspect_models.further --json benchmarks/results/inspect/further.json

As in `mistakes.py`, a function returns a step and its arguments, and lines that a finding is
expected at end in `# mistake`. Those of kind "" are clean both ways.
"""

# pyright: reportMissingImports=false
# ruff: noqa: D103 (a case says what it is by its name)

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.inspect_models import mistakes
from benchmarks.inspect_models.mistakes import (
    HIDDEN,
    ROWS,
    WIDTH,
    Case,
    array,
    constrain,
    equinox_step,
    grid,
    megatron,
    mesh,
    on,
    place,
)

CASES: dict[str, tuple[str, str | None, Case]] = {}
case = functools.partial(mistakes.case, cases=CASES)


def whole(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Split nothing."""
    return ()


def put(tree: Any, split: Any) -> Any:
    """Place the arrays of a tree."""

    def put_one(path: Any, one: Any) -> Any:
        return jax.device_put(one, on(*split(jax.tree_util.keystr(path), one.shape)))

    return jax.tree_util.tree_map_with_path(put_one, tree)


@case("whole parameter")
def nnx_moments_are_made_before_weights_are_split(mistake: bool) -> Any:
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up = nnx.Linear(WIDTH, HIDDEN, rngs=rngs)
            self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.down(nnx.relu(self.up(x)))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    nnx.update(model, put(nnx.state(model), megatron))
    nnx.update(optimizer, put(nnx.state(optimizer), whole if mistake else megatron))

    @nnx.jit
    def train_step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
        optimizer.update(model, gradients)  # mistake
        return value

    return train_step, (model, optimizer, put(jnp.ones((ROWS, WIDTH)), lambda *_: ("data",)))


@case("gathered, then sliced")
def nnx_attention_gathers_its_values(mistake: bool) -> Any:
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            make = functools.partial(nnx.Linear, use_bias=False, rngs=rngs)
            self.q, self.k, self.v = (make(WIDTH, HIDDEN) for _ in range(3))
            self.o = make(HIDDEN, WIDTH)

        def __call__(self, x: jax.Array) -> jax.Array:
            q, k, v = (one(x).reshape(8, 32, 8, -1) for one in (self.q, self.k, self.v))
            if mistake:
                v = constrain(v, on("data"))  # mistake
            v = constrain(v, on("data", None, "model"))
            shares = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 11.0)
            return self.o(jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(8, 32, HIDDEN))

    graph, state = nnx.split(Model(nnx.Rngs(0)))
    arguments = place(state, megatron), array(8, 32, WIDTH, axes=("data",))
    return lambda state, x: nnx.merge(graph, state)(x), arguments


@case("repeated in a loop", "h100:1x8")
def equinox_cell_gathers_in_each_step(mistake: bool) -> Any:
    import equinox as eqx

    over = mesh(data=8)

    def gather_one(w: Any) -> Any:
        return jax.lax.all_gather(w, "data", tiled=True) if w.ndim == 2 else w  # mistake

    def apply(cell: Any, x: Any) -> Any:
        cell = cell if mistake else jax.tree.map(gather_one, cell)

        def advance(h: Any, row: Any) -> Any:
            own = jax.tree.map(gather_one, cell) if mistake else cell
            return jax.vmap(own)(row, h), None

        return jax.lax.scan(advance, jnp.zeros((x.shape[1], WIDTH)), x)[0]

    step, arrays = equinox_step(eqx.nn.GRUCell(WIDTH, WIDTH, key=jax.random.key(0)), apply)
    split = lambda path, sizes: ("data",) if len(sizes) == 2 else ()
    placed = place(arrays, split, over)
    specs = jax.tree.map(lambda one: one.sharding.spec, placed), P(None, "data")
    step = jax.shard_map(step, mesh=over, in_specs=specs, out_specs=P("data"), check_vma=False)
    return step, (placed, array(6, ROWS, WIDTH, axes=(None, "data"), over=over))


@case("unused axis")
def equinox_images_are_on_no_axis(mistake: bool) -> Any:
    import equinox as eqx

    over = mesh(data=8)
    layer = eqx.nn.Conv2d(16, 64, 3, padding=1, key=jax.random.key(0))
    step, arrays = equinox_step(layer, lambda layer, x: jnp.mean(jax.vmap(layer)(x) ** 2))
    images = array(32, 16, 32, 32, axes=() if mistake else ("data",), over=over)
    return jax.grad(step), (place(arrays, whole, over), images)


@case("whole parameter")
def equinox_embedding_is_whole(mistake: bool) -> Any:
    import equinox as eqx
    import optax

    class Model(eqx.Module):
        table: eqx.nn.Embedding
        layer: eqx.nn.Linear

        def __call__(self, ids: jax.Array) -> jax.Array:
            rows = jax.vmap(jax.vmap(self.table))(ids)  # mistake
            return jax.vmap(jax.vmap(self.layer))(rows)

    keys = jax.random.split(jax.random.key(0))
    layer = eqx.nn.Linear(WIDTH, HIDDEN, use_bias=False, key=keys[1])
    model = Model(eqx.nn.Embedding(8192, WIDTH, key=keys[0]), layer)
    apply, arrays = equinox_step(model, lambda model, ids: jnp.mean(model(ids) ** 2))
    optimizer = optax.sgd(0.1)

    def step(arrays: Any, ids: Any) -> Any:
        gradients = jax.grad(apply)(arrays, ids)
        return optax.apply_updates(arrays, optimizer.update(gradients, optimizer.init(arrays))[0])

    def split(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        table = () if mistake else (None, "model")
        return table if 8192 in sizes else megatron(path, sizes)

    return step, (place(arrays, split), array(8, 32, axes=("data",), dtype="int32"))


@case("whole parameter")
def equinox_state_has_whole_moments(mistake: bool) -> Any:
    import equinox as eqx
    import optax

    model = eqx.nn.MLP(WIDTH, WIDTH, HIDDEN, 2, key=jax.random.key(0))
    apply, arrays = equinox_step(model, lambda model, x: jnp.mean((jax.vmap(model)(x) - x) ** 2))
    optimizer = optax.adam(1e-3)
    split = lambda path, sizes: ("model",) if sizes and sizes[0] % 4 == 0 else ()
    moments = place(optimizer.init(arrays), whole if mistake else split)

    def step(state: Any, x: Any) -> Any:
        gradients = jax.grad(apply)(state["params"], x)
        updates, moments = optimizer.update(gradients, state["opt"])  # mistake
        return {"params": optax.apply_updates(state["params"], updates), "opt": moments}

    state = {"params": place(arrays, split), "opt": moments}
    return step, (state, array(ROWS, WIDTH, axes=("data",)))


@case("unused axis")
def haliax_mapping_has_a_typo(mistake: bool) -> Any:
    import equinox as eqx
    import haliax as hax
    import haliax.nn as hnn

    rows, width, hidden = hax.make_axes(rows=ROWS, width=WIDTH, hidden=HIDDEN)
    mapping = {"rows": "data", "hiden" if mistake else "hidden": "model"}
    keys = jax.random.split(jax.random.key(0))
    up = hnn.Linear.init(width, hidden, key=keys[0])
    down = hnn.Linear.init(hidden, width, key=keys[1])
    with jax.set_mesh(grid()):
        layers, x = hax.shard((up, down), mapping), hax.shard(hax.ones((rows, width)), mapping)
    arrays, static = eqx.partition((layers, x), eqx.is_array)

    def step(arrays: Any) -> Any:
        (up, down), x = eqx.combine(arrays, static)
        with hax.axis_mapping(mapping):
            h = hax.auto_sharded(hnn.relu(up(x)))  # mistake
            return down(h).array

    return step, (arrays,)


@case("whole activation")
def haliax_stack_gathers_its_rows(mistake: bool) -> Any:
    import equinox as eqx
    import haliax as hax
    import haliax.nn as hnn

    over = mesh(data=8)
    rows, width, layers = hax.make_axes(rows=2048, width=WIDTH, layers=3)

    class Block(eqx.Module):
        layer: hnn.Linear

        @staticmethod
        def init(*, key: Any) -> Block:
            return Block(hnn.Linear.init(width, width.alias("out"), key=key))

        def __call__(self, x: Any) -> Any:
            return x + hnn.relu(self.layer(x).rename({"out": "width"}))

    stack = hnn.Stacked.init(layers, Block)(key=jax.random.split(jax.random.key(0), 3))
    head = hnn.Linear.init(width, hax.Axis("classes", 128), key=jax.random.key(3))

    def apply(model: Any, x: Any) -> Any:
        y = model[0].fold(hax.named(x, (rows, width)))
        if mistake:
            y = hax.named(constrain(y.array, on(over=over)), y.axes)  # mistake
        return hax.mean(model[1](y) ** 2).array

    step, arrays = equinox_step((stack, head), apply)
    return step, (place(arrays, whole, over), array(2048, WIDTH, axes=("data",), over=over))


@case("gathered twice")
def penzai_gathers_again_for_a_norm(mistake: bool) -> Any:
    from penzai import pz

    over = mesh(data=8)

    def body(w: Any, x: Any) -> Any:
        once = jax.lax.all_gather(w, "data", tiled=True)
        y = pz.nx.wrap(x).tag("r", "w").unwrap("r", "w") @ once
        again = jax.lax.all_gather(w, "data") if mistake else once  # mistake
        return jax.lax.pmean(jnp.mean(y**2) + jnp.sum(jnp.abs(again)), "data")

    step = jax.shard_map(body, mesh=over, in_specs=(P("data"),) * 2, out_specs=P(), check_vma=False)
    shapes = (WIDTH, WIDTH), (ROWS, WIDTH)
    return step, tuple(array(*sizes, axes=("data",), over=over) for sizes in shapes)


@case("sent as float32")
def penzai_scales_in_float32(mistake: bool) -> Any:
    from penzai import pz

    def step(x: Any, w: Any) -> Any:
        x = pz.nx.wrap(x).tag("r", "h").unwrap("r", "h")
        wanted = jnp.float32 if mistake else None
        y = jnp.einsum("rh,hw->rw", x, w, preferred_element_type=wanted)  # mistake
        return (y * jnp.asarray(0.5, y.dtype)).astype(jnp.bfloat16)

    x = array(ROWS, HIDDEN, axes=("data", "model"), dtype="bfloat16")
    return step, (x, array(HIDDEN, WIDTH, axes=("model",), dtype="bfloat16"))


@case("whole parameter")
def keras_kernel_between_others_is_whole(mistake: bool) -> Any:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    h = inputs = keras.Input((WIDTH,))
    for size in (HIDDEN, HIDDEN):
        h = keras.layers.Dense(size, activation="relu", use_bias=False)(h)
    model = keras.Model(inputs, keras.layers.Dense(WIDTH, use_bias=False)(h))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    params = [one.value for one in model.trainable_variables]
    slots = [one.value for one in optimizer.variables]

    def step(params: Any, slots: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((model.stateless_call(params, [], x)[0] - x) ** 2)  # mistake

        value, gradients = jax.value_and_grad(loss)(params)
        return value, optimizer.stateless_apply(slots, gradients, params)

    def split(path: str, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        between = () if mistake else ("model",)
        return between if sizes == (HIDDEN, HIDDEN) else megatron(path, sizes)

    x = array(ROWS, WIDTH, axes=("data",))
    return step, (place(params, split), place(slots, whole), x)


@case("gathered, then sliced")
def plain_experts_gather_all_tokens(mistake: bool) -> Any:
    over = mesh(expert=8)

    def body(x: Any, w: Any) -> Any:
        if mistake:
            own = jax.lax.axis_index("expert")
            everything = jax.lax.all_gather(x, "expert")  # mistake
            rows = jax.lax.dynamic_index_in_dim(everything, own, 1, keepdims=False)
        else:
            rows = jax.lax.all_to_all(x, "expert", 0, 0)
        return jnp.einsum("gsw,wh->gsh", rows, w[0])

    specs = {"in_specs": (P("expert"),) * 2, "out_specs": P("expert"), "check_vma": False}
    step = jax.shard_map(body, mesh=over, **specs)
    shapes = (64, 32, WIDTH), (8, WIDTH, HIDDEN)
    return step, tuple(array(*sizes, axes=("expert",), over=over) for sizes in shapes)


@case("permutation across hosts", "h100:2x8")
def plain_ring_of_keys_across_hosts(mistake: bool) -> Any:
    over = mesh(**({"seq": 8, "data": 2} if mistake else {"data": 2, "seq": 8}))
    ring = [(i, (i + 1) % 8) for i in range(8)]

    def body(q: Any, k: Any) -> Any:
        def turn(carry: Any, _: None) -> Any:
            total, k = carry
            total = total + jnp.einsum("bqd,bkd->bq", q, k)
            return (total, jax.lax.ppermute(k, "seq", ring)), None  # mistake

        return jax.lax.scan(turn, (jnp.zeros(q.shape[:2], q.dtype), k), None, length=8)[0][0]

    spec = P("data", "seq")
    step = jax.shard_map(body, mesh=over, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    return step, (array(8, 1024, 128, axes=("data", "seq"), over=over),) * 2


@case("uneven padding")
def plain_sequence_of_an_odd_length(mistake: bool) -> Any:
    def loss(w: Any, x: Any) -> Any:
        h = constrain(jnp.tanh(x @ w), on("data", "model"))  # mistake
        return jnp.mean(h**2)

    x = array(16, 99 if mistake else 100, WIDTH, axes=("data",))
    return jax.grad(loss), (array(WIDTH, WIDTH), x)


@case("summed, then sliced")
def plain_split_optimizer_sums_whole_gradients(mistake: bool) -> Any:
    over = mesh(data=8)

    def body(p: Any, m: Any, x: Any) -> Any:
        w = jax.lax.all_gather(p, "data", tiled=True)
        g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        if mistake:
            g = jax.lax.pmean(g, "data")  # mistake
            own = jax.lax.axis_index("data") * p.shape[0]
            g = jax.lax.dynamic_slice_in_dim(g, own, p.shape[0])
        else:
            g = jax.lax.psum_scatter(g, "data", tiled=True) / 8
        m = 0.9 * m + g
        return p - 0.1 * m, m

    specs = {"in_specs": (P("data"),) * 3, "out_specs": (P("data"),) * 2, "check_vma": False}
    step = jax.shard_map(body, mesh=over, **specs)
    shapes = (WIDTH, HIDDEN), (WIDTH, HIDDEN), (ROWS, WIDTH)
    return step, tuple(array(*sizes, axes=("data",), over=over) for sizes in shapes)


@case("involuntary rematerialization")
def plain_heads_join_the_batch(mistake: bool) -> Any:
    def step(x: Any, w: Any) -> Any:
        y = constrain(x @ w, on(None, "data", "model") if mistake else on("data", None, "model"))
        y = y.reshape(16, 64, 8, -1).transpose(0, 2, 1, 3).reshape(128, 64, -1)  # mistake
        return constrain(y, on(("data", "model"))) * 2 if mistake else y * 2

    return step, (array(16, 64, WIDTH, axes=("data",)), array(WIDTH, HIDDEN, axes=(None, "model")))


@case("")
def plain_gradients_are_accumulated(mistake: bool) -> Any:
    def step(w: Any, x: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            return total + jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), None

        return w - jax.lax.scan(add, jnp.zeros_like(w), x)[0]

    weight = array(WIDTH, HIDDEN, axes=(None, "model"))
    return step, (weight, array(4, ROWS, WIDTH, axes=(None, "data")))


@case("")
def plain_weights_are_whole_and_moments_split(mistake: bool) -> Any:
    over = mesh(data=8)
    shapes = {"wi": (WIDTH, HIDDEN), "wo": (HIDDEN, WIDTH)}
    weights = {name: array(*sizes, over=over) for name, sizes in shapes.items()}
    moments = {name: array(*sizes, axes=("data",), over=over) for name, sizes in shapes.items()}

    def step(state: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ p["wi"]) @ p["wo"]) ** 2)

        gradients = jax.grad(loss)(state["params"])
        add = lambda m, g: 0.9 * m + constrain(g, on("data", over=over))
        moments = jax.tree.map(add, state["opt"]["mu"], gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], moments), moments

    state = {"params": weights, "opt": {"mu": moments}}
    return step, (state, array(ROWS, WIDTH, axes=("data",), over=over))


@case("")
def plain_weights_and_batch_are_one_argument(mistake: bool) -> Any:
    over = mesh(data=8)
    weights = {"wi": array(WIDTH, HIDDEN, over=over), "wo": array(HIDDEN, WIDTH, over=over)}

    def step(given: Any) -> Any:
        p, x = given
        return jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["wi"]) @ p["wo"]) ** 2))(p)

    return step, ((weights, array(ROWS, WIDTH, axes=("data",), over=over)),)


@case("")
def plain_decoding_with_a_cache(mistake: bool) -> Any:
    def step(p: Any, cache: Any, ids: Any, at: Any) -> Any:
        x = p["table"][ids]
        q, k, v = jnp.moveaxis(jnp.einsum("bd,dchk->bchk", x, p["qkv"]), 1, 0)
        write = jax.lax.dynamic_update_slice
        keys, values = (
            write(cache[name], one[:, None], (0, at, 0, 0)) for name, one in (("k", k), ("v", v))
        )
        logits = jnp.einsum("bhk,bshk->bhs", q, keys) / 8
        shares = jax.nn.softmax(jnp.where(jnp.arange(128) <= at, logits, -1e9))
        x = x + jnp.einsum("bhs,bshk,hkd->bd", shares, values, p["out"])
        return jnp.argmax(x @ p["table"].T, -1), {"k": keys, "v": values}

    params = {
        "table": array(4096, WIDTH, axes=("model",)),
        "qkv": array(WIDTH, 3, 8, 64, axes=(None, None, "model")),
        "out": array(8, 64, WIDTH, axes=("model",)),
    }
    cache = array(16, 128, 8, 64, axes=("data", None, "model"))
    at = jax.ShapeDtypeStruct((), "int32", sharding=NamedSharding(grid(), P()))
    ids = array(16, axes=("data",), dtype="int32")
    return step, (params, {"k": cache, "v": cache}, ids, at)


@case("")
def plain_experts_by_einsum(mistake: bool) -> Any:
    def loss(p: Any, x: Any) -> Any:
        chosen = jax.nn.one_hot(jnp.argmax(x @ p["gate"], -1), 8)
        places = (jnp.cumsum(chosen, 1) * chosen - 1).astype(int)
        dispatch = jax.nn.one_hot(places, 64) * chosen[..., None]
        rows = constrain(jnp.einsum("gsec,gsm->egcm", dispatch, x), on("model", "data"))
        h = jax.nn.relu(jnp.einsum("egcm,emh->egch", rows, p["wi"]))
        y = constrain(jnp.einsum("egch,ehm->egcm", h, p["wo"]), on("model", "data"))
        return jnp.mean(jnp.einsum("gsec,egcm->gsm", dispatch, y) ** 2)

    params = {
        "gate": array(WIDTH, 8),
        "wi": array(8, WIDTH, HIDDEN, axes=("model",)),
        "wo": array(8, HIDDEN, WIDTH, axes=("model",)),
    }
    return jax.grad(loss), (params, array(8, 128, WIDTH, axes=("data",)))


if __name__ == "__main__":
    mistakes.main(CASES)
