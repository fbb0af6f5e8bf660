"""The kernel of one token's attention, step by step without a GPU, where a cache has the keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from examples.llm.architecture import Architecture
from examples.llm.model import LanguageModel
from examples.llm.settings import Settings
from namedmesh.artifacts.stablehlo import open_rows, prepare
from namedmesh.artifacts.stablehlo.decoding_kernel import DecodingCall, count_parts
from namedmesh.jax_internals import parse_stablehlo

A, B, SCALE = 2, 3, 0.3


def write_out(q, k, v, mask, scale):
    """Attention of each query by a loop, in 64 bits: q is [several, key], k and v [memory, key]."""
    y = np.zeros(q.shape)
    allowed = [t for t in range(len(k)) if mask[t]]
    for i, query in enumerate(q if allowed else []):
        scores = np.array([query @ k[t] * scale for t in allowed])
        parts = np.exp(scores - scores.max())
        for part, t in zip(parts, allowed, strict=True):
            y[i] += part / parts.sum() * v[t]
    return y


def describe(several, memory, key, *, mask=None, opened=None, dtype=jnp.bfloat16, **options):
    """A call whose batch is A and B; keys lie in an array [rows, A, B, key] where it is opened."""
    told = {"batch": 2, "queries": 1, "rate": 0.0, "scale": SCALE, "results": [0], "mask": mask}
    told |= {"rows": ["a", "b", "query", "memory"], **options}
    sizes = {"a": A, "b": B, "query": several, "memory": memory}
    keys = [jax.ShapeDtypeStruct((A, B, memory, key), dtype)] * 2
    if opened is not None:
        told["opened"] = [{"sizes": [A, B, memory, key], "order": [1, 2, 0, 3], "along": 0}] * 2
        array = jax.ShapeDtypeStruct((opened, A, B, key), dtype)
        keys = [array, jax.ShapeDtypeStruct((), jnp.int32)] * 2
    masks = [jax.ShapeDtypeStruct([sizes[name] for name in mask], jnp.bool_)] if mask else []
    q = jax.ShapeDtypeStruct((A, B, several, key), dtype)
    return DecodingCall.of(told, [q, *keys, *masks])


@pytest.mark.parametrize("mask", [None, ["memory"], ["a", "memory"], ["b", "memory"]])
@pytest.mark.parametrize(
    "several, memory, key, rows, first",
    [(1, 71, 16, 71, 0), (4, 71, 16, 150, 79), (5, 16, 64, 40, 7), (15, 1100, 32, 1100, 0)],
)
def test_values_are_those_of_a_loop(several, memory, key, rows, first, mask):
    call = describe(several, memory, key, mask=mask, opened=rows)
    assert call is not None
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(A, B, several, key)), jnp.bfloat16)
    k, v = (jnp.asarray(rng.normal(size=(rows, A, B, key)), jnp.bfloat16) for _ in range(2))
    allowed = np.ones((A, B, memory), bool)
    masks = []
    if mask:
        sizes = [{"a": A, "b": B, "memory": memory}[name] for name in mask]
        masks = [rng.random(sizes) < 0.4]
        if len(mask) > 1:
            masks[0][-1] = False  # nothing may be attended to
        spread = [A if "a" in mask else 1, B if "b" in mask else 1, memory]
        allowed = np.broadcast_to(masks[0].reshape(spread), allowed.shape)
    reads = [q, k, jnp.int32(first), v, jnp.int32(first), *map(jnp.asarray, masks)]
    (found,) = call.run(*reads, interpret=True)
    assert found.shape == q.shape and found.dtype == q.dtype
    q64, k64, v64 = (np.asarray(x, np.float64) for x in (q, k, v))
    part = slice(first, first + memory)
    for a in range(A):
        for b in range(B):
            own = q64[a, b], k64[part, a, b], v64[part, a, b], allowed[a, b]
            off = np.abs(np.asarray(found, np.float64)[a, b] - write_out(*own, SCALE)).max()
            assert off < 2**-7


def test_long_memories_are_divided_and_large_batches_are_not():
    assert count_parts(8, 271) == 1 and count_parts(2048, 8192) == 1
    assert 1 < count_parts(8, 2048) <= 4 and count_parts(8, 65536) * 8 <= 264


@pytest.mark.parametrize(
    "sizes, options",
    [
        ((17, 64, 16), {}),  # too many queries
        ((4, 64, 24), {}),  # no power of two
        ((4, 64, 512), {}),  # too large
        ((4, 64, 16), {"dtype": jnp.float32}),
        ((4, 64, 16), {"results": [0, 1]}),  # its backward pass is wanted
        ((4, 64, 16), {"rate": 0.1}),
        ((4, 64, 16), {"mask": ["query", "memory"]}),
    ],
)
def test_what_it_does_not_do_is_left_to_named_ops(sizes, options):
    assert (describe(*sizes) is None) != bool(options)  # it is for one reason alone
    assert describe(*sizes, **options) is None


@pytest.fixture
def calls(monkeypatch):
    """Run the kernel on CPUs, as an interpreter does, and note how its calls were described."""
    described = []

    def find_kernel(name, options, reads, platforms):
        call = DecodingCall.of(options, reads)
        described.append((options, call))
        return None if call is None else functools.partial(call.run, interpret=True)

    monkeypatch.setattr(prepare, "PLATFORMS", ("cpu",))
    monkeypatch.setattr(prepare, "find_kernel", find_kernel)
    return described


D, L, T, N, G, K = nm.dims("batch=2 layer=3 position=20 heads=2 group=2 key=16")
ROWS = nm.Dimension("cache_row", L.size * T.size)


def attend(q, cache, layer, *, grouped):
    """Attend to a layer's keys, which are their own values, in a cache of all layers."""
    rows = nm.dynamic_slice(cache, layer * T.size, ROWS, T.size)
    k = nm.rename(rows, ROWS.resized(T.size), T)
    q = q if grouped else nm.sum(q, G)
    q, k = nm.cast(q, "bfloat16"), nm.cast(k, "bfloat16")
    return nm.cast(nm.attention(q, k, k, T, K, mask=nm.range(T) < 13, scale=SCALE), "float32")


