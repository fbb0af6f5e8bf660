"""Arguments that are not dimensions, or not the tensor's: found while tracing."""

# pyright: reportArgumentType=false

import namedmesh as nm
from tests.errors.wrong import B, H, M, Table, message_of

wrong = Table()


@wrong("""
sum: 2 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over=2)
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def sum_over_a_number(x):
    nm.sum(x, over=2)


@wrong("""
sum: 'model' is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.sum(x, over="model")
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def sum_over_one_name(x):
    nm.sum(x, over="model")


@wrong("""
argmax: [model=8] is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.argmax(x, [M])
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def argmax_over_a_list(x):
    nm.argmax(x, [M])


@wrong("""
argmax: None is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.argmax(x, None)
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def argmax_over_nothing(x):
    nm.argmax(x, None)


@wrong("""
reshape: 8 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.reshape(x, M, 8)
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def reshape_to_a_number(x):
    nm.reshape(x, M, 8)


@wrong("""
rename: 'hidden' is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.rename(x, M, "hidden")
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def rename_to_a_name(x):
    nm.rename(x, M, "hidden")


@wrong("""
stack: 'copy' is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.stack([x, x], "copy")
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def stack_along_a_name(x):
    nm.stack([x, x], "copy")


@wrong("""
one_hot: 'expert' is not a Dimension
  k: int32[batch=4, seq=6]
  at LINE: nm.one_hot(k, "expert")
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def one_hot_in_a_name(k):
    nm.one_hot(k, "expert")


@wrong("""
top_k: 2 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.top_k(x, M, 2)
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def top_k_of_a_number(x):
    nm.top_k(x, M, 2)


@wrong("""
scatter_add: 4 is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  k: int32[batch=4, seq=6]
  at LINE: nm.scatter_add(x, k, 4)
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def scatter_add_along_a_number(x, k):
    nm.scatter_add(x, k, 4)


@wrong("""
manual: 'batch' is not a Dimension
  x: float32[batch=4, seq=6, model=8]
  at LINE: nm.manual(lambda v: v, x, over="batch")
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def manual_region_over_a_name(x):
    nm.manual(lambda v: v, x, over="batch")


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
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
""")
def range_of_a_list(x):
    nm.range([M])


@wrong("""
fan_in_init: 5 is not a Dimension
  at LINE: nm.fan_in_init(5)
  fix: pass the Dimension itself, e.g. from nm.dims('seq=128'), not its name or position
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
