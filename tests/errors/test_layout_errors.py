"""Programs that are right under some layout and wrong under the one given: found by nm.plan, before anything is compiled."""

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


def planned(function, layout, params=None, **specs):
    return nm.plan(nm.trace(function, **specs), MESH, layout, params)


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
the params layout maps dimension 'expert', which no tensor of the program has
  params layout: expert:expert
  dimensions: group=8, seq=6, model=10, hidden=16
  at LINE: nm.plan(PROGRAM, MESH, "group:data", params="expert:expert")
  fix: use one of: group, hidden, model, seq (or leave it out: layout.only(program.dims))
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


@wrong("""""")
def mesh_that_is_no_mesh():
    nm.plan(PROGRAM, {"data": 2}, "group:data")


@wrong("""
compile: mesh='data=2' is not a Mesh
  at LINE: nm.compile(PROGRAM, mesh="data=2")
  fix: write e.g. mesh=nm.Mesh(data=8)
""")
def mesh_that_is_no_mesh_to_compile():
    nm.compile(PROGRAM, mesh="data=2")


@wrong("""""")
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
tensor x: dimensions group and expert both map to mesh axis 'expert', and nothing says which holds it
  x: float32[group=8, expert=4, model=10]
  layout: group:expert, expert:expert
  mesh: Mesh(data=2, expert=4)
  at LINE: return nm.plan(nm.trace(function, **specs), MESH, layout, params)
  fix: whole=[expert] where it is declared
""")
def input_of_which_two_dimensions_want_one_axis():
    planned(lambda x: x * 2.0, "group:expert, expert:expert", x=nm.spec([G, E, M]))


@wrong("""
tensor w: dimensions model and hidden both map to mesh axis 'data', and nothing says which holds it
  w: float32[model=10, hidden=16]
  layout: model:data, hidden:data
  mesh: Mesh(data=2, expert=4)
  at LINE: w = nm.param("w", [M, H])
  fix: whole=[hidden] where it is declared
""")
def parameter_of_which_two_dimensions_want_one_axis():
    planned(dense, "model:data, hidden:data", x=X)


@wrong("""""")
def result_of_which_two_dimensions_want_one_axis():
    def program(x):
        y = nm.reshape(x, M, [E, nm.Dimension("half", 5)])
        return y

    x = nm.spec([S, nm.Dimension("model", 20)])
    planned(lambda x: nm.one_hot(nm.argmax(x, E), G), "group:expert, expert:expert", x=nm.spec([S, E]))


@wrong("""
the layout maps dimension seq to mesh axis 'expert', but every tensor keeps it whole there
  layout: seq:expert, expert:expert
  mesh: Mesh(data=2, expert=4)
  at LINE: return nm.plan(nm.trace(function, **specs), MESH, layout, params)
  fix: write nm.reshard(x, seq) where seq should take over the axis, or leave it out of the layout
""")
def one_hot_of_which_two_dimensions_want_one_axis():
    def program(x):
        first = nm.argmax(nm.replicate(x), M)
        hot = nm.one_hot(first, E)
        return nm.sum(hot)

    planned(program, "seq:expert, expert:expert", x=nm.spec([S, M], whole=[S]))


@wrong("""
einsum: mesh axis 'expert' is held by dimension group in x and by expert in w
  x: [group=8/expert, expert=4, model=10]
  w: [expert=4/expert, model=10, hidden=16]
  layout: group:expert, expert:expert
  at LINE: return nm.einsum([x, w], [G, E, H])
  fix: write nm.reshard(x, expert) or nm.replicate(w, expert) before it, or whole=[expert] where parameter w is declared
""")
def operands_that_disagree_on_the_holder_of_an_axis():
    def program(x):
        w = nm.param("w", [E, M, H])
        return nm.einsum([x, w], [G, E, H])

    planned(program, "group:expert, expert:expert", x=nm.spec([G, E, M], whole=[E]))


@wrong("""
einsum: mesh axis 'expert' is held by dimension group in x and by expert in w
  x: [group=8/expert, model=10]
  w: [expert=4/expert, model=10]
  layout: group:expert, expert:expert
  at LINE: return nm.einsum([x, w], [G, E])
  fix: write nm.reshard(x, expert) or nm.replicate(w, expert) before it, or whole=[expert] where parameter w is declared
