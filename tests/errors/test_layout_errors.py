"""Programs that are wrong under the layout given: found by nm.plan, before compilation."""

# pyright: reportArgumentType=false

import pytest
import tensorflow as tf

import namedmesh as nm
from tests.errors.wrong import Table, message_of

G, S, E, C, M, H = nm.dims("group=8 seq=6 expert=4 capacity=3 model=10 hidden=16")
MESH = nm.Mesh(data=2, expert=4)
X = nm.spec([G, S, M])
wrong = Table()


def dense(x):
    w = nm.param("w", [M, H])
    return nm.relu(nm.einsum([x, w], [G, S, H]))


PROGRAM = nm.trace(dense, x=X)


@wrong("""
the layout maps dimension 'hiden', which no tensor of the program has
  layout: group:data, hiden:expert
  dimensions: group=8, seq=6, model=10, hidden=16
  at LINE: nm.plan(PROGRAM, MESH, "group:data, hiden:expert")
  fix: did you mean 'hidden'? (or leave it out: layout.only(program.dims))
""")
def layout_of_a_dimension_the_program_lacks():
    nm.plan(PROGRAM, MESH, "group:data, hiden:expert")


@wrong("""
layout hidden:experts: the mesh has no axis 'experts'
  mesh: Mesh(data=2, expert=4)
  at LINE: nm.plan(PROGRAM, MESH, "group:data, hidden:experts")
  fix: did you mean 'expert'?
""")
def layout_of_an_axis_the_mesh_lacks():
    nm.plan(PROGRAM, MESH, "group:data, hidden:experts")


@wrong("""
layout group:tensor: the mesh has no axis 'tensor'
  mesh: Mesh(data=2, expert=4)
  at LINE: nm.plan(PROGRAM, MESH, "group:tensor")
  fix: use one of: data, expert
""")
def layout_of_an_axis_unlike_any_other():
    nm.plan(PROGRAM, MESH, "group:tensor")


@wrong("""
params layout hidden:dat: the mesh has no axis 'dat'
  mesh: Mesh(data=2, expert=4)
  at LINE: nm.plan(PROGRAM, MESH, "group:data", params="hidden:dat")
  fix: did you mean 'data'?
""")
def params_layout_of_an_axis_the_mesh_lacks():
    nm.plan(PROGRAM, MESH, "group:data", params="hidden:dat")


@wrong("""
the params layout maps dimension 'expert', which no parameter has
  params layout: expert:expert
  dimensions: hidden=16, model=10
  at LINE: nm.plan(PROGRAM, MESH, "group:data", params="expert:expert")
  fix: use one of: hidden, model (or leave it out: layout.only(program.resting_dims))
""")
def params_layout_of_a_dimension_the_program_lacks():
    nm.plan(PROGRAM, MESH, "group:data", params="expert:expert")


@wrong("""
a layout cannot be made from NoneType None
  at LINE: nm.plan(PROGRAM, MESH, None)
  fix: give a string such as 'batch:data, hidden:model', a dict, or Layout.from_yaml(path)
""")
def layout_that_is_no_layout():
    nm.plan(PROGRAM, MESH, None)


@wrong("""
mesh={'data': 2} is not a Mesh
  at LINE: nm.plan(PROGRAM, {"data": 2}, "group:data")
  fix: write e.g. mesh=nm.Mesh(data=8)
""")
def mesh_that_is_no_mesh():
    nm.plan(PROGRAM, {"data": 2}, "group:data")


@wrong("""
mesh='data=2' is not a Mesh
  at LINE: nm.compile(PROGRAM, mesh="data=2")
  fix: write e.g. mesh=nm.Mesh(data=8)
""")
def mesh_that_is_no_mesh_to_compile():
    nm.compile(PROGRAM, mesh="data=2")


@wrong("""
plan: dense is a function, not a Program
  at LINE: nm.plan(dense, MESH, "group:data")
  fix: trace the function first: nm.trace(function, x=nm.spec(...))
""")
def program_that_is_a_function():
    nm.plan(dense, MESH, "group:data")


@wrong("""
compile: a traced program has its specs already
  at LINE: nm.compile(PROGRAM, X, mesh=MESH)
  fix: give specs with a function only
""")
def compile_of_a_program_with_specs():
    nm.compile(PROGRAM, X, mesh=MESH)


@wrong("""
einsum: mesh axis 'expert' shards dimension group in x and dimension expert in w
  x: [group=8/expert, expert=4, model=10]
  w: [expert=4/expert, model=10, hidden=16]
  layout: group:expert, expert:expert
  mesh: Mesh(data=2, expert=4)
  at LINE: return nm.einsum([x, w], [G, E, H])
  fix: write one of these, the cheapest first, or plan with conflicts='cheapest' \
to take the cheapest move
    nm.reshard(x, expert) before it: AllToAll, 240 B on the wire
    whole=[group] where x is declared: nothing is sent, 960 B more in memory
    nm.replicate(x, group) before it: AllGather, 960 B on the wire
    nm.replicate(w, expert) before it: AllGather, 1.9 KiB on the wire
""")
def operands_that_disagree_on_the_holder_of_an_axis():
    def function(x):
        w = nm.split(nm.param("weights", [E, M, H]), E)
        return nm.einsum([x, w], [G, E, H])

    program = nm.trace(function, x=nm.spec([G, E, M], whole=[E]))
    nm.plan(program, MESH, "group:expert, expert:expert")


