"""Programs that are wrong in themselves, under any layout: found while tracing, on the line that is wrong."""

import numpy as np

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of, traced

T, E = nm.dims("token=6 expert=4")
WIDE = nm.Dimension("model", 10)
wrong = Table()


@wrong("""
einsum: dimension model has size 8 in x and 10 in w
  x: [batch=4, seq=6, model=8]
  w: [model=10, hidden=16]
  result: [batch=4, seq=6, hidden=16]
  at LINE: nm.einsum([x, w], [B, S, H])
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def einsum_of_one_name_in_two_sizes(x):
    w = nm.param("w", [WIDE, H])
    nm.einsum([x, w], [B, S, H])


@wrong("""
einsum: result dimension hiden is in none of the operands
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  result: [batch=4, seq=6, hiden=16]
  at LINE: nm.einsum([x, w], [B, S, nm.Dimension("hiden", 16)])
  fix: did you mean 'hidden'?; to add a dimension use nm.broadcast
""")
def einsum_of_a_result_dimension_nobody_has(x, w):
    nm.einsum([x, w], [B, S, nm.Dimension("hiden", 16)])


@wrong("""
einsum: dimension hidden has size 16 in w and 8 in result
  x: [batch=4, seq=6, model=8]
  w: [model=8, hidden=16]
  result: [batch=4, seq=6, hidden=8]
  at LINE: nm.einsum([x, w], [B, S, nm.Dimension("hidden", 8)])
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def einsum_of_a_result_in_another_size(x, w):
    nm.einsum([x, w], [B, S, nm.Dimension("hidden", 8)])


@wrong("""
einsum: operands of different dtypes
  half: bfloat16[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  at LINE: nm.einsum([half, w], [B, S, H])
  fix: make them agree with nm.cast(x, dtype)
""")
def einsum_of_two_dtypes(half, w):
    nm.einsum([half, w], [B, S, H])


@wrong("""
einsum: operands are bool
  mask: bool[batch=4, seq=6]
  mask: bool[batch=4, seq=6]
  at LINE: nm.einsum([mask, mask], [B])
  fix: use nm.cast(x, 'float32')
""")
def einsum_of_bools(mask):
    nm.einsum([mask, mask], [B])


@wrong("""
einsum: the first argument is not a list of tensors
  at LINE: nm.einsum(x, [B])
  fix: write nm.einsum([x, w], [B, H])
""")
def einsum_of_a_tensor_that_is_in_no_list(x):
    nm.einsum(x, [B])


@wrong("""
dimension batch appears twice in one shape: [batch=4, batch=4]
  at LINE: nm.einsum([x, x], [B, B])
  fix: rename one of them, e.g. nm.rename(x, batch, nm.Dimension('batch_2', 4))
""")
def einsum_of_a_dimension_twice(x):
    nm.einsum([x, x], [B, B])


@wrong("""
add: dimension model has size 8 in x and 10 in bias
  x: [batch=4, seq=6, model=8]
  bias: [model=10]
  at LINE: y = x + bias
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def add_of_one_name_in_two_sizes(x):
    bias = nm.param("bias", [WIDE])
    y = x + bias


@wrong("""
add: operands of different dtypes
  x: float32[batch=4, seq=6, model=8]
  half: bfloat16[batch=4, seq=6, model=8]
  at LINE: y = x + half
  fix: make them agree with nm.cast(x, dtype)
""")
def add_of_two_dtypes(x, half):
    y = x + half


@wrong("""
[1.0, 2.0] of type list is neither a Tensor nor a number
  at LINE: y = x + [1.0, 2.0]
  fix: pass arrays in as inputs (nm.spec) or variables (nm.param, nm.state)
""")
def add_of_an_array(x):
    y = x + [1.0, 2.0]


@wrong("""
number 0.5 beside k, which is int32
  k: int32[batch=4, seq=6]
  at LINE: y = k + 0.5
  fix: write nm.cast(k, 'float32') or a whole number
""")
def add_of_a_fraction_to_integers(k):
    y = k + 0.5


@wrong("""
add takes number operands
  mask: bool[batch=4, seq=6]
  mask: bool[batch=4, seq=6]
  at LINE: y = mask + mask
  fix: convert with nm.cast(x, dtype) or compare first, e.g. x > 0
""")
def add_of_bools(mask):
    y = mask + mask


@wrong("""
divide takes float operands
  k: int32[batch=4, seq=6]
  y: int32[]
  at LINE: y = k / 2
  fix: convert with nm.cast(x, dtype) or compare first, e.g. x > 0
""")
def division_of_integers(k):
    y = k / 2


@wrong("""
exp takes float operands
  k: int32[batch=4, seq=6]
  at LINE: nm.exp(k)
  fix: convert with nm.cast(x, dtype) or compare first, e.g. x > 0
""")
def exponential_of_integers(k):
    nm.exp(k)


@wrong("""
logical_and: operands of different dtypes
  x: float32[batch=4, seq=6, model=8]
  mask: bool[batch=4, seq=6]
  at LINE: y = x & mask
  fix: make them agree with nm.cast(x, dtype)
""")
def logical_and_of_numbers(x, mask):
    y = x & mask


@wrong("""
where takes a bool condition
  x: float32[batch=4, seq=6, model=8]
  x: float32[batch=4, seq=6, model=8]
  fill: float32[]
  at LINE: nm.where(x, x, 0.0)
  fix: convert with nm.cast(x, dtype) or compare first, e.g. x > 0
""")
def where_of_a_number(x):
    nm.where(x, x, 0.0)


@wrong("""
where: dimension seq has size 6 in mask and 5 in other
  mask: [batch=4, seq=6]
  x: [batch=4, seq=6, model=8]
  other: [batch=4, seq=5, model=8]
  at LINE: nm.where(mask, x, other)
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def where_of_two_sizes(x, mask):
    other = nm.zeros([B, nm.Dimension("seq", 5), M])
    nm.where(mask, x, other)


@wrong("""
'float23' is not a dtype of tensors
  at LINE: nm.cast(x, "float23")
  fix: did you mean 'float32'?
""")
def cast_to_a_dtype_that_is_none(x):
    nm.cast(x, "float23")


@wrong("""
sum: x has no dimension modle
  x: [batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=nm.Dimension("modle", 8))
  fix: did you mean 'model'?
""")
def sum_over_a_dimension_it_lacks(x):
    nm.sum(x, over=nm.Dimension("modle", 8))


@wrong("""
sum: x has model=8, not model=10
  x: [batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=WIDE)
  fix: pass the dimension at the size the tensor has
""")
def sum_over_a_dimension_of_another_size(x):
    nm.sum(x, over=WIDE)


@wrong("""
sum: 'model' is not a Dimension
  x: [batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=["model"])
  fix: pass the Dimension itself, not its name or position
""")
def sum_over_a_name(x):
    nm.sum(x, over=["model"])


@wrong("""
softmax: -1 is not a Dimension
  x: [batch=4, seq=6, model=8]
  at LINE: nm.softmax(x, over=[-1])
  fix: pass the Dimension itself, not its name or position
""")
def sum_over_a_position(x):
    nm.softmax(x, over=[-1])


@wrong("""
dimension model appears twice in one shape: [model=8, model=8]
  at LINE: nm.sum(x, over=[M, M])
  fix: rename one of them, e.g. nm.rename(x, model, nm.Dimension('model_2', 8))
""")
def sum_over_a_dimension_twice(x):
    nm.sum(x, over=[M, M])


@wrong("""
argmax: x has no dimension hidden
  x: [batch=4, seq=6, model=8]
  at LINE: nm.argmax(x, H)
  fix: use one of: batch, model, seq
""")
def argmax_over_a_dimension_it_lacks(x):
    nm.argmax(x, H)


@wrong("""
gather: dimension batch has size 4 in x and 3 in ids'
  x: [batch=4, model=8]
  ids': [batch=3]
  at LINE: nm.gather(x, ids, S)
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def gather_of_two_batch_sizes(x):
    ids = nm.zeros([nm.Dimension("batch", 3)], "int32")
    nm.gather(x, ids, S)


@wrong("""
gather: the indices are not integers
  multiply: float32[batch=4, seq=6]
  at LINE: nm.gather(x, nm.mean(x, over=M), S)
  fix: use nm.cast(indices, 'int32')
""")
def gather_at_fractions(x):
    nm.gather(x, nm.mean(x, over=M), S)


@wrong("""
gather: w has no dimension seq
  w: [model=8, hidden=16]
  at LINE: nm.gather(w, k, S)
  fix: use one of: hidden, model
""")
def gather_along_a_dimension_it_lacks(w, k):
    nm.gather(w, k, S)


@wrong("""
one_hot: seq=6 is not a new dimension
  k: int32[batch=4, seq=6]
  at LINE: nm.one_hot(k, S)
  fix: give a Dimension that the indices do not have
""")
def one_hot_in_a_dimension_it_has(k):
    nm.one_hot(k, S)


@wrong("""
one_hot: the indices are not integers
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.one_hot(x, E)
  fix: use nm.cast(indices, 'int32')
""")
def one_hot_of_fractions(x):
    nm.one_hot(x, E)


@wrong("""
scatter_add: w has no dimension batch
  w: [model=8, hidden=16]
  at LINE: nm.scatter_add(w, k, E)
  fix: use one of: hidden, model
""")
def scatter_add_of_updates_without_the_dimensions_of_the_indices(w, k):
    nm.scatter_add(w, k, E)


@wrong("""
top_k: best=9 cannot hold the largest of model=8
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.top_k(x, M, nm.Dimension("best", 9))
  fix: give a new dimension of size at most 8
""")
def top_k_of_more_than_there_are(x):
    nm.top_k(x, M, nm.Dimension("best", 9))


@wrong("""
cumsum: the operand is bool
  mask: bool[batch=4, seq=6]
  at LINE: nm.cumsum(mask, S)
  fix: use nm.cast(x, 'int32')
""")
def cumsum_of_bools(mask):
    nm.cumsum(mask, S)


@wrong("""
argsort: x has no dimension expert
  x: [batch=4, seq=6, model=8]
  at LINE: nm.sort(x, E)
  fix: use one of: batch, model, seq
""")
def sort_along_a_dimension_it_lacks(x):
    nm.sort(x, E)


@wrong("""
broadcast: the result lacks dimension model of x
  x: float32[batch=4, seq=6, model=8]
  result: [batch=4, seq=6, hidden=16]
  at LINE: nm.broadcast(x, [B, S, H])
  fix: add model to the result, or sum over it first
""")
def broadcast_that_loses_a_dimension(x):
    nm.broadcast(x, [B, S, H])


@wrong("""
broadcast: dimension model has size 8 in w and 10 in result
  w: [model=8, hidden=16]
  result: [batch=4, model=10, hidden=16]
  at LINE: nm.broadcast(w, [B, WIDE, H])
  fix: one name has one size in an op; rename one of them or slice the larger
""")
def broadcast_to_another_size(w):
    nm.broadcast(w, [B, WIDE, H])


@wrong("""
transpose: the order does not list the tensor's dimensions once each
  x: float32[batch=4, seq=6, model=8]
  order: [model=8, batch=4]
  at LINE: nm.transpose(x, [M, B])
  fix: list every dimension; use nm.broadcast to add one, nm.sum to remove one
""")
def transpose_that_loses_a_dimension(x):
    nm.transpose(x, [M, B])


@wrong("""
rename: seq=6 cannot become expert=4
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.rename(x, S, E)
  fix: give the new dimension the same size
""")
def rename_to_another_size(x):
    nm.rename(x, S, E)


@wrong("""
rename: x already has a dimension model
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.rename(x, S, nm.Dimension("model", 6))
  fix: choose a name the tensor does not have
""")
def rename_to_a_name_it_has(x):
    nm.rename(x, S, nm.Dimension("model", 6))


@wrong("""
reshape: [batch=4, seq=6] has 24 elements and [token=25] has 25
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.reshape(x, [B, S], nm.Dimension("token", 25))
  fix: make the products of the sizes equal
""")
def reshape_to_another_number_of_elements(x):
    nm.reshape(x, [B, S], nm.Dimension("token", 25))


@wrong("""
dimension batch appears twice in one shape: [batch=4, model=8, batch=2, half=3]
  at LINE: nm.reshape(x, S, [nm.Dimension("batch", 2), nm.Dimension("half", 3)])
  fix: rename one of them, e.g. nm.rename(x, batch, nm.Dimension('batch_2', 2))
""")
def reshape_to_a_dimension_it_has(x):
    nm.reshape(x, S, [nm.Dimension("batch", 2), nm.Dimension("half", 3)])


@wrong("""
concat: tensors differ in more than dimension model
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  at LINE: nm.concat([x, w], M)
  fix: make their other dimensions and dtypes equal
""")
def concat_of_tensors_that_differ(x, w):
    nm.concat([x, w], M)


@wrong("""
concat: w has no dimension batch
  w: [model=8, hidden=16]
  at LINE: nm.concat([x, w], B)
  fix: use one of: hidden, model
""")
def concat_along_a_dimension_one_lacks(x, w):
    nm.concat([x, w], B)


@wrong("""
stack: copy=3 does not count the tensors
  at LINE: nm.stack([x, x], nm.Dimension("copy", 3))
  fix: give a list of tensors and a dimension of that size
""")
def stack_of_too_few(x):
    nm.stack([x, x], nm.Dimension("copy", 3))


@wrong("""
chunk: 3 does not cut model=8 into whole pieces
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.chunk(x, M, 3)
  fix: give a divisor of the size, or sizes that add up to it
""")
def chunk_into_parts_that_do_not_divide(x):
    nm.chunk(x, M, 3)


@wrong("""
slice: 3 elements from 4 with stride 1 do not lie in seq=6
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.slice(x, S, 4, 3)
  fix: keep start + (size - 1) * stride below 6
""")
def slice_past_the_end(x):
    nm.slice(x, S, 4, 3)


@wrong("""
pad: -1 before and 0 after seq=6
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.pad(x, S, low=-1)
  fix: use nm.slice to make it shorter
""")
def pad_by_less_than_nothing(x):
    nm.pad(x, S, low=-1)


@wrong("""
shift: seq=6 cannot move by 6
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.shift(x, S, 6)
  fix: move by less than the size
""")
def shift_by_more_than_there_is(x):
    nm.shift(x, S, 6)


@wrong("""
dynamic_slice: the start is no int32 scalar
  fill: float32[]
  at LINE: nm.dynamic_slice(x, 0.5, S, 2)
  fix: use nm.cast(start, 'int32')
""")
def dynamic_slice_at_a_fraction(x):
    nm.dynamic_slice(x, 0.5, S, 2)


@wrong("""
dynamic_update: the update does not fit along seq=6
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  at LINE: nm.dynamic_update(x, w, 0, S)
  fix: give it the dimensions of x, with seq at most 6
""")
def dynamic_update_that_does_not_fit(x, w):
    nm.dynamic_update(x, w, 0, S)


@wrong("""
range: 8 is not a Dimension
  at LINE: nm.trace(lambda: nm.range(8))
  fix: pass a Dimension, e.g. from nm.dims('seq=128')
""")
def range_of_a_number():
    nm.trace(lambda: nm.range(8))


@wrong("""
random.bits: the first argument is no random key
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.random.uniform(x, [B])
  fix: make one with nm.random.key(seed)
""")
def random_numbers_without_a_key(x):
    nm.random.uniform(x, [B])


@wrong("""
random: the seed is no int32 scalar
  fill: float32[]
  at LINE: nm.random.key(0.5)
  fix: declare it as nm.spec([], 'int32')
""")
def random_key_of_a_fraction(x):
    nm.random.key(0.5)


@wrong("""
reshard: x has no dimension sequence
  x: [batch=4, seq=6, model=8]
  at LINE: nm.reshard(x, nm.Dimension("sequence", 6))
  fix: use one of: batch, model, seq
""")
def reshard_to_a_dimension_it_lacks(x):
    nm.reshard(x, nm.Dimension("sequence", 6))


@wrong("""
reshard: no dimension given
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.reshard(x)
  fix: name the dimension that takes its axes
""")
def reshard_to_nothing(x):
    nm.reshard(x)


@wrong("""
split: 2 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.split(x, 2)
  fix: to cut a tensor into pieces use nm.chunk
""")
def split_into_a_number(x):
    nm.split(x, 2)


@wrong("""
shard: mesh axis 'data' is given to two dimensions of x
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.shard(x, {B: "data", S: "data"})
  fix: give each axis to one dimension
""")
def shard_of_one_axis_on_two_dimensions(x):
    nm.shard(x, {B: "data", S: "data"})


@wrong("""
input: whole='seq' is not one of its dimensions
  input: [batch=4, model=8]
  at LINE: nm.spec([B, M], whole=[S])
  fix: use one of: batch, model
""")
def spec_whole_in_a_dimension_it_lacks():
    nm.spec([B, M], whole=[S])


@wrong("""
'float' is not a dtype of tensors
  at LINE: nm.spec([B, M], "float")
  fix: did you mean 'float64'?
""")
def spec_of_a_dtype_that_is_none():
    nm.spec([B, M], "float")


@wrong("""
the value of greater is not known while tracing, so it is neither true nor false
  greater: bool[]
  at LINE: if nm.max(x) > 0:
  fix: use nm.where for a choice per element, nm.cond for a choice of what to run
""")
def bool_of_a_tensor(x):
    if nm.max(x) > 0:
        x = -x


@wrong("""
the value of flag is not known while tracing, so it is neither true nor false
  flag: bool[]
  at LINE: while flag:
  fix: use nm.where for a choice per element, nm.cond for a choice of what to run
""")
def while_on_a_tensor(flag):
    while flag:
        pass


@wrong("""
x cannot be iterated over
  x: float32[batch=4, seq=6, model=8]
  at LINE: for row in x:
  fix: use nm.scan, or nm.chunk for a list of pieces
""")
def iteration_over_a_tensor(x):
    for row in x:
        nm.sum(row)


@wrong("""
x has no value while tracing
  x: float32[batch=4, seq=6, model=8]
  at LINE: np.asarray(x)
  fix: return it from the traced function and run the step
""")
def value_of_a_tensor(x):
    np.asarray(x)


@wrong("""
fill was called outside a traced function
  at LINE: nm.zeros([B])
  fix: call it inside the function given to nm.trace or nm.compile
""")
def op_outside_a_trace():
    nm.zeros([B])


@wrong("""
param was called outside a traced function
  at LINE: nm.param("w", [M, H])
  fix: call it inside the function given to nm.trace or nm.compile
""")
def param_outside_a_trace():
    nm.param("w", [M, H])


@wrong("""
scope was called outside a traced function
  at LINE: with nm.scope("layer"):
  fix: call it inside the function given to nm.trace or nm.compile
""")
def scope_outside_a_trace():
    with nm.scope("layer"):
        pass


@wrong("""
nm.trace was called inside a traced function
  at LINE: nm.trace(lambda y: y, y=nm.spec([B]))
  fix: call the inner function directly
""")
def trace_inside_a_trace(x):
    nm.trace(lambda y: y, y=nm.spec([B]))


@wrong("""
the inputs do not fit <lambda>(x, y): missing a required argument: 'y'
  at LINE: nm.trace(lambda x, y: x + y, x=nm.spec([B]))
  fix: give one nm.spec for each argument of the function
""")
def trace_with_an_argument_too_few():
    nm.trace(lambda x, y: x + y, x=nm.spec([B]))


@wrong("""
input x of <lambda> is [Dimension(name='batch', size=4), Dimension(name='model', size=8)], not a spec
  at LINE: nm.trace(lambda x: x, x=[B, M])
  fix: pass x=nm.spec([dims], dtype)
""")
def trace_with_a_shape_for_a_spec():
    nm.trace(lambda x: x, x=[B, M])


@wrong("""
a result of <lambda> is 'done', not a Tensor
  at LINE: nm.trace(lambda x: (x, "done"), x=nm.spec([B]))
  fix: return tensors, or tuples, lists and dicts of them
""")
def trace_of_a_result_that_is_no_tensor():
    nm.trace(lambda x: (x, "done"), x=nm.spec([B]))


@wrong("""
input name 'token ids' is not an identifier
  at LINE: nm.trace(lambda batch: batch["token ids"], {"token ids": nm.spec([B])})
  fix: use letters, digits and underscores, not starting with a digit
""")
def input_name_that_is_no_identifier():
    nm.trace(lambda batch: batch["token ids"], {"token ids": nm.spec([B])})


@wrong("""
two inputs are named x
  at LINE: nm.trace(lambda x, batch: x, nm.spec([B]), {"x": nm.spec([B])})
  fix: give each input its own name
""")
def two_inputs_of_one_name():
    nm.trace(lambda x, batch: x, nm.spec([B]), {"x": nm.spec([B])})


@wrong("""
variable name 'layer.w' is not an identifier
  at LINE: nm.param("layer.w", [M, H])
  fix: use letters, digits and underscores, not starting with a digit
""")
def param_name_that_is_no_identifier(x):
    nm.param("layer.w", [M, H])


@wrong("""
scope name 'layer 0' is not an identifier
  at LINE: with nm.scope("layer 0"):
  fix: use letters, digits and underscores, not starting with a digit
""")
def scope_name_that_is_no_identifier(x):
    with nm.scope("layer 0"):
        nm.param("w", [M, H])


@wrong("""
parameter table is int32
  at LINE: nm.param("table", [M, H], dtype="int32")
  fix: parameters are floating point; use nm.state for others
""")
def param_of_integers(x):
    nm.param("table", [M, H], dtype="int32")


@wrong("""
variable w exists already with another shape, dtype or role
  before: float32[model=8, hidden=16] at LINE
  now: float32[hidden=16, model=8]
  at LINE: again = nm.param("w", [H, M])
  fix: give the new one its own name, or put it in its own nm.scope
""")
def param_again_in_another_shape(x):
    w = nm.param("w", [M, H])
    again = nm.param("w", [H, M])


@wrong("""
variable w: whole='modell' is not one of its dimensions
  variable w: [model=8, hidden=16]
  at LINE: nm.param("w", [M, H], whole=[nm.Dimension("modell", 8)])
  fix: did you mean 'model'?
""")
def param_whole_in_a_dimension_it_lacks(x):
    nm.param("w", [M, H], whole=[nm.Dimension("modell", 8)])


@wrong("""
state: x is not a variable
  at LINE: nm.state("slot", [B], of=x)
  fix: pass the tensor that nm.param or nm.state returned; there are none to choose from
""")
def slot_of_a_tensor_that_is_no_variable(x):
    nm.state("slot", [B], of=x)


@wrong("""
assign: w is assigned twice in one step
  at LINE: nm.assign(w, w * 2.0)
  fix: assign the final value once
""")
def assign_twice(x):
    w = nm.param("w", [M, H])
    nm.assign(w, w * 0.5)
    nm.assign(w, w * 2.0)


@wrong("""
assign: w is float32[model=8, hidden=16], the value float32[model=8]
  at LINE: nm.assign(w, nm.sum(w, over=H))
  fix: give it the variable's dimensions and dtype, e.g. with nm.cast
""")
def assign_of_another_shape(x):
    w = nm.param("w", [M, H])
    nm.assign(w, nm.sum(w, over=H))


@wrong("""
assign: w is float32[model=8, hidden=16], the value bfloat16[model=8, hidden=16]
  at LINE: nm.assign(w, nm.cast(w, "bfloat16"))
  fix: give it the variable's dimensions and dtype, e.g. with nm.cast
""")
def assign_of_another_dtype(x):
    w = nm.param("w", [M, H])
    nm.assign(w, nm.cast(w, "bfloat16"))


@wrong("""
assign: y is not a variable
  at LINE: nm.assign(y, w)
  fix: pass the tensor that nm.param or nm.state returned; use one of: w
""")
def assign_to_a_tensor_that_is_no_variable(x):
    w = nm.param("w", [M, H])
    y = w * 2.0
    nm.assign(y, w)


@wrong("""
assign: count is assigned inside a loop body or branch
  at LINE: nm.assign(count, count + 1)
  fix: return the value and assign it outside
""")
def assign_in_a_loop_body(x):
    count = nm.state("count", [], dtype="int32")

    def body(total, row):
        nm.assign(count, count + 1)
        return total + row, None

    nm.scan(body, nm.zeros([B, M]), x, over=S)


@wrong("""
tensor multiply belongs to another program, or to a loop body or branch that has ended
  multiply: float32[batch=4, model=8]
  at LINE: y = kept[0] + 1.0
  fix: return it from that function and use the returned tensor
""")
def tensor_of_a_loop_body_that_has_ended(x):
    kept = []

    def body(total, row):
        kept.append(row * 2.0)
        return total + row, None

    nm.scan(body, nm.zeros([B, M]), x, over=S)
    y = kept[0] + 1.0


@wrong("""
tensor x belongs to another program, or to a loop body or branch that has ended
  x: float32[batch=4, model=8]
  at LINE: nm.trace(lambda y: y + kept[0], y=nm.spec([B, M]))
  fix: return it from that function and use the returned tensor
""")
def tensor_of_another_program():
    kept = []
    nm.trace(lambda x: kept.append(x), x=nm.spec([B, M]))
    nm.trace(lambda y: y + kept[0], y=nm.spec([B, M]))


@wrong("""
grad: the loss is no floating point scalar
  loss: float32[batch=4, hidden=16]
  at LINE: nm.grad(loss)
  fix: reduce it, e.g. nm.mean(loss), or give cotangent=
""")
def gradient_of_many_numbers(x):
    w = nm.param("w", [M, H])
    loss = nm.einsum([x, w], [B, H])
    nm.grad(loss)


@wrong("""
grad: the loss is no floating point scalar
  sum: int32[]
  at LINE: nm.grad(nm.sum(k), x)
  fix: reduce it, e.g. nm.mean(loss), or give cotangent=
""")
def gradient_of_an_integer(x, k):
    nm.grad(nm.sum(k), x)


@wrong("""
grad: cannot differentiate with respect to k: int32[batch=4, seq=6]
  at LINE: nm.grad(nm.sum(x), [x, k])
  fix: name floating point tensors in wrt=
""")
def gradient_with_respect_to_integers(x, k):
    nm.grad(nm.sum(x), [x, k])


@wrong("""
grad: there is nothing to differentiate with respect to
  at LINE: nm.grad(nm.sum(x))
  fix: make parameters with nm.param, or name tensors in wrt=
""")
def gradient_with_respect_to_nothing(x):
    nm.grad(nm.sum(x))


@wrong("""
grad: the cotangent is not like the loss
  y: float32[batch=4, seq=6, model=8]
  fill: float32[batch=4, model=8]
  at LINE: nm.grad(y, x, cotangent=nm.ones([B, M]))
  fix: give it the same dimensions, order and dtype
""")
def gradient_with_a_cotangent_of_another_shape(x):
    y = x * 2.0
    nm.grad(y, x, cotangent=nm.ones([B, M]))


@wrong("""
while: a loop of unknown length has no derivative
  x: float32[batch=4, seq=6, model=8]
  at LINE: halved = nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: v * 0.5, x)
  fix: use nm.scan over a dimension, or nm.stop_gradient on the loop's start
""")
def gradient_of_a_while_loop(x):
    halved = nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: v * 0.5, x)
    nm.grad(nm.sum(halved), x)


@wrong("""
custom_vjp: the backward function returned 1 cotangents for 2 arguments
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  at LINE: y = product(x, w)
  fix: return one cotangent (or None) for each argument of the function, in order
""")
def custom_vjp_with_a_cotangent_too_few(x, w):
    product = nm.custom_vjp(lambda x, w: (nm.einsum([x, w], [B, S, H]), (x, w)), lambda saved, dy: dy)
    y = product(x, w)
    nm.grad(nm.sum(y), [x, w])


@wrong("""
custom_vjp: the backward function's cotangent of x is float32[batch=4, seq=6]
  x: float32[batch=4, seq=6, model=8]
  at LINE: y = double(x)
  fix: give it the shape and dtype of its argument
""")
def custom_vjp_with_a_cotangent_of_another_shape(x):
    double = nm.custom_vjp(lambda x: (x * 2.0, None), lambda saved, dy: nm.sum(dy, over=M))
    y = double(x)
    nm.grad(nm.sum(y), x)


@wrong("""
custom_vjp: forward did not return (result, residuals)
  at LINE: y = double(x)
  fix: return a pair
""")
def custom_vjp_without_residuals(x):
    double = nm.custom_vjp(lambda x: x * 2.0, lambda saved, dy: dy)
    y = double(x)


@wrong("""
call_tf: a result lacks the batch dimension batch
  result: [seq=6, model=8]
  at LINE: nm.call_tf(lambda v: v, x, result=nm.spec([S, M]), batch=[B])
  fix: leave batch out of batch=, so that the function sees all of it
""")
def call_tf_with_a_batch_dimension_the_result_lacks(x):
    nm.call_tf(lambda v: v, x, result=nm.spec([S, M]), batch=[B])


@wrong("""
sum: mixes elements of dimension batch, over which the region is split
  x: float32[batch=4, seq=6, model=8]
  at LINE: y = nm.manual(lambda x: x - nm.mean(x, over=B), x, over=B)
  fix: leave batch out of over=, or do this outside the region
""")
def manual_region_that_sums_over_its_own_dimension(x):
    y = nm.manual(lambda x: x - nm.mean(x, over=B), x, over=B)


@wrong("""
manual: the result y lacks dimension batch, over which the region is split
  y: float32[seq=6, model=8]
  at LINE: y = nm.manual(lambda x: nm.zeros([S, M]), x, over=B)
  fix: compute it outside the region
""")
def manual_region_whose_result_lacks_its_dimension(x):
    y = nm.manual(lambda x: nm.zeros([S, M]), x, over=B)


@wrong("""
replicate: nothing moves inside a manual region
  x: float32[batch=4, seq=6, model=8]
  at LINE: y = nm.manual(lambda x: nm.replicate(x), x, over=B)
  fix: move the tensor before the region
""")
def manual_region_that_moves_a_tensor(x):
    y = nm.manual(lambda x: nm.replicate(x), x, over=B)


@wrong("""
scan: the body's carry: sum is float32[batch=4] where float32[batch=4, model=8] is due
  at LINE: nm.scan(lambda total, row: (nm.sum(row, over=M), None), nm.zeros([B, M]), x, over=S)
  fix: make it like fill, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def scan_whose_carry_changes_shape(x):
    nm.scan(lambda total, row: (nm.sum(row, over=M), None), nm.zeros([B, M]), x, over=S)


@wrong("""
scan: the body's carry: cast is bfloat16[batch=4, model=8] where float32[batch=4, model=8] is due
  at LINE: nm.scan(lambda total, row: (nm.cast(total, "bfloat16"), None), nm.zeros([B, M]), x, over=S)
  fix: make it like fill, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def scan_whose_carry_changes_dtype(x):
    nm.scan(lambda total, row: (nm.cast(total, "bfloat16"), None), nm.zeros([B, M]), x, over=S)


@wrong("""
scan: the body did not return (carry, y)
  at LINE: nm.scan(lambda total, row: total + row, nm.zeros([B, M]), x, over=S)
  fix: return a pair; y may be None
""")
def scan_that_returns_no_pair(x):
    nm.scan(lambda total, row: total + row, nm.zeros([B, M]), x, over=S)


@wrong("""
scan: x has no dimension token
  x: [batch=4, seq=6, model=8]
  at LINE: nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=T)
  fix: use one of: batch, model, seq
""")
def scan_over_a_dimension_its_rows_lack(x):
    nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=T)


@wrong("""
scan: the carry x has the loop's own dimension seq
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.scan(lambda total, row: (total, None), x, x, over=S)
  fix: rename it
""")
def scan_whose_carry_has_its_own_dimension(x):
    nm.scan(lambda total, row: (total, None), x, x, over=S)


@wrong("""
scan: the result fill has the loop's own dimension seq
  fill: float32[seq=6]
  at LINE: nm.scan(lambda total, row: (total, nm.zeros([S])), nm.zeros([B, M]), x, over=S)
  fix: rename it
""")
def scan_whose_result_has_its_own_dimension(x):
    nm.scan(lambda total, row: (total, nm.zeros([S])), nm.zeros([B, M]), x, over=S)


@wrong("""
scan: over=8 is not a Dimension
  at LINE: nm.scan(lambda total, row: (total, None), nm.zeros([B]), over=8)
  fix: name the dimension to loop over
""")
def scan_over_a_number(x):
    nm.scan(lambda total, row: (total, None), nm.zeros([B]), over=8)


@wrong("""
scan: remat='dot' is not a choice
  at LINE: nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=S, remat="dot")
  fix: did you mean 'dots'?
""")
def scan_with_a_remat_that_is_none(x):
    nm.scan(lambda total, row: (total + row, None), nm.zeros([B, M]), x, over=S, remat="dot")


@wrong("""
cond: the condition is no bool scalar
  mask: bool[batch=4, seq=6]
  at LINE: nm.cond(mask, lambda: x, lambda: -x)
  fix: reduce it with nm.any or nm.all
""")
def cond_on_many_bools(x, mask):
    nm.cond(mask, lambda: x, lambda: -x)


@wrong("""
cond: the second branch: sum is float32[batch=4, seq=6] where float32[batch=4, seq=6, model=8] is due
  at LINE: nm.cond(flag, lambda: x, lambda: nm.sum(x, over=M))
  fix: make it like x, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def cond_whose_branches_differ(x, flag):
    nm.cond(flag, lambda: x, lambda: nm.sum(x, over=M))


@wrong("""
cond: the second branch: 1 tensors where 2 are due
  at LINE: nm.cond(flag, lambda: (x, x), lambda: x)
  fix: return the structure of the first branch
""")
def cond_whose_branches_return_other_numbers_of_tensors(x, flag):
    nm.cond(flag, lambda: (x, x), lambda: x)


@wrong("""
while_loop: the body: sum is float32[batch=4, seq=6] where float32[batch=4, seq=6, model=8] is due
  at LINE: nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: nm.sum(v, over=M), x)
  fix: make it like x, e.g. with nm.cast, nm.sum or nm.broadcast
""")
def while_loop_whose_carry_changes_shape(x):
    nm.while_loop(lambda v: nm.max(v) > 1.0, lambda v: nm.sum(v, over=M), x)


@wrong("""
while_loop: the condition is no bool scalar
  greater: bool[batch=4, seq=6, model=8]
  at LINE: nm.while_loop(lambda v: v > 1.0, lambda v: v * 0.5, x)
  fix: reduce it with nm.any or nm.all
""")
def while_loop_whose_condition_is_no_scalar(x):
    nm.while_loop(lambda v: v > 1.0, lambda v: v * 0.5, x)


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message


def test_a_failed_trace_leaves_nothing_behind():
    """After an error in the middle of a scope and a loop body, the next trace starts clean."""
    for function, _ in wrong.values():
        message_of(function)
    program = traced(lambda x: nm.sum(nm.einsum([x, nm.param("w", [M, H])], [B, H])))
    assert list(program.variables) == ["w"]
    assert not program.updates
