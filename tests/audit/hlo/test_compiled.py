"""Modules that jax compiles here, against what the program and jax's own counts say."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import namedmesh as nm
from namedmesh.audit.hlo import (
    ArrayType,
    Module,
    count_runs,
    find_allocations,
    find_collectives,
    find_loops,
    parse_module,
)

MESH = nm.Mesh(data=2, model=4)
OUTER, INNER = 5, 3


@functools.cache
def compiled() -> jax.stages.Compiled:
    """A loop in a loop, with a collective of another kind in each, on 8 devices."""
    grid = np.array(jax.devices()[:8]).reshape(2, 4)
    mesh = jax.sharding.Mesh(grid, ("data", "model"))

    def local(x):
        def outer(carry, _):
            def inner(carry, _):
                return jax.lax.psum(jnp.sin(carry), "model") * 0.1, None

            carry, _ = jax.lax.scan(inner, carry, None, length=INNER)
            gathered = jax.lax.all_gather(carry, "data", tiled=True)
            return carry + gathered.sum(), None

        carry, _ = jax.lax.scan(outer, x, None, length=OUTER)
        return jax.lax.all_to_all(carry, "model", 0, 1, tiled=True)

    place = PartitionSpec("data", "model")
    function = jax.shard_map(local, mesh=mesh, in_specs=place, out_specs=place, check_vma=False)
    argument = jax.ShapeDtypeStruct((16, 24), jnp.float32, sharding=NamedSharding(mesh, place))
    return jax.jit(function).lower(argument).compile()


def text_of(program: jax.stages.Compiled) -> str:
    """What jax prints of a compiled program."""
    text = program.as_text()
    assert text is not None
    return text


def result_arrays(module: Module) -> tuple[ArrayType, ...]:
    """The arrays that a module returns."""
    assert module.results is not None
    return module.results.arrays


@pytest.fixture(scope="module")
def module() -> Module:
    return parse_module(text_of(compiled()))


@pytest.fixture(scope="module")
def memory() -> Any:
    """jax's own count of the program's memory."""
    return compiled().memory_analysis()


def test_parameters_and_results_are_a_devices_shards(module, memory):
    assert [str(type) for type in module.parameters] == ["f32[8,6]"]
    assert [str(array) for array in result_arrays(module)] == ["f32[2,24]"]
    assert sum(type.bytes for type in module.parameters) == memory.argument_size_in_bytes
    assert module.results.bytes == memory.output_size_in_bytes


def test_loops_iteration_as_often_as_the_program_says(module):
    assert {loop.trip_count for loop in find_loops(module)} == {INNER, OUTER}
    bodies = [name for loop in find_loops(module) for name in loop.instruction.called["body"]]
    assert sorted(count_runs(module)[name] for name in bodies) == [OUTER, OUTER * INNER]


def test_collectives_are_those_of_the_program(module):
    found = {
        one.kind: (one.axes, one.elements, one.dtype, one.times)
        for one in find_collectives(module, MESH)
    }
    assert found == {
        "AllReduce": (("model",), 8 * 6, "float32", OUTER * INNER),
        "AllGather": (("data",), 2 * 8 * 6, "float32", OUTER),
        "AllToAll": (("model",), 8 * 6, "float32", 1),
    }


def test_instructions_are_those_that_jax_counts(module):
    """Every line that jax's text has is an instruction, with operands that are defined before."""
    text = text_of(compiled())
    assert sum(1 for _ in module.instructions()) == sum(
        line.startswith("  ") and " = " in line for line in text.splitlines()
    )
    for computation in module.computations.values():
        seen = set()
        for instruction in computation:
            assert set(instruction.operands) <= seen, instruction
            seen.add(instruction.name)
        assert sum(instruction.root for instruction in computation) == 1


def test_called_computations_are_all_there(module):
    for _, instruction in module.instructions():
        for names in instruction.called.values():
            assert set(names) <= set(module.computations), instruction


def test_temporaries_are_among_the_allocations(module, memory):
    """No value is larger than what jax says all values take together."""
    largest = max(array.bytes for value in find_allocations(module) for array in value.arrays)
    assert largest <= memory.temp_size_in_bytes + memory.output_size_in_bytes


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.sort(x, axis=0),
        lambda x: jnp.linalg.qr(x)[0],
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.random.normal(jax.random.key(0), (4, 4)) @ x,
        lambda x: jnp.asarray([[1.5, -2.0], [np.inf, np.nan]]) @ x[:2],
        lambda x: jax.lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"),
        lambda x: (x.astype(jnp.bfloat16), x > 0, jnp.fft.fft(x), jax.lax.top_k(x, 2)),
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
        lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "VALID"),
        lambda x: x.at[jnp.array([0, 1])].add(1.0),
    ],
)
def test_whatever_jax_compiles_is_read(function):
    program = jax.jit(function).lower(jax.ShapeDtypeStruct((4, 4), jnp.float32)).compile()
    module = parse_module(text_of(program))
    shapes = jax.tree.leaves(jax.eval_shape(function, jax.ShapeDtypeStruct((4, 4), jnp.float32)))
    assert [(array.sizes, array.element.dtype) for array in result_arrays(module)] == [
        (leaf.shape, str(leaf.dtype)) for leaf in shapes
    ]
