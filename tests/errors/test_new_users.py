"""What a new user stumbles over: constructors, results, dimensions, indices, parameters, states."""

# The calls are wrong on purpose, and a comment on their lines would enter the messages.
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: B018

import copy
import io
import pickle

import jax
import numpy as np
import pytest

import namedmesh as nm
from tests.errors.wrong import B, M, Table, message_of

wrong = Table()


def loss(x):
    return nm.mean(nm.square(x * nm.param("w", [M])))


def train(x):
    value = loss(x)
    nm.assign(nm.parameters()["w"], nm.grad(value)["w"])
    return value


@pytest.fixture(scope="module")
def step() -> nm.Step:
    return nm.compile(train, nm.spec([B, M]), mesh=nm.Mesh(data=2), layout="batch:data")


@wrong("""
nm.layers.Sgd has no argument lr
  nm.layers.Sgd(learning_rate, *, clip_norm, layer_by_layer, average, name, momentum, nesterov)
  at LINE: nm.layers.Sgd(lr=1.0)
  fix: did you mean 'learning_rate'?
""")
def learning_rate_by_another_name():
    nm.layers.Sgd(lr=1.0)


@wrong("""
nm.training.Checkpoints has no argument max_to_keep
  nm.training.Checkpoints(folder, keep, *, metric, mode, host_memory)
  at LINE: nm.training.Checkpoints("run", max_to_keep=3)
  fix: did you mean 'keep'?
""")
def checkpoints_by_another_name():
    nm.training.Checkpoints("run", max_to_keep=3)


@wrong("""
nm.layers.layer_norm needs argument over
  at LINE: nm.layers.layer_norm(x)
  fix: write nm.layers.layer_norm(x, over, *, name, epsilon)
""")
def layer_without_an_argument(x):
    nm.layers.layer_norm(x)


@wrong("""
nm.Mesh takes from 1 to 2 positional arguments but 3 were given
  nm.Mesh(data=2, tensor=4)
  at LINE: nm.Mesh((2, 4), ("data", "tensor"))
  fix: write nm.Mesh(data=2, tensor=4)
""")
def mesh_as_in_jax():
    nm.Mesh((2, 4), ("data", "tensor"))


@wrong("""
nm.compile has no argument mehs
  nm.compile(function, *specs, mesh, layout, params, precision, strict, partitioner, conflicts, target, **named)
  at LINE: nm.compile(nm.sum, nm.spec([B]), mehs=nm.Mesh(data=2))
  fix: did you mean 'mesh'?
""")  # noqa: E501
def mesh_misspelled():
    nm.compile(nm.sum, nm.spec([B]), mehs=nm.Mesh(data=2))


@wrong("""
Plan has no attribute communicaton
  at LINE: nm.plan(nm.trace(nm.sum, nm.spec([B])), nm.Mesh(data=2), "batch:data").communicaton
  fix: did you mean 'communication'?
""")
def attribute_of_a_plan_misspelled():
    nm.plan(nm.trace(nm.sum, nm.spec([B])), nm.Mesh(data=2), "batch:data").communicaton


@wrong("""
Communication.count has no argument fase
  Communication.count(kind, phase)
  at LINE: nm.plan(nm.trace(nm.sum, nm.spec([B])), nm.Mesh(a=1), "").count("AllReduce", fase="x")
  fix: did you mean 'phase'?
""")
def method_of_a_plan_called_wrongly():
    nm.plan(nm.trace(nm.sum, nm.spec([B])), nm.Mesh(a=1), "").count("AllReduce", fase="x")


@wrong("""
program sum is not compiled, and has no values to run on
  at LINE: nm.trace(nm.sum, nm.spec([B]))(np.ones(4))
  fix: write step = nm.compile(program, mesh=nm.Mesh(data=8)), then step(step.init(), x); or program.evaluate(program.initial_state(), x=array) to try it
""")  # noqa: E501
def program_that_is_called():
    nm.trace(nm.sum, nm.spec([B]))(np.ones(4))


@wrong("""
there is no 'W' here
  at LINE: nm.grad(loss(x))["W"]
  fix: use one of: w
""")
def gradient_of_a_parameter_that_is_not_there(x):
    nm.grad(loss(x))["W"]