""")
def operands_that_share_no_dimension_and_disagree():
    def program(x, w):
        return nm.einsum([x, w], [G, E])

    planned(program, "group:expert, expert:expert", x=nm.spec([G, M]), w=nm.spec([E, M]))


@wrong("""
add: mesh axis 'expert' is held by dimension group in left and by group in right
  left: [group=8/data, model=10]
  right: [group=8/expert, model=10]
  layout: 
  at LINE: return left + right
  fix: write nm.reshard(left, group) or nm.replicate(right, group) before it
""")
def operands_that_lie_on_other_axes():
    def program(x, y):
        left = nm.shard(x, {G: "data"})
        right = nm.shard(y, {G: "expert"})
        return left + right

    planned(program, "", x=nm.spec([G, M]), y=nm.spec([G, M]))


@wrong("""
tensor x: dimensions group and expert both map to mesh axis 'expert', and nothing says which holds it
  x: float32[group=8, expert=4, model=10]
  layout: group:expert, expert:expert
  mesh: Mesh(data=2, expert=4)
  at LINE: return nm.plan(nm.trace(function, **specs), MESH, layout, params)
  fix: reshard one of them only
""")
def reshard_of_two_dimensions_to_one_axis():
    planned(lambda x: nm.reshard(x, G, E), "group:expert, expert:expert", x=nm.spec([G, E, M], whole=[E]))


@wrong("""
shard: the mesh has no axis 'exprt'
  x: float32[group=8, seq=6, model=10]
  mesh: Mesh(data=2, expert=4)
  at LINE: planned(lambda x: nm.shard(x, {G: "exprt"}), "", x=X)
  fix: use one of: data, expert
""")
def shard_on_an_axis_the_mesh_lacks():
    planned(lambda x: nm.shard(x, {G: "exprt"}), "", x=X)


@wrong("""
the layout maps dimension seq to mesh axis 'data', but every tensor keeps it whole there
  layout: seq:data
  mesh: Mesh(data=2, expert=4)
  at LINE: return nm.plan(nm.trace(function, **specs), MESH, layout, params)
  fix: write nm.reshard(x, seq) where seq should take over the axis, or leave it out of the layout
""")
def dimension_that_stays_whole_everywhere():
    planned(lambda x: nm.cumsum(x, S), "seq:data", x=nm.spec([G, S], whole=[S]))


@wrong("""
the layout maps dimension expert to mesh axis 'expert', but every tensor keeps it whole there
  layout: group:data, expert:expert
  mesh: Mesh(data=2, expert=4)
  at LINE: return nm.plan(nm.trace(function, **specs), MESH, layout, params)
  fix: write nm.reshard(x, expert) where expert should take over the axis, or leave it out of the layout
""")
def parameter_dimension_that_stays_whole_everywhere():
    def program(x):
        w = nm.param("w", [M, E], whole=[E])
        return nm.einsum([x, w], [G])

    planned(program, "group:data, expert:expert", x=nm.spec([G, M]))


@wrong("""
precision='hightest' is not a choice
  at LINE: nm.export(PROGRAM, MESH, "group:data", precision="hightest")
  fix: did you mean 'highest'?
""")
def precision_that_is_none():
    nm.export(PROGRAM, MESH, "group:data", precision="hightest")


@wrong("""
call_tf: the function made float32[4, 6], not float32[group=8, seq=6, model=10]
  at LINE: y = nm.call_tf(lambda v: tf.reduce_sum(v, -1), x, result=nm.spec([G, S, M]), batch=[G])
  fix: give the shape and dtype it makes, in order, as nm.spec
""")
def call_tf_of_another_shape():
    def program(x):
        y = nm.call_tf(lambda v: tf.reduce_sum(v, -1), x, result=nm.spec([G, S, M]), batch=[G])
        return y

    nm.export(nm.trace(program, x=X), MESH, "group:data")


@wrong("""""")
def call_tf_of_too_few_results():
    def program(x):
        y, z = nm.call_tf(lambda v: v, x, result=[X, X], batch=[G])
        return y + z

    nm.export(nm.trace(program, x=X), MESH, "group:data")


@wrong("""
the initializer of w made float32[model=10], not float32[model=10, hidden=16]
  at LINE: w = nm.param("w", [M, H], init=lambda key, shape, dtype: nm.zeros([M]))
  fix: return a tensor of the shape and dtype the initializer is called with
""")
def initializer_of_another_shape():
    def program(x):
        w = nm.param("w", [M, H], init=lambda key, shape, dtype: nm.zeros([M]))
        return nm.einsum([x, w], [G, H])

    nm.export(nm.trace(program, x=X), MESH, "group:data")


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
