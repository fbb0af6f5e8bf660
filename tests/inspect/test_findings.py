"""Findings: planted mistakes are found at their lines, and the clean versions have none."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.lax import with_sharding_constraint as constrain
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import namedmesh as nm
from namedmesh.jax_internals import partition_with
from tests.inspect.steps import make_mesh

MESH = make_mesh(data=2, model=4)


def place(*sizes: int, over: tuple[Any, ...] = (), dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(MESH, P(*over)))


X = place(64, 64, over=("data", "model"))


def manual(*specs: Any) -> Any:
    """Make a function run on each device's own shards."""
    *given, result = specs
    return lambda f: functools.wraps(f)(
        jax.shard_map(f, mesh=MESH, in_specs=tuple(given), out_specs=result, check_vma=False)
    )


def sliced(x):
    y = constrain(jnp.tanh(x), NamedSharding(MESH, P(None, None)))  # mistake
    return constrain(y, NamedSharding(MESH, P("model", "data"))) * 2


def not_sliced(x):
    return constrain(jnp.tanh(x), NamedSharding(MESH, P("data", "model"))) * 2


def two_weights(params, x):
    return jnp.tanh(x @ params["first"]) @ params["second"]  # mistake


@manual(P("data", "model"), P("model", None), P(("data", "model"), None))
def summed(x, w):
    y = jax.lax.psum(x @ w, "model")  # mistake
    return jax.lax.dynamic_slice_in_dim(y, jax.lax.axis_index("model") * 8, 8)


@manual(P("data", "model"), P("model", None), P(("data", "model"), None))
def scattered(x, w):
    return jax.lax.psum_scatter(x @ w, "model", tiled=True)


@manual(P("model", None), P("data", None), P("data", None))
def gathered_twice(w, x):
    once = x @ jax.lax.all_gather(w, "model", tiled=True)
    return once + x @ jax.lax.all_gather(w.T, "model", axis=1, tiled=True)  # mistake


@manual(P("model", None), P("data", None), P("data", None))
def gathered_once(w, x):
    whole = jax.lax.all_gather(w, "model", tiled=True)
    return x @ whole + x @ whole.T


def whole(x, w):
    y = constrain(jnp.tanh(x @ w), NamedSharding(MESH, P(None, None)))  # mistake
    return jnp.sum((y @ w) ** 2)


def split(x, w):
    y = constrain(jnp.tanh(x @ w), NamedSharding(MESH, P(("data", "model"), None)))
    return jnp.sum((y @ w) ** 2)


def wide(x, w):
    y = jnp.dot(x, w, preferred_element_type=jnp.float32)  # mistake
    return jax.nn.relu(y).astype(jnp.bfloat16)


def narrow(x, w):
    return jax.nn.relu(x @ w)


def uneven(x):
    return constrain(jnp.tanh(x)[:, :62], NamedSharding(MESH, P("data", "model")))  # mistake


def even(x):
    return constrain(jnp.tanh(x)[:, :60], NamedSharding(MESH, P("data", "model")))


def rematerialized(x):
    y = jnp.sin(x).reshape(8, 8, 8, 8)
    y = constrain(y, NamedSharding(MESH, P(None, "data", "model")))  # mistake
    return constrain(y.transpose(0, 2, 1, 3), NamedSharding(MESH, P(("data", "model")))) + 1


def in_steps(x):
    y = jnp.sin(x).reshape(8, 8, 8, 8)
    return constrain(y.transpose(0, 2, 1, 3), NamedSharding(MESH, P("data"))) + 1


BIG = place(512, 1024, over=(None, "model"))
ROWS = place(64, 512, over=("data", None))
BROKEN = {"first": BIG, "second": place(1024, 512)}
WORKING = {"first": BIG, "second": place(1024, 512, over=("model", None))}
WEIGHT, DATA = place(64, 64, over=("model", None)), place(64, 64, over=("data", None))
BATCH = place(1024, 512, over=(("data", "model"), None))
NARROW = place(64, 256, over=("data", "model"), dtype="bfloat16")
NARROW_WEIGHT = place(256, 256, over=("model", None), dtype="bfloat16")
CASES = {
    "gathered, then sliced": (sliced, not_sliced, (X,), (X,)),
    "summed, then sliced": (summed, scattered, (X, WEIGHT), (X, WEIGHT)),
    "gathered twice": (gathered_twice, gathered_once, (WEIGHT, DATA), (WEIGHT, DATA)),
    "whole parameter": (two_weights, two_weights, (BROKEN, ROWS), (WORKING, ROWS)),
    "whole activation": (whole, split, (BATCH, place(512, 512)), (BATCH, place(512, 512))),
    "unused axis": (two_weights, two_weights, (WORKING, place(64, 512)), (WORKING, ROWS)),
    "sent as float32": (wide, narrow, (NARROW, NARROW_WEIGHT), (NARROW, NARROW_WEIGHT)),
    "uneven padding": (uneven, even, (X,), (X,)),
    "involuntary rematerialization": (rematerialized, in_steps, (X,), (X,)),
}


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
@pytest.mark.parametrize("kind", CASES)
def test_a_mistake_is_found_at_its_line_and_the_clean_version_has_none(kind, partitioner):
    mistaken, clean, arguments, others = CASES[kind]
    with partition_with(partitioner):
        found = [one for one in nm.inspect(mistaken, *arguments).findings if one.kind == kind]
        assert nm.inspect(clean, *others).findings == ()
    lines, first = inspect.getsourcelines(mistaken)
    marked = [first + i for i, line in enumerate(lines) if "# mistake" in line]
    assert [one.source.line for one in found][:1] == marked
    assert all(one.fix for one in found)