@wrong("""
ByName has no attribute w
  at LINE: nm.parameters().w
  fix: index it by name: ['w']
""")
def parameter_as_an_attribute(x):
    loss(x)
    nm.parameters().w


@wrong("""
jax's functions take arrays, and a tensor has no value while tracing
  at LINE: jax.nn.relu(x)
  fix: use the functions of nm, e.g. nm.relu; nm.call_jax runs jax code on tensors
""")
def compiled_function_of_jax(x):
    jax.nn.relu(x)


@wrong("""
jax's functions take arrays, and x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: jax.lax.dot(x, x)
  fix: use the functions of nm, e.g. nm.sum; nm.call_jax runs jax code on tensors
""")
def function_of_jax_that_asks_numpy(x):
    jax.lax.dot(x, x)


@wrong("""
variable w exists already with another initializer
  before: float32[model=8] at LINE: w = nm.param("w", [M], nm.constant_init(1.0))
  at LINE: return x * w * nm.param("w", [M], nm.constant_init(2.0))
  fix: give the new one its own name or nm.scope, or leave its init out for the one that exists
""")
def parameter_with_two_initializers(x):
    w = nm.param("w", [M], nm.constant_init(1.0))
    return x * w * nm.param("w", [M], nm.constant_init(2.0))


@wrong("""
variable n exists already with another initializer
  before: float32[] at LINE: n = nm.state("n", [])
  at LINE: return x + n + nm.state("n", [], 2.0)
  fix: give the new one its own name or nm.scope, or leave its init out for the one that exists
""")
def state_with_two_initializers(x):
    n = nm.state("n", [])
    return x + n + nm.state("n", [], 2.0)


@wrong("""
index: -9 is outside model=8
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.gather(x, -9, M)
  fix: give a number from -8 to 7
""")
def gather_at_a_number(x):
    nm.gather(x, -9, M)


@wrong("""
dynamic_slice: 3 elements from 6 do not fit in model=8
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.dynamic_slice(x, 6, M, 3)
  fix: start at 0 to 5, or count from the end: -8 to -3
""")
def slice_beyond_the_end(x):
    nm.dynamic_slice(x, 6, M, 3)


@wrong("""
dynamic_update: 3 elements from -2 do not fit in model=8
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.dynamic_update(x, x[M, :3], -2, M)
  fix: start at 0 to 5, or count from the end: -8 to -3
""")
def update_beyond_the_end(x):
    nm.dynamic_update(x, x[M, :3], -2, M)


@wrong("""
search: the function that returns the program cannot be called: missing a required argument: 'x'
  at LINE: nm.search(train, 8, "h100")
  fix: give what nm.trace returned, or a function that returns it, of arguments with lists of values to try
""")  # noqa: E501
def search_for_a_function():
    nm.search(train, 8, "h100")


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


@pytest.mark.parametrize(
    "use",
    [
        lambda: M * 2, lambda: 2 * M, lambda: M + 1, lambda: M // 2, lambda: M / B, lambda: M < 3,
        lambda: -M, lambda: range(M), lambda: float(M), lambda: np.ones((B, M)), lambda: np.ones(M),
        lambda: jax.numpy.zeros((B, M)), lambda: M[0], lambda: [*M],
    ],
)  # fmt: skip
def test_a_dimension_is_not_a_number(use):
    with pytest.raises(nm.NamedMeshError, match="is not a number") as caught:
        use()
    assert caught.value.fix.startswith("use its size, e.g. M.size * 2")
    assert caught.value.source.file == __file__


def test_a_dimension_formats_as_text_or_as_its_size():
    assert f"{M:>9}|{M:3d}|{M}" == "  model=8|  8|model=8"


def test_known_starts_count_from_the_end():
    def read(x):
        new = nm.zeros([M.resized(2)])
        return (
            nm.slice(x, M, -3, 2),
            nm.dynamic_slice(x, -3, M, 2),
            nm.dynamic_update(x, new, -2, M),
        )

    x = np.arange(8, dtype=np.float32)
    sliced, dynamic, updated = nm.evaluate(read, x=([M], x))
    np.testing.assert_array_equal(sliced, x[-3:-1])
    np.testing.assert_array_equal(dynamic, x[-3:-1])
    np.testing.assert_array_equal(updated, [*x[:6], 0, 0])


