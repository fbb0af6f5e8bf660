"""Arguments that are not dimensions, or not the tensor's: found while tracing."""

# pyright: reportArgumentType=false

import namedmesh as nm
from tests.errors.wrong import B, H, M, Table, message_of

wrong = Table()


@wrong("""
sum: 2 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=2)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def sum_over_a_number(x):
    nm.sum(x, over=2)


@wrong("""
nm.sum: there is no dimension 'modle' here
  at LINE: nm.sum(x, over="modle")
  fix: did you mean 'model'?, or give a size: 'modle=8'
""")
def sum_over_one_name(x):
    nm.sum(x, over="modle")


@wrong("""
argmax: [model=8] is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.argmax(x, [M])
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def argmax_over_a_list(x):
    nm.argmax(x, [M])


@wrong("""
argmax: None is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.argmax(x, None)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def argmax_over_nothing(x):
    nm.argmax(x, None)


@wrong("""
reshape: 8 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.reshape(x, M, 8)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def reshape_to_a_number(x):
    nm.reshape(x, M, 8)


@wrong("""
rename: 2 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.rename(x, M, 2)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def rename_to_a_name(x):
    nm.rename(x, M, 2)


@wrong("""
nm.stack: there is no dimension 'copy' here
  at LINE: nm.stack([x, x], "copy")
  fix: use one of: batch, model, seq, or give a size: 'copy=8'
""")
def stack_along_a_name(x):
    nm.stack([x, x], "copy")


@wrong("""
nm.one_hot: there is no dimension 'expert' here
  at LINE: nm.one_hot(k, "expert")
  fix: use one of: batch, seq, or give a size: 'expert=8'
""")
def one_hot_in_a_name(k):
    nm.one_hot(k, "expert")


@wrong("""
top_k: 2 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.top_k(x, M, 2)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def top_k_of_a_number(x):
    nm.top_k(x, M, 2)


@wrong("""
scatter_add: 4 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  k: int32[batch=4, seq=6]
  at LINE: nm.scatter_add(x, k, 4)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def scatter_add_along_a_number(x, k):
    nm.scatter_add(x, k, 4)


@wrong("""
nm.manual: there is no dimension 'bacth' here
  at LINE: nm.manual(lambda v: v, x, over="bacth")
  fix: did you mean 'batch'?, or give a size: 'bacth=8'
""")
def manual_region_over_a_name(x):
    nm.manual(lambda v: v, x, over="bacth")


@wrong("""
manual: none of the tensors has dimension hidden of over=
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.manual(lambda v: v, x, over=H)
  fix: leave hidden out of over=
""")
def manual_region_over_a_dimension_nobody_has(x):
    nm.manual(lambda v: v, x, over=H)


@wrong("""
shard: mesh axis name 3 is not a string
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.shard(x, {B: 3})
  fix: write the name as a string
""")
def shard_onto_a_number(x):
    nm.shard(x, {B: 3})


@wrong("""
shard: [batch=4] does not map dimensions to mesh axes
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.shard(x, [B])
  fix: write e.g. nm.shard(x, {B: 'data'}), or the number of a device for each part
""")
def shard_of_a_list(x):
    nm.shard(x, [B])


@wrong("""
range: [model=8] is not a Dimension
  at LINE: nm.range([M])
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def range_of_a_list(x):
    nm.range([M])


@wrong("""
fan_in_init: 5 is not a Dimension
  at LINE: nm.fan_in_init(5)
  fix: pass the Dimension, e.g. from nm.dims('seq=128'), or its name, not a position
""")
def fan_in_of_a_number():
    nm.fan_in_init(5)


@wrong("""
zeros: dimension batch appears twice in one shape: [batch=4, batch=4]
  at LINE: nm.zeros([B, B])
  fix: rename one of them, e.g. nm.rename(x, batch, nm.Dimension('batch_2', 4))
""")
def zeros_of_a_dimension_twice(x):
    nm.zeros([B, B])


@wrong.rows
def test_message(function, message):
    assert message_of(function) == message