def momentum(weights, slots, x):
    loss = lambda weights: jnp.mean(two_weights(weights, x) ** 2)
    slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, {"mu": jax.grad(loss)(weights)})
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, slots["mu"]), slots


WHOLE = {"first": place(512, 1024), "second": place(1024, 512)}
BY_ROWS = {name: place(*one.shape, over=("data",)) for name, one in WHOLE.items()}


def test_moments_are_split_as_their_weights_or_further():
    found = nm.inspect(momentum, WORKING, {"mu": WHOLE}, ROWS).findings
    assert {one.kind for one in found} == {"whole parameter"}
    assert {one.message.partition(" ")[0] for one in found} == {
        "slots['mu']['first']", "slots['mu']['second']"
    }  # fmt: skip
    assert nm.inspect(momentum, WORKING, {"mu": WORKING}, ROWS).findings == ()
    together = lambda state, x: momentum(state["params"], state["opt"], x)
    state = {"params": WORKING, "opt": {"mu": BY_ROWS}}
    assert nm.inspect(together, state, ROWS).findings == ()


def test_a_batch_beside_weights_in_one_argument_is_no_weight():
    mesh = make_mesh(data=8)
    rows, whole = (NamedSharding(mesh, P(*axes)) for axes in (("data",), ()))
    shape = lambda one, on: jax.ShapeDtypeStruct(one.shape, "float32", sharding=on)
    weights = {name: shape(one, whole) for name, one in WHOLE.items()}
    step = lambda given: jax.grad(lambda w: jnp.mean(two_weights(w, given[1]) ** 2))(given[0])
    assert nm.inspect(step, (weights, shape(ROWS, rows))).findings == ()


# What XLA for GPUs makes; %ARGUMENT% and %READ% are what the versions differ in.
GATHER = """HloModule jit_f, is_scheduled=true, num_partitions=8

ENTRY %main (w: f32[64,64], v: f32[64,64]) -> (bf16[64,512], f32[64,512]) {
  %w = f32[64,64]{1,0} parameter(0), metadata={op_name="w"}
  %v = f32[64,64]{1,0} parameter(1), metadata={op_name="v"}
  %start = (f32[64,64], f32[64,512]) all-gather-start(%w), %GROUPS%
  %done = f32[64,512]{1,0} all-gather-done(%start)
  %again = (f32[64,64], f32[64,512]) all-gather-start(%ARGUMENT%), %GROUPS%
  %second = f32[64,512]{1,0} all-gather-done(%again)
  %first = %READ%(%done)
  %other = f32[64,512]{1,0} sine(%second)
  ROOT %results = (bf16[64,512], f32[64,512]) tuple(%first, %other)
}
"""
LOOP = """HloModule jit_f, is_scheduled=true, num_partitions=8

%body (p: (s32[], f32[64,64], f32[512,64])) -> (s32[], f32[64,64], f32[512,64]) {
  %p = (s32[], f32[64,64], f32[512,64]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %w = f32[64,64] get-tuple-element(%p), index=1
  %x = f32[512,64] get-tuple-element(%p), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %whole = f32[512,64] all-gather(%w), replica_groups=[1,8]<=[8], dimensions={0}
  %y = f32[512,64] cosine(%whole), metadata={source_file="train.py" source_line=7}
  %changed = f32[64,64] negate(%w)
  ROOT %results = (s32[], f32[64,64], f32[512,64]) tuple(%next, %CARRIED%, %y)
}

%condition (q: (s32[], f32[64,64], f32[512,64])) -> pred[] {
  %q = (s32[], f32[64,64], f32[512,64]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %five = s32[] constant(5)
  ROOT %less = pred[] compare(%j, %five), direction=LT
}

ENTRY %main (w: f32[64,64], x: f32[512,64]) -> f32[512,64] {
  %w.1 = f32[64,64] parameter(0), metadata={op_name="w"}
  %x.1 = f32[512,64] parameter(1), metadata={op_name="x"}
  %zero = s32[] constant(0)
  %start = (s32[], f32[64,64], f32[512,64]) tuple(%zero, %w.1, %x.1)
  %loop = (s32[], f32[64,64], f32[512,64]) while(%start), condition=%condition, body=%body
  ROOT %y.1 = f32[512,64] get-tuple-element(%loop), index=2
}
"""