@pytest.mark.parametrize(
    "how, grouped",
    [("a loop", False), ("written out", True), ("an input", True), ("an input", False)],
)
def test_keys_are_read_where_a_cache_has_them(how, grouped, calls):
    def step(q, cache, layer):
        cache = nm.cast(cache, "bfloat16")
        if how == "an input":
            return attend(q, cache, layer, grouped=grouped)
        each = lambda carry, number: (carry, attend(q, cache, number, grouped=grouped))
        written = nm.scan(each, layer, nm.range(L), over=L, unroll=how == "written out")[1]
        return nm.sum(nm.where(nm.equal(nm.range(L), layer), written, 0.0), L)

    rng = np.random.default_rng(0)
    q, cache = (
        rng.normal(size=[dim.size for dim in dims]).astype("f") / 2
        for dims in ([D, N, G, K], [ROWS, D, N, K])
    )
    specs = nm.spec([D, N, G, K]), nm.spec([ROWS, D, N, K]), nm.spec([], "int32")
    made = nm.compile(step, *specs, mesh=nm.Mesh(one=1))
    rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (q, cache)]
    for layer in (0, 2):
        found = np.asarray(made(None, q, cache, np.int32(layer))[1])
        for d in range(D.size):
            for n in range(N.size):
                own = rounded[1][layer * T.size :][: T.size, d, n]
                queries = rounded[0][d, n] if grouped else rounded[0][d, n].sum(0, keepdims=True)
                wanted = write_out(queries, own, own, np.arange(T.size) < 13, SCALE)
                np.testing.assert_allclose(
                    found[d, n], wanted if grouped else wanted[0], atol=2**-7
                )
    assert calls and all(call for _, call in calls)
    for options, _ in calls:
        assert [one["along"] for one in options["opened"]] == [0, 0]


