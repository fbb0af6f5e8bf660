"""Dimensions renamed, regrouped, cut and placed wrongly: found while tracing, at their line."""

# pyright: reportArgumentType=false

import namedmesh as nm
from tests.errors.wrong import B, H, M, S, Table, message_of

E = nm.Dimension("expert", 4)
WIDE = nm.Dimension("model", 10)
wrong = Table()


@wrong("""
broadcast: the result lacks dimension model of x
  x: float32[batch=4, seq=6, model=8]
  the result: [batch=4, seq=6, hidden=16]
  at LINE: nm.broadcast(x, [B, S, H])
  fix: add model to the result, or sum over it first
""")
def broadcast_that_loses_a_dimension(x):
    nm.broadcast(x, [B, S, H])


@wrong("""
broadcast: dimension model has size 8 in w and 10 in the result
  w: [model=8, hidden=16]
  the result: [batch=4, model=10, hidden=16]
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
reshape: dimension batch appears twice in one shape: [batch=4, model=8, batch=2, half=3]
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.reshape(x, S, [nm.Dimension("batch", 2), nm.Dimension("half", 3)])
  fix: rename one of them, e.g. nm.rename(x, batch, nm.Dimension('batch_2', 2))
""")
def reshape_to_a_dimension_it_has(x):
    nm.reshape(x, S, [nm.Dimension("batch", 2), nm.Dimension("half", 3)])


@wrong("""
concat: w differs from x in more than dimension model
  x: float32[batch=4, seq=6, model=8]
  w: float32[model=8, hidden=16]
  at LINE: nm.concat([x, w], M)
  fix: make their other dimensions and dtypes equal
""")
def concat_of_tensors_that_differ(x, w):
    nm.concat([x, w], M)


@wrong("""
concat: w has no dimension batch
  w: float32[model=8, hidden=16]
  at LINE: nm.concat([x, w], B)
  fix: use one of: hidden, model
""")
def concat_along_a_dimension_one_lacks(x, w):
    nm.concat([x, w], B)


@wrong("""
stack: copy=3 does not have the size of 2 tensors
  x: float32[batch=4, seq=6, model=8]
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.stack([x, x], nm.Dimension("copy", 3))
  fix: give a dimension of size 2
""")
def stack_of_too_few(x):
    nm.stack([x, x], nm.Dimension("copy", 3))


@wrong("""
chunk: 3 does not cut model=8 into whole parts
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.chunk(x, M, 3)
  fix: give a divisor of the size, or sizes that add up to it
""")
def chunk_into_parts_that_do_not_divide(x):
    nm.chunk(x, M, 3)


@wrong("""
slice: 3 elements from 4 with stride 1 do not fit in seq=6
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.slice(x, S, 4, 3)
  fix: give size >= 1, stride >= 1, start >= -6, and start + (size - 1) * stride below 6
""")
def slice_past_the_end(x):
    nm.slice(x, S, 4, 3)


@wrong("""
pad: cannot pad seq=6 by -1 before and 0 after
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
dynamic_slice: the start is not an int32 scalar
  0.5: float32[]
  at LINE: nm.dynamic_slice(x, 0.5, S, 2)
  fix: use nm.cast(0.5, 'int32'), or reduce it to one number
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
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def range_of_a_number():
    nm.trace(lambda: nm.range(8))


@wrong("""
random.uniform: the first argument is not a random key
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.random.uniform(x, [B])
  fix: make one with nm.random.key(seed)
""")
def random_numbers_without_a_key(x):
    nm.random.uniform(x, [B])


@wrong("""
random.key: 0.5 does not fit int32
  at LINE: nm.random.key(0.5)
  fix: give a whole number, or a floating point dtype
""")
def random_key_of_a_fraction(x):
    nm.random.key(0.5)


@wrong("""
reshard: x has no dimension sequence
  x: float32[batch=4, seq=6, model=8]
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
  fix: to cut a tensor into parts use nm.chunk
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
'float8' is not a dtype of tensors
  at LINE: nm.spec([B, M], "float8")
  fix: use one of: float8_e4m3fn, float8_e5m2
""")
def spec_of_a_dtype_in_short():
    nm.spec([B, M], "float8")


@wrong("""
'float' is not a dtype of tensors
  at LINE: nm.spec([B, M], "float")
  fix: did you mean 'float64'?
""")
def spec_of_a_dtype_that_is_none():
    nm.spec([B, M], "float")


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