def find(text: str, **changes: str) -> dict[str, tuple[str, int]]:
    changes["GROUPS"] = "replica_groups=[1,8]<=[8], dimensions={1}"
    for name, value in changes.items():
        text = text.replace(f"%{name}%", value)
    return {one.kind: (one.message, one.bytes) for one in nm.inspect(text).findings}


def test_what_is_gathered_twice_or_wider_than_read():
    clean = {"ARGUMENT": "%v", "READ": "f32[64,512]{1,0} sine"}
    wire = 64 * 512 * 4 * 7 // 8
    assert find(GATHER, **clean) == {}
    twice = find(GATHER, **{**clean, "ARGUMENT": "%w"})
    message = "the AllGather of w over devices gathers what was gathered before"
    assert twice == {"gathered twice": (message, wire)}
    wide = find(GATHER, **{**clean, "READ": "bf16[64,512]{1,0} convert"})
    message = "the AllGather of w over devices sends float32 of which all is read as bfloat16"
    assert wide == {"sent as float32": (message, wire // 2)}


def test_products_that_are_repeated_count_on_all_their_lines():
    specs = [(None, "model") if i % 2 == 0 else ("model", None) for i in range(6)]
    weights, x = [place(512, 512, over=one) for one in specs], place(2048, 512, over=("data",))

    def loss(weights: Any, x: Any) -> Any:
        a, b, c, d, e, f = weights
        x = jnp.tanh(x @ a)
        x = jnp.tanh(x @ b)
        x = jnp.tanh(x @ c)
        x = jnp.tanh(x @ d)
        x = jnp.tanh(x @ e)
        return jnp.mean((x @ f) ** 2)

    def accumulate(weights: Any, x: Any, split: bool) -> Any:
        rows = x.reshape(4, -1, 512)  # whole rows of a microbatch on devices along data
        rows = constrain(rows, NamedSharding(MESH, P(None, "data"))) if split else rows
        add = lambda total, row: (total + jax.grad(loss)(weights, row)[0], None)
        return jax.lax.scan(add, jnp.zeros((512, 512)), rows)[0]

    steps = (functools.partial(accumulate, split=split) for split in (False, True))
    whole, split = (nm.inspect(step, weights, x) for step in steps)
    assert whole.flops > 1.9 * split.flops
    assert split.findings == ()
    assert "all 2 devices along data compute the same products" in whole.findings[0].message
    assert "on 6 lines" in whole.findings[0].message


def test_equal_findings_of_one_line_are_counted_each():
    arrays = [place(256, 256, over=(("data", "model"),)) for _ in range(3)]
    take = lambda w: constrain(w, NamedSharding(MESH, P()))[:2]
    found = nm.inspect(lambda *given: [take(w) for w in given], *arrays).findings
    assert [one.kind for one in found] == ["gathered, then sliced"] * 3


def test_cpus_send_bfloat16_as_float32_and_notes_say_so():
    x = place(64, 512, over=(None, ("data", "model")), dtype="bfloat16")
    seen = nm.inspect(lambda x: x @ x.T, x)
    assert [one.dtype for one in seen.collectives] == ["float32"]
    (note,) = seen.notes
    assert note.startswith("1 collectives of bfloat16 are sent as float32, as CPUs do")


def test_what_a_loop_gathers_again_and_never_changes():
    message = "the AllGather of w over devices runs 5 times on what never changes"
    found = find(LOOP, CARRIED="%w")
    assert found == {"repeated in a loop": (message, 4 * 64 * 512 * 4 * 7 // 8)}
    assert find(LOOP, CARRIED="%changed") == {}


def test_a_gather_that_only_its_reader_names_is_at_the_readers_line():
    text = LOOP.replace("%CARRIED%", "%w").replace(
        "body=%body", 'body=%body, metadata={source_file="train.py" source_line=9}'
    )
    (one,) = nm.inspect(text).collectives
    assert (one.source.file, one.source.line) == ("train.py", 7)