@pytest.mark.parametrize("size", [15, 16, 17])
def test_as_many_queries_as_the_kernel_has_rows_read_where_a_cache_is(size, calls):
    group = nm.Dimension("group", size)

    def step(q, cache):
        rows = nm.dynamic_slice(cache, nm.constant(T.size), ROWS, T.size)
        k = nm.rename(rows, ROWS.resized(T.size), T)
        return nm.attention(q, k, k, T, K, scale=SCALE)

    specs = nm.spec([D, N, group, K], "bfloat16"), nm.spec([ROWS, D, N, K], "bfloat16")
    made = nm.compile(step, *specs, mesh=nm.Mesh(one=1))
    rng = np.random.default_rng(0)
    made(None, *(jnp.asarray(rng.normal(size=one.shape.sizes), jnp.bfloat16) for one in specs))
    (options, call), *others = calls
    assert (call is not None and "opened" in options) == (size <= 16) and not others


NUMBERS = """
func.func @main() -> tensor<i32> {{
  %a = stablehlo.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>
  %b = stablehlo.constant dense<[[5, 6], [7, 8]]> : tensor<2x2xi32>
  %c = stablehlo.concatenate %a, %b, dim = {dim} : (tensor<2x2xi32>, tensor<2x2xi32>) -> {kind}
  %d = stablehlo.slice %c [0:1, {at}:{end}] : ({kind}) -> tensor<1x1xi32>
  %e = stablehlo.reshape %d : (tensor<1x1xi32>) -> tensor<i32>
  return %e : tensor<i32>
}}
"""


@pytest.mark.parametrize(
    ("dim", "kind", "at", "number"), [(0, "4x2", 1, 2), (1, "2x4", 1, 2), (1, "2x4", 2, 5)]
)
def test_first_rows_are_computed_from_what_is_joined_along_any_dimension(dim, kind, at, number):
    text = NUMBERS.format(dim=dim, kind=f"tensor<{kind}xi32>", at=at, end=at + 1)
    module = parse_stablehlo(text)
    (block,) = module.operation.regions[0].blocks
    *_, end = block.operations[0].operation.regions[0].blocks[0].operations
    with module.context:
        assert int(open_rows._compute(end.operands[0])) == number


def test_several_devices_read_their_own_shards(calls):
    specs = nm.spec([D, N, G, K]), nm.spec([ROWS, D, N, K])
    step = lambda q, cache: attend(q, cache, nm.constant(1), grouped=True)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=spec.shape.sizes).astype("f") / 2 for spec in specs]
    several = nm.compile(step, *specs, mesh=nm.Mesh(a=2, b=2), layout="batch:a, heads:b")
    found = np.asarray(several(None, *arrays)[1])
    assert [options.get("opened") for options, _ in calls] == [None]
    one = np.asarray(nm.compile(step, *specs, mesh=nm.Mesh(one=1))(None, *arrays)[1])
    np.testing.assert_allclose(found, one, atol=2**-7)
    assert calls[1][0]["opened"] and calls[0][1].batch == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("unroll", [True, False])
def test_a_language_model_writes_the_same_tokens(unroll, calls, monkeypatch):
    shape = Architecture(
        vocab=64, layers=2, model=32, hidden=64, heads=2, group=2, key=16, tied=False
    )  # fmt: skip
    settings = Settings(shape, batch=3, length=8, layout="one", dtype="float16", unroll=unroll)
    P, R, H, S = nm.dims("prompt=7 batch=3 hypothesis=1 step=6")

    def write(prompt, last, padding):
        model, greedy = LanguageModel(settings), nm.layers.Greedy()
        return model.write_on(prompt, last, [R, H], S, greedy, padding=padding)["sequences"]

    specs = nm.spec([R, P], "int32"), nm.spec([R], "int32"), nm.spec([R], "int32")
    program = nm.trace(write, *specs)
    prompt = np.random.default_rng(0).integers(0, 64, (3, 8), np.int32)
    inputs = prompt[:, :-1], prompt[:, -1], np.array([0, 2, 5], np.int32)

    def run():
        step = nm.Step(nm.plan(program, nm.Mesh(one=1)))
        return np.asarray(step(step.init(seed=0), *inputs)[1])

    found = run()
    assert sum(call is not None for _, call in calls) >= 1
    monkeypatch.setattr(prepare, "find_kernel", lambda *described: None)
    np.testing.assert_array_equal(found, run())
    assert len(np.unique(found)) > 8  # and not the same token over and over