def test_the_same_initializer_may_be_given_again():
    def layer(x, table):
        w = nm.param("w", [M], lambda key, shape, dtype: nm.constant(table, shape))
        return x * w + nm.param("b", [M], nm.normal_init(0.1))

    table = np.ones(8, np.float32)
    program = nm.trace(lambda x: layer(layer(x, table), table.copy()), nm.spec([M]))
    assert list(program.parameters) == ["w", "b"]
    nm.trace(lambda x: layer(x, table) + nm.param("w", [M]), nm.spec([M]))
    with pytest.raises(nm.NamedMeshError, match="another initializer"):
        nm.trace(lambda x: layer(layer(x, table), table + 1), nm.spec([M]))


def test_a_state_is_copied_and_not_pickled(step):
    state = step.init()
    copies = copy.deepcopy(state), copy.copy(state)
    for use in (pickle.dumps, np.asarray, lambda state: np.save(io.BytesIO(), state)):
        with pytest.raises(nm.NamedMeshError) as caught:
            use(state)
        assert "copy.deepcopy(state) copies it" in caught.value.fix
        assert caught.value.source.file == __file__
    x = np.ones((4, 8), np.float32)
    results = [step(one, x)[1] for one in (state, *copies)]  # each donates its own arrays
    assert float(results[0]) == float(results[1]) == float(results[2])
    for use in (pickle.dumps, copy.deepcopy):
        with pytest.raises(nm.NamedMeshError, match="cannot be pickled") as caught:
            use(step)
        assert "nm.runtime.load(path)" in caught.value.fix


def test_attributes_that_steps_and_states_lack(step):
    for use, fix in (
        (lambda: step.artefact, "did you mean 'artifact'?"),
        (lambda: step.audit.unplaned, "did you mean 'unplanned'?"),
        (lambda: step.init().w, "index it by name: ['w']"),
        (lambda: step.init(sed=0), "did you mean 'seed'?"),
    ):
        with pytest.raises(nm.NamedMeshError) as caught:
            use()
        assert caught.value.fix == fix
    assert not hasattr(step, "artefact") and not hasattr(step, "_repr_png_")


def test_steps_and_states_are_shown_in_notebooks(step):
    shown = step._repr_html_()
    assert "step train on Mesh(data=2)" in shown and "as planned" in shown
    assert "<td>w</td><td>float32[model=8]</td>" in step.init()._repr_html_()


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        ("layers", "Linear", "nm.layers.dense"),
        ("layers", "Embedding", "'embedding'"),
        ("layers", "relu", "nm.relu"),
        ("random", "nromal", "'normal'"),
        ("random", "PRNGKey", "nm.random.key"),
        ("training", "Checkpoint_", "'Checkpoint'"),
        ("collective", "psum", "nm.manual"),
    ],
)
def test_names_that_modules_lack(module, name, meant):
    with pytest.raises(AttributeError) as caught:
        getattr(getattr(nm, module), name)
    start = f"module 'nm.{module}' has no attribute {name!r}; did you mean {meant}"
    assert str(caught.value).startswith(start)


def test_every_name_that_is_suggested_is_there():
    from namedmesh.lazy import _FOREIGN

    for ours in _FOREIGN:
        if ours.startswith("nm."):
            value = nm
            for part in ours.partition(",")[0].partition("(")[0].split(".")[1:]:
                value = getattr(value, part)


def test_public_classes_of_layers_and_training_explain_their_arguments():
    from namedmesh import layers, training

    wrong = []
    for module in (layers, training):
        for name in dir(module):
            value = getattr(module, name)
            made = isinstance(value, type) and not getattr(value, "_is_protocol", False)
            if made and "__init__" in vars(value):
                try:
                    value(no_such_argument=1)
                except nm.NamedMeshError:
                    continue
                except Exception as error:
                    wrong.append(f"{name}: {error}")
    assert wrong == []


def test_texts_and_sizes_where_numbers_and_dimensions_belong():
    with pytest.raises(nm.NamedMeshError, match="intervals cannot have steps='10'"):
        nm.training.Intervals(steps="10")
    with pytest.raises(nm.NamedMeshError, match="64 is not a Dimension"):
        nm.trace(lambda x: nm.layers.embedding(x, 64, 4), nm.spec([B], "int32"))