@wrong("""
einsum: mesh axis 'expert' shards dimension group in x and dimension expert in w
  x: [group=8/expert, model=10]
  w: [expert=4/expert, model=10]
  layout: group:expert, expert:expert
  mesh: Mesh(data=2, expert=4)
  at LINE: return nm.einsum([x, w], [G, E])
  fix: write one of these, the cheapest first, or plan with conflicts='cheapest' \
to take the cheapest move
    nm.replicate(w, expert) before it: AllGather, 120 B on the wire
    whole=[group] where x is declared: nothing is sent, 240 B more in memory
    nm.replicate(x, group) before it: AllGather, 240 B on the wire
""")
def operands_that_share_no_dimension_and_disagree():
    def function(x, weights):
        w = nm.split(weights, E)
        return nm.einsum([x, w], [G, E])

    program = nm.trace(function, x=nm.spec([G, M]), weights=nm.spec([E, M]))
    nm.plan(program, MESH, "group:expert, expert:expert")


@wrong("""
add: dimension group is sharded over mesh axis 'data' in left and over 'expert' in right
  left: [group=8/data, model=10]
  right: [group=8/expert, model=10]
  layout: empty
  mesh: Mesh(data=2, expert=4)
  at LINE: return left + right
  fix: write one of these, the cheapest first, or plan with conflicts='cheapest' \
to take the cheapest move
    nm.replicate(left, group) before it: AllGather, 160 B on the wire
    nm.replicate(right, group) before it: AllGather, 240 B on the wire
""")
def operands_that_lie_on_other_axes():
    def function(x, y):
        left = nm.shard(x, {G: "data"})
        right = nm.shard(y, {G: "expert"})
        return left + right

    program = nm.trace(function, x=nm.spec([G, M]), y=nm.spec([G, M]))
    nm.plan(program, MESH, "")


@wrong("""
tensor x: dimensions group and expert both map to mesh axis 'expert', and nothing says which \
is sharded over it
  x: float32[group=8, expert=4, model=10]
  layout: group:expert, expert:expert
  mesh: Mesh(data=2, expert=4)
  at LINE: program = nm.trace(lambda x: nm.reshard(x, G, E), x=nm.spec([G, E, M], whole=[E]))
  fix: reshard one of them only
""")
def reshard_of_two_dimensions_to_one_axis():
    program = nm.trace(lambda x: nm.reshard(x, G, E), x=nm.spec([G, E, M], whole=[E]))
    nm.plan(program, MESH, "group:expert, expert:expert")


@wrong("""
shard: the mesh has no axis 'exprt'
  x: float32[group=8, seq=6, model=10]
  mesh: Mesh(data=2, expert=4)
  at LINE: program = nm.trace(lambda x: nm.shard(x, {G: "exprt"}), x=X)
  fix: did you mean 'expert'?
""")
def shard_on_an_axis_the_mesh_lacks():
    program = nm.trace(lambda x: nm.shard(x, {G: "exprt"}), x=X)
    nm.plan(program, MESH, "")


@wrong("""
precision='hightest' is not a choice
  at LINE: nm.export(PROGRAM, MESH, "group:data", precision="hightest")
  fix: did you mean 'highest'?
""")
def precision_that_is_none():
    nm.export(PROGRAM, MESH, "group:data", precision="hightest")


@wrong("""
call_tf: the function made float32[4, 6], not float32[4, 6, 10]
  x: float32[group=8, seq=6, model=10]
  at LINE: y = nm.call_tf(lambda v: tf.reduce_sum(v, -1), x, result=nm.spec([G, S, M]), batch=[G])
  fix: give an nm.spec in result= for each tensor that the function makes, in order
""")
def call_tf_of_another_shape():
    def function(x):
        y = nm.call_tf(lambda v: tf.reduce_sum(v, -1), x, result=nm.spec([G, S, M]), batch=[G])
        return y

    nm.export(nm.trace(function, x=X), MESH, "group:data")


@wrong("""
the initializer of w made float32[model=10], not float32[model=10, hidden=16]
  at LINE: w = nm.param("w", [M, H], init=lambda key, shape, dtype: nm.zeros([M]))
  fix: return a tensor of the shape and dtype the initializer is called with
""")
def initializer_of_another_shape():
    def function(x):
        w = nm.param("w", [M, H], init=lambda key, shape, dtype: nm.zeros([M]))
        return nm.einsum([x, w], [G, H])

    nm.export(nm.trace(function, x=X), MESH, "group:data")


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


FIXED = {
    "reshard": lambda x, w: nm.einsum([nm.reshard(x, E), w], [G, E, H]),
    "replicate": lambda x, w: nm.einsum([x, nm.replicate(w, E)], [G, E, H]),
    "reshard_after": lambda x, w: nm.reshard(nm.random.normal(nm.random.key(0), [G, E, M]), G) * x,
}


@pytest.mark.parametrize("function", FIXED.values(), ids=FIXED.keys())
def test_the_fix_mends_it(function):
    """What the messages about holders advise makes a plan."""
    program = nm.trace(function, x=nm.spec([G, E, M], whole=[E]), w=nm.spec([E, M, H]))
    assert nm.plan(program, MESH, "group:expert, expert:expert").program is program
